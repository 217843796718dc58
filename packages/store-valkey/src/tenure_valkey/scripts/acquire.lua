-- Prevents: two callers read "free" and both take the lock; a token that comes back after a failover or a flush; a
-- lock that goes to whoever asks at the right moment, past those who have waited for it.
--
-- KEYS  the lock, its fence
-- ARGV  owner, ttl in ms, fence retention in ms; and, of one who waits: ms until its place ends, its channel
-- Reply {1, token, after} granted
--       {0, ms left or -1} held    {0, ms left or -1, the holder's token, how many listen} held, and the owner stands in
--                                  the queue, where a release passes it over if nobody listens to its channel here
--       {-1} foreign lock    {-2} foreign fence    {-3} used up
--       after: 0 unknown, 1 released, 2 expired
--
-- What is under the keys:
--   lock   "<token>:<after>:<owner><queue>" while it is held, "<token>" once it was released, nothing once it expired
--   queue  of each that waits, the longest first: NUL NUL owner NUL ttl in ms NUL end of its place in Unix ms NUL channel
--   fence  "<token>", the key's last one, or the last but those that releases granted a moment ago
-- No owner and no channel holds a NUL, and nothing in the queue is empty: two of them are where an entry begins.
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
  local token, after, holder, queue = string.match(value, '^([1-9]%d*):([012]):([^%z]+)(.*)$')
  if holder == owner then
    -- A reply was lost, a driver sent the call twice, or a release granted it: the same grant again. No first write
    -- that grows: a full server runs it.
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    local fence = redis.pcall('GET', KEYS[2])
    if not fence or type(fence) == 'string' and string.match(fence, '^%d+$') and tonumber(fence) < tonumber(token) then
      redis.call('SET', KEYS[2], token, 'PX', fence_life(token))
    else
      redis.call('PEXPIRE', KEYS[2], fence_life(token))
    end
    return {1, tonumber(token), tonumber(after)}
  end
  if holder then
    local left = redis.call('PTTL', KEYS[1])
    -- One more: a key lives through the millisecond of its expiry, and a waiter that came back in it would be early.
    left = left < 0 and -1 or left + 1
    if ARGV[4] then
      -- A place that the owner has stays where it is.
      local until_ms = string.format('%.0f', math.floor(clock / 1000) + ARGV[4])
      local entry = '\0\0' .. owner .. '\0' .. ARGV[2] .. '\0' .. until_ms .. '\0' .. ARGV[5]
      local from, to = string.find(queue, '\0\0' .. owner .. '\0', 1, true)
      if from then
        local next_one = string.find(queue, '\0\0', to, true)
        entry = string.sub(queue, 1, from - 1) .. entry .. (next_one and string.sub(queue, next_one) or '')
        value = string.sub(value, 1, #value - #queue)
      end
      value = value .. entry
      -- Some thousand places, for a renewal reads them all. A full server refuses to write, and then the owner polls.
      if #value <= 131072 and not redis.pcall('SET', KEYS[1], value, 'KEEPTTL').err then
        local count = string.find(ARGV[5], '{', 1, true) and 'SHARDNUMSUB' or 'NUMSUB'
        local listeners = redis.pcall('PUBSUB', count, ARGV[5])
        return {0, left, tonumber(token), listeners[2] or -1}
      end
    end
    return {0, left}
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
