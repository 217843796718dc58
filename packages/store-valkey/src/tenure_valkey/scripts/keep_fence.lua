-- Prevents: a lease is held for days, its holder dies, and the next one is not told that it did.
--
-- KEYS  the fence                                                    ARGV  its token, when it is to expire in Unix ms
-- Reply 1 kept    0 it is a later token's, or gone
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIREAT', KEYS[1], ARGV[2])
