#!lua flags=allow-oom
-- Prevents: A outlives its lock, B takes over, A ends late and overwrites B's outcome with its own.
--
-- KEYS  the record                                                   ARGV  owner, response, retention in ms
-- Reply 1 stored    0 the record is another's    2 there is none    -1 foreign
--
-- allow-oom: the request has been carried out. Refused by a full server, its record would be abandoned, and a repeat
-- would carry it out again. Since a full server lets nothing begin, at most what is in flight is stored beyond its limit.
-- The owner and the fingerprint stay: a repeat of this call is known by the one, the next request by the other.
local key = KEYS[1]
local owner, fingerprint, attempt, grace = unpack(redis.call('HMGET', key, 'owner', 'fingerprint', 'attempt', 'grace'))
local left = redis.call('PTTL', key)
-- A key lives through the millisecond of its expiry; the record has ended in it.
if left == -2 or left == 0 then
  return 2
end
if not (fingerprint and string.match(attempt or '', '^[1-9]%d*$') and string.match(grace or '', '^[1-9]%d*$')) then
  return -1
end
if owner ~= ARGV[1] then
  return 0
end
-- Asked again after a lost reply: the first completion stays, and its retention.
if redis.call('HSETNX', key, 'response', ARGV[2]) == 1 then
  redis.call('PEXPIRE', key, ARGV[3])
end
return 1
