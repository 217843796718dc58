-- Prevents: a listing that shows what was released, or the expiry of one lock beside the owner of another.
--
-- KEYS  the lock
-- Reply {value, ms left} of a lock that is held    nil otherwise
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  -- A list or a hash of somebody else's is no lock; any other refusal is the caller's to hear.
  if string.find(value.err, 'WRONGTYPE', 1, true) then
    return nil
  end
  return value
end
-- Without the queue behind it: who waits holds nothing.
local held = value and string.match(value, '^[1-9]%d*:[012]:[^%z]+')
if not held then
  return nil
end
return {held, redis.call('PTTL', KEYS[1])}
