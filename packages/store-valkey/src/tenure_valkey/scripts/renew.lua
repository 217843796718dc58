-- Prevents: A pauses, its lock expires, B takes the key, A renews by key alone, and both believe that they hold it.
--
-- KEYS  the lock                                                     ARGV  owner, ttl in ms, fence retention in ms
-- Reply 0 refused    1 renewed    {token, ms} renewed, and the fence of that token is to live until then (keep_fence)
--
-- One key, so that it runs at every stage of a slot's migration. Nothing grows and there is no #!lua line, so a full
-- server runs it.
local value = redis.call('GET', KEYS[1])
if not value then
  return 0
end
local token, holder = string.match(value, '^([1-9]%d*):[012]:([^%z]+)')
if holder ~= ARGV[1] then
  return 0
end
local ttl, retention = tonumber(ARGV[2]), tonumber(ARGV[3])
local since = ttl - redis.call('PTTL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])

-- Tokens need no fence that is renewed: one drawn later is greater by the clock. Who is next needs it, to be told that
-- this lock expired. So each time that the lock has lived half a retention more, and when its ttl became shorter.
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local age, half = math.max(0, clock - token) / 1000, retention / 2
if since < 0 or math.floor(age / half) > math.floor(math.max(0, age - since) / half) then
  return {tonumber(token), math.max(math.floor(clock / 1000) + ttl, math.ceil(token / 1000)) + retention}
end
return 1
