#!lua flags=allow-oom
-- Delete a member's row, and give up the assigner's lease if it is the member's own.
--
-- KEYS: 1 members, 2 beats, 3 drains, 4 assigner. ARGV: 1 member id.
-- Returns: nothing.

redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('SREM', KEYS[3], ARGV[1])
if redis.call('GET', KEYS[4]) == ARGV[1] then
    redis.call('DEL', KEYS[4])
end
