-- Prevents: two callers read "free" and both take the lock; a token that comes back after a failover or a flush.
--
-- KEYS  the lock, its fence                                          ARGV  owner, ttl in ms, fence retention in ms
-- Reply {1, token, after} granted    {0, ms left or -1} held    {-1} foreign lock    {-2} foreign fence    {-3} used up
--       after: 0 unknown, 1 released, 2 expired
--
-- What is under the keys:
--   lock   "<token>:<after>:<owner>" while it is held, "<token>" once it was released, nothing once it expired
--   fence  "<token>", the key's last one
local value = redis.call('GET', KEYS[1])
local owner, ttl, retention = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]

-- Until the lock has expired and the clock has caught up with a token that is ahead of it, and the retention more.
local function fence_life(token)
  return string.format('%.0f', math.max(ttl, math.ceil((token - clock) / 1000)) + retention)
end

local last, ending = 0, 0
if value then
  local token, after, holder = string.match(value, '^([1-9]%d*):([012]):(.+)$')
  if holder == owner then
    -- A reply was lost, or a driver sent the call twice: the same grant again. Nothing grows: a full server runs it.
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    redis.call('PEXPIRE', KEYS[2], fence_life(token))
    return {1, tonumber(token), tonumber(after)}
  end
  if holder then
    local left = redis.call('PTTL', KEYS[1])
    -- One more: a key lives through the millisecond of its expiry, and a waiter that came back in it would be early.
    return {0, left < 0 and -1 or left + 1}
  end
  if not string.match(value, '^[1-9]%d*$') then
    return {-1}
  end
  last, ending = tonumber(value), 1
end

local fence = redis.call('GET', KEYS[2])
if fence then
  if not string.match(fence, '^[1-9]%d*$') then
    return {-2}
  end
  if not value then
    ending = 2
  end
  last = math.max(last, tonumber(fence))
end
if last >= 9007199254740990 then
  return {-3}
end

local token = math.max(clock, last + 1)
local text = string.format('%.0f', token)
-- The first write is one that grows: a server out of memory refuses it, and nothing is written.
redis.call('SET', KEYS[2], text, 'PX', fence_life(token))
redis.call('SET', KEYS[1], text .. ':' .. ending .. ':' .. owner, 'PX', ARGV[2])
return {1, token, ending}
