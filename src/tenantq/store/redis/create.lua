#!lua flags=allow-oom
-- Create the cluster unless it exists, and raise its number of shards.
--
-- KEYS: 1 cluster. ARGV: 1 an id for a new cluster, 2 format, 3 shards, 0: the default, 4 regions, 5 the default number of shards,
-- then the formats that the sender reads.
-- Returns: the cluster as HGETALL does.

local reads = {}
for at = 6, #ARGV do
    reads[ARGV[at]] = true
end
if redis.call('EXISTS', KEYS[1]) == 0 then
    local shards = ARGV[3] == '0' and ARGV[5] or ARGV[3]
    redis.call('HSET', KEYS[1], 'id', ARGV[1], 'format', ARGV[2], 'shards', shards, 'regions', ARGV[4])
elseif reads[redis.call('HGET', KEYS[1], 'format')] and tonumber(ARGV[3]) > tonumber(redis.call('HGET', KEYS[1], 'shards')) then
    redis.call('HSET', KEYS[1], 'shards', ARGV[3])
end
return redis.call('HGETALL', KEYS[1])
