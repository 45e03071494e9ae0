#!lua flags=allow-oom
-- Delete what was kept for moments that nobody reads any more, if the sender still owns the shard.
--
-- KEYS: 1 the shard's state, 2 the set of what is kept, then the names. ARGV: 1 epoch.
-- Returns: 'done'; 'fenced' and who owns the shard.

local state = redis.call('HMGET', KEYS[1], 'epoch', 'holder')
if state[1] ~= ARGV[1] then
    return {'fenced', state[2] or ''}
end
for place = 3, #KEYS do
    redis.call('UNLINK', KEYS[place])
    redis.call('SREM', KEYS[2], KEYS[place])
end
return {'done', ''}
