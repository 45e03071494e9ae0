#!lua flags=allow-oom
-- Go on owning the shard, or give it up; and see that the last commit that was confirmed is there.
--
-- KEYS: 1 the shard's state. ARGV: 1 epoch, 2 lease in ms, 0 gives it up, 3 beat or nothing, 4 the last commit that must be there.
-- Returns: 'done'; 'fenced' and who owns the shard; 'lost' and the commit that is stored.

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
if ARGV[3] ~= '' and state[2] == ARGV[4] then  -- a later commit has brought a later one
    redis.call('HSET', KEYS[1], 'beat', ARGV[3])
end
return {'done', ''}
