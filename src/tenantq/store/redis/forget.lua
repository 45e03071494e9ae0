#!lua flags=allow-oom
-- Delete keys that were kept for closed snapshots, if the sender still owns the shard.
--
-- KEYS: 1 the shard's state, 2 the set of kept keys, then their names. ARGV: 1 epoch.
-- Returns: 'done'; 'fenced' and the owner.

local state = redis.call('HMGET', KEYS[1], 'epoch', 'holder')
if state[1] ~= ARGV[1] then
    return {'fenced', state[2] or ''}
end
for place = 3, #KEYS do
    redis.call('UNLINK', KEYS[place])
    redis.call('SREM', KEYS[2], KEYS[place])
end
return {'done', ''}
