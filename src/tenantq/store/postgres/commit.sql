-- One round, in one transaction. The first statement checks and takes the shard's row; each other one does nothing unless the
-- row shows this commit, so all can be sent together. Sent twice, they do the same again.

-- name: fence
UPDATE {schema}.shards SET
    commit = %(number)s, nonce = %(nonce)b, pid = pg_backend_pid(),
    until = clock_timestamp() + %(lease_ms)s::bigint * interval '1 ms',
    beat = %(beat)b,
    beat_at = coalesce(clock_timestamp() - %(age_ms)s::bigint * interval '1 ms', beat_at)
WHERE
    shard = '{shard}' AND epoch = %(epoch)s AND word = %(word)s
    AND (commit = %(previous)s OR (commit = %(number)s AND nonce = %(nonce)b));

-- name: delete_ranges
DELETE FROM {rows} AS r USING unnest(%(lowers)b::bytea[], %(uppers)b::bytea[]) AS range (lower, upper)
WHERE
    r.key >= range.lower AND r.key < range.upper
    AND (SELECT commit = %(number)s AND nonce = %(nonce)b AND epoch = %(epoch)s AND word = %(word)s FROM {schema}.shards WHERE shard = '{shard}');

-- name: delete_rows
DELETE FROM {rows} AS r
WHERE
    r.key = ANY (%(keys)b::bytea[])
    AND (SELECT commit = %(number)s AND nonce = %(nonce)b AND epoch = %(epoch)s AND word = %(word)s FROM {schema}.shards WHERE shard = '{shard}');

-- name: put_rows
INSERT INTO {rows} (shard, key, value)
SELECT '{shard}', new.key, new.value FROM unnest(%(keys)b::bytea[], %(values)b::bytea[]) AS new (key, value)
WHERE (SELECT commit = %(number)s AND nonce = %(nonce)b AND epoch = %(epoch)s AND word = %(word)s FROM {schema}.shards WHERE shard = '{shard}')
ON CONFLICT (key) DO UPDATE SET value = excluded.value;
