-- Prevents: a client that may not subscribe and asks again at once, for ever, as glide does.
--
-- KEYS  a lock                                                      ARGV  a channel on which grants of it are told
-- Reply 1 the user may subscribe to the channel    0 it may not
local command = string.find(ARGV[1], '{', 1, true) and 'SSUBSCRIBE' or 'SUBSCRIBE'
return redis.acl_check_cmd(command, ARGV[1]) and 1 or 0
