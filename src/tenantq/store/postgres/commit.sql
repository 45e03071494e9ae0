-- One round, in one transaction. The first statement checks and takes the shard's row, and notes that for the rest of the
-- transaction. The others do nothing without this note, so all can be sent together. Sent twice, they have the same result.
-- The shard's row is read once: while another transaction stays open, it has many dead versions.

-- name: take_time
SELECT set_config('statement_timeout', %(statement_ms)s, true);

-- name: fence
WITH taken AS (
    UPDATE {schema}.shards SET
        commit = %(number)s, nonce = %(nonce)b, pid = pg_backend_pid(),
        until = clock_timestamp() + %(lease_ms)s::bigint * interval '1 ms',
        beat = %(beat)b,
        beat_at = coalesce(clock_timestamp() - %(age_ms)s::bigint * interval '1 ms', beat_at)
    WHERE
        shard = '{shard}' AND epoch = %(epoch)s AND word = %(word)s
        AND (commit = %(previous)s OR (commit = %(number)s AND nonce = %(nonce)b))
    RETURNING encode(nonce, 'hex') AS nonce
)
SELECT set_config('tenantq.round', nonce, true) FROM taken;

-- name: delete_ranges
DELETE FROM {rows} AS r USING unnest(%(lowers)b::bytea[], %(uppers)b::bytea[]) AS range (lower, upper)
WHERE
    r.key >= range.lower AND r.key < range.upper
    AND current_setting('tenantq.round', true) = encode(%(nonce)b::bytea, 'hex');

-- name: delete_rows
DELETE FROM {rows} AS r
WHERE
    r.key = ANY (%(keys)b::bytea[])
    AND current_setting('tenantq.round', true) = encode(%(nonce)b::bytea, 'hex');

-- name: put_rows
INSERT INTO {rows} (shard, key, value)
SELECT '{shard}', new.key, new.value FROM unnest(%(keys)b::bytea[], %(values)b::bytea[]) AS new (key, value)
WHERE current_setting('tenantq.round', true) = encode(%(nonce)b::bytea, 'hex')
ON CONFLICT (key) DO UPDATE SET value = excluded.value;
