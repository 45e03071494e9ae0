-- Move the next elements of a list or sorted set aside, out of reach of the old system's workers.
--
-- KEYS: 1 the list or sorted set, 2 where its elements go: a list. ARGV: 1 'head', 'tail' or 'zset', 2 how many.
-- Returns: what is aside now, the oldest first: elements of an earlier run that was interrupted come first.
-- An element aside is: a unique word, its score or '-', and the element, with a space between.

local aside = redis.call('LLEN', KEYS[2])
local wanted = tonumber(ARGV[2]) - aside
local time = redis.call('TIME')

local function put_aside(number, score, element)
    redis.call('RPUSH', KEYS[2], time[1] .. '.' .. time[2] .. '-' .. number .. ' ' .. score .. ' ' .. element)
end

if wanted > 0 and ARGV[1] == 'zset' then
    local found = redis.call('ZRANGE', KEYS[1], 0, wanted - 1, 'WITHSCORES')
    for at = 1, #found, 2 do
        put_aside(at, found[at + 1], found[at])
        redis.call('ZREM', KEYS[1], found[at])
    end
elseif wanted > 0 then
    local pop = ARGV[1] == 'tail' and 'RPOP' or 'LPOP'
    for number = 1, wanted do
        local element = redis.call(pop, KEYS[1])
        if not element then
            break
        end
        put_aside(number, '-', element)
    end
end
return redis.call('LRANGE', KEYS[2], 0, ARGV[2] - 1)
