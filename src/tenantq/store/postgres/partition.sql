-- The partition of one shard. Servers use it directly, so they never touch or lock the partitions of other shards.

-- name: find_partition
SELECT to_regclass('{rows}') IS NOT NULL;

-- name: create_partition
-- Rows of a queue live shortly. So vacuum runs after a fixed number of dead rows, not after a share of the table, and at full
-- speed; it does not truncate the file, because that needs a lock that stops all commits of the shard. A fifth of each page
-- stays free, so that counters and leases are replaced on their page, without a new entry in the index.
CREATE TABLE {rows} PARTITION OF {schema}.rows (PRIMARY KEY (key)) FOR VALUES IN ('{shard}') WITH (
    fillfactor = 80,
    autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.5, vacuum_truncate = false,
    toast.autovacuum_vacuum_threshold = 5000, toast.autovacuum_vacuum_scale_factor = 0.02,
    toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = false
);

-- name: rewrite_partition
-- Write the table, its index and its large values to new files, and delete the old ones. Plain VACUUM would leave the bytes of
-- deleted rows in free parts of pages. A message says how many deleted rows had to stay for a snapshot.
VACUUM (FULL, VERBOSE) {rows};
