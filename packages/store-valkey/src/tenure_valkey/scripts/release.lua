-- Prevents: A releases after its lock expired, and frees the one that B holds; who waits longest is passed by whoever
-- asks first, again and again; a lock is granted to a process that has gone.
--
-- KEYS  the lock                                                     ARGV  owner, fence retention in ms
-- Reply 1 released    0 the owner held no live lock; if it waited for one, it does so no more
--       {token, ms} released and granted to the one who waited longest, under this token; the key's fence is to hold
--                   it until then (keep_fence)
--
-- What stays under the key that nobody waits for is the token, for as long as the fence: it tells the next holder that
-- this one released. What a place in the queue is, acquire.lua tells.
-- One key, so that it runs at every stage of a slot's migration. No #!lua line, and PEXPIRE first: once a script has
-- written, a server out of memory lets it SET as well, and each value is shorter than the one before.
local value = redis.call('GET', KEYS[1])
if not value then
  return 0
end
local token, ending, holder, queue = string.match(value, '^([1-9]%d*):([012]):([^%z]+)(.*)$')
if not holder then
  return 0
end
local left = redis.call('PTTL', KEYS[1])
if holder ~= ARGV[1] then
  local from, to = string.find(queue, '\0\0' .. ARGV[1] .. '\0', 1, true)
  if from then
    local next_one = string.find(queue, '\0\0', to, true)
    if left > 0 then
      redis.call('PEXPIRE', KEYS[1], left)
    end
    local rest = string.sub(queue, 1, from - 1) .. (next_one and string.sub(queue, next_one) or '')
    redis.call('SET', KEYS[1], token .. ':' .. ending .. ':' .. holder .. rest, 'KEEPTTL')
  end
  return 0
end
local retention = tonumber(ARGV[2])
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]

local granted = math.max(clock, token + 1)
local begin = 1
while begin < #queue and granted < 9007199254740991 do
  local _, last, owner, ttl, until_ms, channel =
    string.find(queue, '^%z%z([^%z]+)%z(%d+)%z(%d+)%z([^%z]+)', begin)
  if not owner then
    break
  end
  begin = last + 1
  if until_ms * 1000 > clock then
    -- In a cluster a channel has the lock's braces, and so its slot; the others have none.
    local sharded = string.find(channel, '{', 1, true)
    -- Asked before, not learnt from PUBLISH: who still listens at a replica, as after a failover, is not counted there,
    -- hears the message all the same, and would believe in a grant that went on to the next one.
    local listeners = redis.pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel)
    if listeners.err then
      -- No right to ask. Nobody is known to hear of a grant, so there is none.
      break
    end
    if listeners[2] > 0 then
      local text = string.format('%.0f', granted)
      redis.call('PEXPIRE', KEYS[1], ttl)
      redis.call('SET', KEYS[1], text .. ':1:' .. owner .. string.sub(queue, begin), 'PX', ttl)
      local told = redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, text .. '\0' .. owner .. '\0' .. KEYS[1])
      if type(told) ~= 'number' then
        -- No right to publish. Nobody is told of a grant, so there is none.
        break
      end
      local ahead = math.ceil(granted / 1000)
      return {granted, math.max(math.floor(clock / 1000) + ttl, ahead) + retention}
    end
    -- Nobody listens there: its process has gone.
  end
end

local ahead = math.ceil((token * 1 - clock) / 1000)
-- One more than the fence: should the two expire apart, the key must not look expired.
local life = string.format('%.0f', math.max(left, ahead) + retention + 1)
redis.call('PEXPIRE', KEYS[1], life)
redis.call('SET', KEYS[1], token, 'PX', life)
return 1
