-- Prevents: A pauses, its lock expires, B takes over, A extends by key alone and keeps B's lock alive.
--
-- KEYS  the record                                                   ARGV  owner, lock in ms
-- Reply 1 in flight    0 refused    -1 foreign
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
-- GT: an extension that comes late, or after the clock stepped back, never shortens what a later one gave.
redis.call('PEXPIRE', key, string.format('%.0f', ARGV[2] + grace), 'GT')
return 1
