#!lua flags=allow-oom
-- Change the directory row of one tenant. Every change gets the next version and one entry in the log of changes.
--
-- KEYS: 1 directory, 2 its version, 3 its log.
-- ARGV: 1 'place', 'move' or 'remove', 2 tenant, 3 the row without its version, 4 entries that the log keeps,
-- 5 the version that a row to move must have.
-- Returns: the row that is stored now, its version first; nothing if there is none, or if a row to move has another version.
-- Sent twice, 'place' and 'remove' change nothing; 'move' returns the row that it wrote the first time.

local row = redis.call('HGET', KEYS[1], ARGV[2])
local version = row and string.match(row, '^%d+')
if ARGV[1] == 'place' and row then
    return row
elseif ARGV[1] == 'move' and not (row and version == ARGV[5]) then
    return row and string.sub(row, #version + 2) == ARGV[3] and row or false
elseif ARGV[1] == 'remove' and not row then
    return false
end
local next = redis.call('INCR', KEYS[2])
local stored = next .. ' ' .. ARGV[3]
if ARGV[1] == 'remove' then
    redis.call('HDEL', KEYS[1], ARGV[2])
    stored = false
else
    redis.call('HSET', KEYS[1], ARGV[2], stored)
end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[4], next .. '-0', 't', ARGV[2], 'r', stored or '')
return stored
