#!lua flags=allow-oom
-- Renew the ownership of the shard, and check that the last confirmed commit exists, or give the shard up in any case.
--
-- KEYS: 1 the shard's state. ARGV: 1 epoch, 2 lease in ms, 0 gives it up, 3 beat or empty, 4 the last confirmed commit,
-- 5 the beat's age in ms, or empty.
-- Returns: 'done'; 'fenced' and the owner; 'lost' and the stored commit.

local state = redis.call('HMGET', KEYS[1], 'epoch', 'commit', 'holder')
if state[1] ~= ARGV[1] then
    return {'fenced', state[3] or ''}
elseif tonumber(ARGV[2]) > 0 and tonumber(state[2]) < tonumber(ARGV[4]) then
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
    if ARGV[5] ~= '' then
        redis.call('HSET', KEYS[1], 'beat_ms', string.format('%.0f', now_ms - tonumber(ARGV[5])))
    end
end
return {'done', ''}
