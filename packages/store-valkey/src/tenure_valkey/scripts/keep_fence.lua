-- Prevents: a lease is held for days, its holder dies, and the next one is not told that it did; a token that a release
-- granted is forgotten when the lock expires, and comes again after the server's clock stepped back.
--
-- KEYS  the fence                                                    ARGV  a token, when it is to expire in Unix ms
-- Reply 1 kept    0 it holds a later token, or what is none
local fence = redis.call('GET', KEYS[1])
if fence == ARGV[1] then
  return redis.call('PEXPIREAT', KEYS[1], ARGV[2])
end
if fence and (not string.match(fence, '^[1-9]%d*$') or tonumber(fence) > tonumber(ARGV[1])) then
  return 0
end
-- First, so that a full server runs it.
redis.call('PEXPIREAT', KEYS[1], ARGV[2])
redis.call('SET', KEYS[1], ARGV[1], 'PXAT', ARGV[2])
return 1
