#!lua flags=no-writes
-- Rows of one queue in order, with their values, in one call.
--
-- KEYS: 1 rows, 2 their index. ARGV: 1 lower, 2 upper, 3 maximum number, 4 bytes after which to stop; 0: no limit.
-- Returns: names, values, and 1 if more may follow. A name without a value is skipped: its index is wrong.

local SLICE = 500
local names = redis.call('ZRANGE', KEYS[2], ARGV[1], ARGV[2], 'BYLEX', 'LIMIT', 0, ARGV[3])
local bytes_max, bytes = tonumber(ARGV[4]), 0
local found, values = {}, {}
local slice = bytes_max > 0 and 16 or SLICE
for first = 1, #names, slice do
    local last = math.min(first + slice - 1, #names)
    local read = redis.call('HMGET', KEYS[1], unpack(names, first, last))
    for place = 1, last - first + 1 do
        if read[place] then
            found[#found + 1] = names[first + place - 1]
            values[#values + 1] = read[place]
            bytes = bytes + #read[place]
        end
    end
    if bytes_max > 0 and bytes >= bytes_max then
        return {found, values, (last < #names or #names == tonumber(ARGV[3])) and 1 or 0}
    end
end
return {found, values, #names == tonumber(ARGV[3]) and 1 or 0}
