-- The tables of one cluster, in the schema that the setting postgres.name names. Run once, in one transaction.

-- name: find_format
-- Whether the schema exists, has our tables, or has tables of others.
SELECT
    to_regnamespace('{schema}') IS NOT NULL,
    to_regclass('{schema}.format') IS NOT NULL,
    EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('{schema}'));

-- name: read_format
SELECT format FROM {schema}.format;

-- name: lock_changes
-- Servers that start at the same time create tables one after the other.
SELECT pg_advisory_xact_lock(hashtextextended('tenantq {schema}', 0));

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS {schema};

-- name: create_tables
CREATE TABLE {schema}.format (format text NOT NULL);

-- One row per shard. Every commit of a shard updates its row, so pages are nearly empty at first: new versions of a row stay on
-- its page, and the index is not touched.
CREATE TABLE {schema}.shards (
    shard text PRIMARY KEY,
    id text NOT NULL,                        -- of this shard's rows: local files name it
    epoch bigint NOT NULL,                   -- grows with every owner
    word text NOT NULL,                      -- distinguishes owners with the same epoch, after a failover that lost one
    holder text NOT NULL,                    -- empty: none
    pid integer,                             -- the backend that commits for the owner
    lease_ms bigint NOT NULL,
    until timestamptz NOT NULL,              -- end of the lease, by the server's clock
    commit bigint NOT NULL,                  -- number of the last commit
    nonce bytea,                             -- of that commit
    beat bytea,
    beat_at timestamptz                      -- when the beat was taken, by the server's clock
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

-- All rows of all shards: the key is the number of the family in one byte, then the family's key. bytea is ordered byte by byte.
CREATE TABLE {schema}.rows (
    shard text NOT NULL,
    key bytea NOT NULL,
    value bytea NOT NULL
) PARTITION BY LIST (shard);
-- Bodies are often encrypted or compressed already: do not spend time on compressing them again.
ALTER TABLE {schema}.rows ALTER COLUMN value SET STORAGE EXTERNAL;

CREATE TABLE {schema}.cluster (
    id text NOT NULL,
    format text NOT NULL,
    shards integer NOT NULL,
    regions text NOT NULL,                   -- separated by commas
    directory_version bigint NOT NULL DEFAULT 0,
    touched_at timestamptz                   -- the last durable change
);
CREATE UNIQUE INDEX ON {schema}.cluster ((true));

CREATE TABLE {schema}.members (id text PRIMARY KEY, member bytea NOT NULL, beat bigint NOT NULL)
    WITH (fillfactor = 20, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
CREATE TABLE {schema}.drains (member text PRIMARY KEY);
CREATE TABLE {schema}.assignment (shard integer PRIMARY KEY, member text NOT NULL);
CREATE TABLE {schema}.assigner (one boolean PRIMARY KEY CHECK (one), member text NOT NULL, until timestamptz NOT NULL)
    WITH (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
CREATE TABLE {schema}.directory (tenant text PRIMARY KEY, version bigint NOT NULL, placement bytea NOT NULL);
CREATE TABLE {schema}.directory_log (version bigint PRIMARY KEY, tenant text NOT NULL, placement bytea);  -- NULL: removed
CREATE TABLE {schema}.shared (name text PRIMARY KEY, value bytea NOT NULL);

-- name: write_format
INSERT INTO {schema}.format (format) VALUES (%(format)s);
