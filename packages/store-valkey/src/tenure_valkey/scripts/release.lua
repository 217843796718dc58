-- Prevents: A releases after its lock expired, and frees the one that B holds.
--
-- KEYS  the lock                                                     ARGV  owner, fence retention in ms
-- Reply 1 released    0 the owner held no live lock
--
-- What stays under the key is the token, for as long as the fence: it tells the next holder that this one released.
-- One key, so that it runs at every stage of a slot's migration. No #!lua line, and PEXPIRE first: once a script has
-- written, a server out of memory lets it SET as well, and this value is shorter than the one before.
local value = redis.call('GET', KEYS[1])
if not value then
  return 0
end
local token, holder = string.match(value, '^([1-9]%d*):[012]:(.+)$')
if holder ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local ahead = math.ceil((token - time[1] * 1000000 - time[2]) / 1000)
-- One more than the fence: should the two expire apart, the key must not look expired.
local life = string.format('%.0f', math.max(redis.call('PTTL', KEYS[1]), ahead) + tonumber(ARGV[2]) + 1)
redis.call('PEXPIRE', KEYS[1], life)
redis.call('SET', KEYS[1], token, 'PX', life)
return 1
