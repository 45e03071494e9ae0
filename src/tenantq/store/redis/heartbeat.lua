#!lua flags=allow-oom
-- Write a member's row, take or renew the assigner's lease if it is free or its own, and read all rows of the cluster.
--
-- KEYS: 1 cluster, 2 members, 3 beats, 4 assignment, 5 assigner, 6 directory version, 7 drains.
-- ARGV: 1 member id, 2 its row, 3 assigner lease in ms, 4 the id of its cluster.
-- Returns: cluster, members, beats and assignment as HGETALL does, the assigner, the directory version, the members to drain.
-- If the store has another cluster or none, only that is returned, and nothing is written.

local cluster = redis.call('HGETALL', KEYS[1])
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[4] then
    return { cluster }
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('HINCRBY', KEYS[3], ARGV[1], 1)
local assigner = redis.call('GET', KEYS[5])
if not assigner or assigner == ARGV[1] then
    assigner = ARGV[1]
    redis.call('SET', KEYS[5], assigner, 'PX', ARGV[3])
end
return {
    cluster, redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3]),
    redis.call('HGETALL', KEYS[4]), assigner, redis.call('GET', KEYS[6]) or '0', redis.call('SMEMBERS', KEYS[7])
}
