#!lua flags=no-writes
-- The replies to several commands, all at one moment.
--
-- KEYS: the keys of the commands. ARGV: for each command the number of its parts, then the parts: its name, the position of its
-- key in KEYS, and its other arguments.

local replies, at = {}, 1
while ARGV[at] do
    local last = at + tonumber(ARGV[at])
    replies[#replies + 1] = redis.call(ARGV[at + 1], KEYS[tonumber(ARGV[at + 2])], unpack(ARGV, at + 3, last))
    at = last + 1
end
return replies
