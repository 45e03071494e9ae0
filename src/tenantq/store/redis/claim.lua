#!lua flags=allow-oom
-- Claim the shard, if it has no owner or the owner's lease has expired. A claim that is sent twice because its first reply
-- was lost counts once: it keeps its epoch, so that its copy cannot fence it later.
--
-- KEYS: 1 the shard's state. ARGV: 1 the claimant, 2 lease in ms, 3 an id for a new store, 4 its format, 5 a random word.
-- Returns: 'owner', epoch, commit, beat, id, format, the beat's age in ms if known; or 'held', the owner, the rest of its lease in ms.

local state = redis.call('HMGET', KEYS[1], 'holder', 'until_ms', 'epoch', 'commit', 'beat', 'id', 'format', 'lease_ms', 'beat_ms')
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local left_ms = tonumber(state[2] or 0) - now_ms
local age_ms = state[9] and string.format('%.0f', math.max(0, now_ms - tonumber(state[9]))) or ''
if state[1] == ARGV[1] then
    return {'owner', state[3], state[4], state[5] or '', state[6], state[7], age_ms}
elseif state[1] and state[1] ~= '' and left_ms > 0 then
    local lease_ms = tonumber(state[8] or left_ms)
    if left_ms > lease_ms then  -- written by a primary whose clock was ahead
        left_ms = lease_ms
        redis.call('HSET', KEYS[1], 'until_ms', string.format('%.0f', now_ms + lease_ms))
    end
    return {'held', state[1], left_ms}
end
-- The number alone does not distinguish two owners: a failover may have lost the previous claim.
local epoch = string.format('%.0f:%s', tonumber(string.match(state[3] or '0', '^%d+')) + 1, ARGV[5])
local id, format = state[6] or ARGV[3], state[7] or ARGV[4]
redis.call(
    'HSET', KEYS[1], 'holder', ARGV[1], 'until_ms', string.format('%.0f', now_ms + tonumber(ARGV[2])), 'epoch', epoch,
    'lease_ms', ARGV[2], 'commit', state[4] or '0', 'id', id, 'format', format
)
return {'owner', epoch, state[4] or '0', state[5] or '', id, format, age_ms}
