-- name: claim
-- Claim the shard, if it has no owner or the owner's lease has expired. A claim that is sent twice keeps its epoch. Returns no
-- row if another server owns the shard. It always writes, so its commit makes durable whatever it finds.
INSERT INTO {schema}.shards AS s (shard, id, epoch, word, holder, pid, lease_ms, until, commit)
VALUES (
    '{shard}', %(id)s, 1, %(word)s, %(holder)s, pg_backend_pid(), %(lease_ms)s,
    clock_timestamp() + %(lease_ms)s::bigint * interval '1 ms', 0
)
ON CONFLICT (shard) DO UPDATE SET
    epoch = CASE WHEN s.word = excluded.word THEN s.epoch ELSE s.epoch + 1 END,
    word = excluded.word, holder = excluded.holder, pid = excluded.pid, lease_ms = excluded.lease_ms, until = excluded.until
WHERE s.word = excluded.word OR s.holder = '' OR s.until <= clock_timestamp()
RETURNING
    epoch, commit, coalesce(beat, ''), id,
    (extract(epoch FROM greatest(clock_timestamp() - beat_at, interval '0')) * 1000)::bigint;

-- name: shorten_lease
-- A lease that a server with a clock ahead of this one wrote must not last longer than it says.
UPDATE {schema}.shards SET until = clock_timestamp() + lease_ms * interval '1 ms'
WHERE shard = '{shard}' AND until > clock_timestamp() + lease_ms * interval '1 ms';

-- name: read_state
SELECT
    epoch, word, commit, holder, id, coalesce(beat, ''),
    (extract(epoch FROM greatest(clock_timestamp() - beat_at, interval '0')) * 1000)::bigint,
    greatest(0, extract(epoch FROM until - clock_timestamp()) * 1000)::bigint
FROM {schema}.shards WHERE shard = '{shard}';

-- name: hold
-- Renew the lease; lease_ms 0 gives the shard up. A commit of this owner that is in progress renews it as well: do not wait for
-- its lock. Returns no row then, nor if the shard has another owner or an earlier commit.
UPDATE {schema}.shards AS s SET
    until = clock_timestamp() + %(lease_ms)s::bigint * interval '1 ms',
    holder = CASE WHEN %(lease_ms)s::bigint = 0 THEN '' ELSE s.holder END,
    -- A later commit has stored a later beat.
    beat = CASE WHEN s.commit = %(commit)s AND %(beat)s::bytea <> '' THEN %(beat)s::bytea ELSE s.beat END,
    beat_at = CASE WHEN s.commit = %(commit)s AND %(age_ms)s::bigint IS NOT NULL
        THEN clock_timestamp() - %(age_ms)s::bigint * interval '1 ms' ELSE s.beat_at END
FROM (SELECT shard FROM {schema}.shards WHERE shard = '{shard}' FOR NO KEY UPDATE SKIP LOCKED) AS free
WHERE
    s.shard = free.shard AND s.epoch = %(epoch)s AND s.word = %(word)s
    AND (s.commit >= %(commit)s OR %(lease_ms)s::bigint = 0)
RETURNING s.commit;

-- name: end_silent_owner
-- An owner that was paused in the middle of a commit holds the lock of its row: end its backend once its lease is long over.
SELECT pg_terminate_backend(a.pid)
FROM {schema}.shards AS s JOIN pg_stat_activity AS a ON a.pid = s.pid
WHERE
    s.shard = '{shard}' AND a.datname = current_database() AND a.usename = current_user AND a.backend_start < s.until
    AND a.pid <> pg_backend_pid() AND s.until + %(patience_ms)s::bigint * interval '1 ms' < clock_timestamp();
