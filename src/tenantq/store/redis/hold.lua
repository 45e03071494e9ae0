#!lua flags=allow-oom
-- Renew the ownership of the shard, or give it up, and check that the last confirmed commit exists.
--
-- KEYS: 1 the shard's state. ARGV: 1 epoch, 2 lease in ms, 0 gives it up, 3 beat or empty, 4 the last confirmed commit.
-- Returns: 'done'; 'fenced' and the owner; 'lost' and the stored commit.

local state = redis.call('HMGET', KEYS[1], 'epoch', 'commit', 'holder')
if state[1] ~= ARGV[1] then
    return {'fenced', state[3] or ''}
elseif tonumber(state[2]) < tonumber(ARGV[4]) then
    return {'lost', state[2]}
end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], 'until_ms', string.format('%.0f', now_ms + tonumber(ARGV[2])))
if tonumber(ARGV[2]) == 0 then
    redis.call('HSET', KEYS[1], 'holder', '')
end
if ARGV[3] ~= '' and state[2] == ARGV[4] then  -- otherwise a later commit has stored a later beat
    redis.call('HSET', KEYS[1], 'beat', ARGV[3])
end
return {'done', ''}
