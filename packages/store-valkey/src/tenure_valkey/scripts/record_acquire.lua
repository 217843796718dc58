-- Prevents: two requests read "new", and both run; one with another payload is given the answer of the first.
--
-- KEYS  the record                        ARGV  owner, fingerprint, lock in ms, grace in ms, 1 to take over or 0
-- Reply {1, attempt} acquired    {2, ms left} in flight    {3, attempt} abandoned    {4, state} another payload's
--       {5, response, owner} completed    {-1} foreign         state: 1 in flight, 2 abandoned, 3 completed
--
-- What is under the key: a hash of owner (not after a release that left the count), fingerprint, attempt, grace, and
-- response once it is completed. It expires when the record ends: its lock and its grace from now, or its retention.
-- So the lock is live while more than the grace is left, and nothing here needs to know what time it is.
local key = KEYS[1]
local owner, fingerprint, attempt, grace = unpack(redis.call('HMGET', key, 'owner', 'fingerprint', 'attempt', 'grace'))
local left = redis.call('PTTL', key)
local before = 0

-- A key lives through the millisecond of its expiry; the record has ended in it.
if left ~= -2 and left ~= 0 then
  if not (fingerprint and string.match(attempt or '', '^[1-9]%d*$') and string.match(grace or '', '^[1-9]%d*$')) then
    return {-1}
  end
  local completed = redis.call('HEXISTS', key, 'response') == 1
  -- One that a person made permanent (-1) is locked for good.
  local locked = left < 0 and 9007199254740991 or left - grace
  if fingerprint ~= ARGV[2] then
    return {4, completed and 3 or locked > 0 and 1 or 2}
  end
  if completed then
    return {5, redis.call('HGET', key, 'response'), owner}
  end
  if owner == ARGV[1] then
    -- A reply was lost, or a driver sent the call twice: the same attempt again. Nothing grows: a full server runs it.
    redis.call('PEXPIRE', key, string.format('%.0f', ARGV[3] + grace), 'GT')
    return {1, tonumber(attempt)}
  end
  if locked > 0 then
    return {2, locked}
  end
  if ARGV[5] ~= '1' then
    return {3, tonumber(attempt)}
  end
  before = tonumber(attempt)
end

-- The first write is one that grows: a server out of memory refuses it, and nothing is written.
redis.call('HSET', key, 'owner', ARGV[1], 'fingerprint', ARGV[2], 'attempt', before + 1, 'grace', ARGV[4])
if left == 0 then
  redis.call('HDEL', key, 'response')
end
redis.call('PEXPIRE', key, string.format('%.0f', ARGV[3] + ARGV[4]))
return {1, before + 1}
