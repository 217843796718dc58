-- Prevents: a start on a server that evicts, takes no writes, or refuses the very commands that the store needs.
--
-- ARGV  for each command that the store needs: the number of its words, and the words; none of them is run
-- Reply {commands the user may not run, what INFO says or nil}
local missing, place = {}, 1
-- Servers before Redis 7.0 have no such function; they are refused for their version.
if redis.acl_check_cmd then
  while place < #ARGV do
    local last = place + ARGV[place]
    if not redis.acl_check_cmd(unpack(ARGV, place + 1, last)) then
      table.insert(missing, ARGV[place + 1])
    end
    place = last + 1
  end
end
local info = redis.pcall('INFO')
if type(info) ~= 'string' then
  info = false
end
return {missing, info}
