#!lua flags=allow-oom
-- Change the assignment, if the sender is still the assigner, and delete the rows of members that are gone for good.
--
-- KEYS: 1 assigner, 2 assignment, 3 members, 4 beats, 5 drains.
-- ARGV: 1 who assigns, 2 number of changes, then shard and member of each, then the ids of members to delete.
-- Returns: 1 if it was done, 0 if another member assigns.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return 0
end
local last = 2 + 2 * tonumber(ARGV[2])
for at = 3, last, 2 do
    redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1])
end
for at = last + 1, #ARGV do
    redis.call('HDEL', KEYS[3], ARGV[at])
    redis.call('HDEL', KEYS[4], ARGV[at])
    redis.call('SREM', KEYS[5], ARGV[at])
end
return 1
