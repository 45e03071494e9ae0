-- name: read_cluster
SELECT id, format, shards, regions FROM {schema}.cluster;

-- name: create_cluster
INSERT INTO {schema}.cluster (id, format, shards, regions)
VALUES (%(id)s, %(format)s, %(shards)s, %(regions)s) ON CONFLICT DO NOTHING;

-- name: grow_cluster
UPDATE {schema}.cluster SET shards = %(shards)s WHERE format = ANY(%(formats)s) AND shards < %(shards)s;

-- name: raise_format
UPDATE {schema}.cluster SET format = %(format)s;

-- name: touch_cluster
-- Take the lock of the cluster's row. The write also makes a repeated change durable that is found already there.
UPDATE {schema}.cluster SET touched_at = clock_timestamp() RETURNING directory_version;

-- name: read_members
SELECT member FROM {schema}.members;

-- name: write_member
INSERT INTO {schema}.members AS m (id, member, beat)
SELECT %(id)s, %(member)b, 1 FROM {schema}.cluster WHERE id = %(cluster)s
ON CONFLICT (id) DO UPDATE SET member = excluded.member, beat = m.beat + 1;

-- name: take_assigner
INSERT INTO {schema}.assigner AS a (one, member, until)
SELECT true, %(id)s, clock_timestamp() + %(assigner_ms)s::bigint * interval '1 ms'
FROM {schema}.cluster WHERE id = %(cluster)s
ON CONFLICT (one) DO UPDATE SET member = excluded.member, until = excluded.until
WHERE a.member = excluded.member OR a.until <= clock_timestamp();

-- name: read_all
-- Everything that a heartbeat reads, at one moment.
SELECT
    (SELECT array_agg(ARRAY[id, format, shards::text, regions, directory_version::text]) FROM {schema}.cluster),
    (SELECT array_agg(member) FROM {schema}.members),
    (SELECT array_agg(ARRAY[id, beat::text]) FROM {schema}.members),
    (SELECT array_agg(ARRAY[shard::text, member]) FROM {schema}.assignment),
    (SELECT member FROM {schema}.assigner),
    (SELECT array_agg(member) FROM {schema}.drains);

-- name: is_served
SELECT EXISTS (SELECT FROM {schema}.assigner WHERE until > clock_timestamp());

-- name: delete_members
DELETE FROM {schema}.members WHERE id = ANY (%(ids)s);

-- name: delete_drains
DELETE FROM {schema}.drains WHERE member = ANY (%(ids)s);

-- name: leave_assigner
DELETE FROM {schema}.assigner WHERE member = ANY (%(ids)s);

-- name: add_drain
INSERT INTO {schema}.drains (member) VALUES (%(id)s) ON CONFLICT DO NOTHING;

-- name: lock_assigner
-- Whether the sender is still the assigner. Its lease does not move to another member before this transaction ends.
SELECT member FROM {schema}.assigner WHERE until > clock_timestamp() FOR SHARE;

-- name: assign
INSERT INTO {schema}.assignment (shard, member) SELECT * FROM unnest(%(shards)s::integer[], %(members)s::text[])
ON CONFLICT (shard) DO UPDATE SET member = excluded.member;

-- name: shared_value
INSERT INTO {schema}.shared (name, value) VALUES (%(name)s, %(value)b) ON CONFLICT DO NOTHING;

-- name: read_shared_values
SELECT name, value FROM {schema}.shared;

-- name: remove_shared
DELETE FROM {schema}.shared WHERE name = %(name)s;

-- name: read_shared_value
SELECT value FROM {schema}.shared WHERE name = %(name)s;
