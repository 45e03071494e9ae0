#!lua flags=allow-oom
-- Apply one batch, completely or not at all, if its sender still owns the shard.
--
-- KEYS: 1 the shard's state, then every key that the batch touches.
-- ARGV: 1 epoch, 2 the previous commit, 3 this commit, 4 lease in ms, 5 beat, 6 a random word for this batch, 7 the beat's
-- age in ms or empty, then steps: a name, the positions of two keys in KEYS, the number of arguments, and the arguments.
-- Returns: 'done'; 'again' if it was applied before; 'fenced' and the owner; 'lost' and the stored commit; 'other' and the
-- stored commit, if another batch has this one's number.
--
-- Nothing may fail after the first write, because Redis keeps the writes of a failed function. So the journal's record comes
-- first, since only that can be refused, and the function may exceed maxmemory: adds are refused before that (free_bytes).

local state = redis.call('HMGET', KEYS[1], 'epoch', 'commit', 'holder', 'batch')
if state[1] ~= ARGV[1] then
    return {'fenced', state[3] or ''}
elseif state[2] == ARGV[3] then
    return {state[4] == ARGV[6] and 'again' or 'other', state[2]}
elseif state[2] ~= ARGV[2] then
    return {'lost', state[2] or ''}
end

local RANGE_SLICE = 1000

local function delete_rows(rows, index, lower, upper)
    while true do
        local found = redis.call('ZRANGE', index, lower, upper, 'BYLEX', 'LIMIT', 0, RANGE_SLICE)
        if #found == 0 then
            return
        end
        redis.call('HDEL', rows, unpack(found))
        redis.call('ZREM', index, unpack(found))
    end
end

local function add_to_index(index, first, last, step)
    local scored = {}
    for at = first, last, step do
        scored[#scored + 1] = '0'
        scored[#scored + 1] = ARGV[at]
    end
    redis.call('ZADD', index, unpack(scored))
end

local at = 8
while ARGV[at] do
    local step, one, two = ARGV[at], KEYS[tonumber(ARGV[at + 1])], KEYS[tonumber(ARGV[at + 2])]
    local first, last = at + 4, at + 3 + tonumber(ARGV[at + 3])
    if step == 'journal' then
        redis.call('XADD', one, ARGV[first], 'r', ARGV[first + 1])
    elseif step == 'trim' then
        redis.call('XTRIM', one, 'MINID', '=', ARGV[first])
    elseif step == 'forget' then
        redis.call('XDEL', one, unpack(ARGV, first, last))
    elseif step == 'unlink' then
        redis.call('UNLINK', one, two)
    elseif step == 'keep' then  -- a snapshot still reads it: rename one to two, and note the name
        if redis.call('EXISTS', one) == 1 then
            redis.call('RENAME', one, two)
            redis.call('SADD', KEYS[tonumber(ARGV[first])], two)
        end
    elseif step == 'range' then
        delete_rows(one, two, ARGV[first], ARGV[first + 1])
    elseif step == 'places' then
        redis.call('ZREMRANGEBYLEX', one, ARGV[first], ARGV[first + 1])
    elseif step == 'delete' then
        if redis.call('HDEL', one, unpack(ARGV, first, last)) > 0 then
            redis.call('ZREM', two, unpack(ARGV, first, last))
        end
    elseif step == 'leave' then
        redis.call('ZREM', one, unpack(ARGV, first, last))
    elseif step == 'put' then
        if redis.call('HSET', one, unpack(ARGV, first, last)) > 0 then
            add_to_index(two, first, last, 2)
        end
    elseif step == 'enter' then
        add_to_index(one, first, last, 1)
    end
    at = last + 1
end

local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call(
    'HSET', KEYS[1], 'commit', ARGV[3], 'batch', ARGV[6], 'until_ms', string.format('%.0f', now_ms + tonumber(ARGV[4])), 'beat', ARGV[5]
)
if ARGV[7] ~= '' then
    redis.call('HSET', KEYS[1], 'beat_ms', string.format('%.0f', now_ms - tonumber(ARGV[7])))
end
return {'done', ''}
