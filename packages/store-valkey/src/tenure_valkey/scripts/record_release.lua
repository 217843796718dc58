-- Prevents: A outlives its lock, B takes over, A fails and frees the record under B.
--
-- KEYS  the record                                                   ARGV  owner
-- Reply 1 released    0 refused    -1 foreign
--
-- Nothing grows and there is no #!lua line, so a full server runs it.
local key = KEYS[1]
local owner, fingerprint, attempt, grace = unpack(redis.call('HMGET', key, 'owner', 'fingerprint', 'attempt', 'grace'))
local left = redis.call('PTTL', key)
-- A key lives through the millisecond of its expiry; the record has ended in it.
if left == -2 or left == 0 then
  return 0
end
if not (fingerprint and string.match(attempt or '', '^[1-9]%d*$') and string.match(grace or '', '^[1-9]%d*$')) then
  return -1
end
if owner ~= ARGV[1] or redis.call('HEXISTS', key, 'response') == 1 then
  return 0
end
if attempt == '1' then
  redis.call('DEL', key)
  return 1
end
-- What is not known of the first attempt is not known of the key: its count stays, and nobody is its owner.
redis.call('HDEL', key, 'owner')
redis.call('PEXPIRE', key, grace)
return 1
