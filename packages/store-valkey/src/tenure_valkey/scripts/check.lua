-- Prevents: a start on a server that evicts locks, takes no writes, or refuses the very commands that a lock needs.
--
-- ARGV  two keys inside the prefix: of a lock that nobody takes, and of its fence. Nothing is read or written there.
-- Reply {commands the user may not run, what INFO says or nil}
local lock, fence = ARGV[1], ARGV[2]
local missing = {}
-- Servers before Redis 7.0 have no such function; they are refused for their version.
if redis.acl_check_cmd then
  local needed = {
    {'TIME'},
    {'GET', lock},
    {'GET', fence},
    {'SET', lock, '1', 'PX', '1'},
    {'SET', fence, '1', 'PX', '1'},
    {'PTTL', lock},
    {'PEXPIRE', lock, '1'},
    {'PEXPIRE', fence, '1'},
    {'PEXPIREAT', fence, '1'},
  }
  for _, command in ipairs(needed) do
    if not redis.acl_check_cmd(unpack(command)) then
      table.insert(missing, command[1])
    end
  end
end
local info = redis.pcall('INFO')
if type(info) ~= 'string' then
  info = false
end
return {missing, info}
