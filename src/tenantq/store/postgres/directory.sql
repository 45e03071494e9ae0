-- Every change of the directory holds the lock of the cluster's row, gets the next version and an entry in the log of changes.

-- name: next_version
UPDATE {schema}.cluster SET directory_version = directory_version + 1 RETURNING directory_version;

-- name: read_placement
SELECT version, placement FROM {schema}.directory WHERE tenant = %(tenant)s;

-- name: write_placement
INSERT INTO {schema}.directory (tenant, version, placement) VALUES (%(tenant)s, %(version)s, %(placement)b)
ON CONFLICT (tenant) DO UPDATE SET version = excluded.version, placement = excluded.placement;

-- name: delete_placement
DELETE FROM {schema}.directory WHERE tenant = %(tenant)s;

-- name: log_change
INSERT INTO {schema}.directory_log (version, tenant, placement) VALUES (%(version)s, %(tenant)s, %(placement)b);

-- name: trim_log
DELETE FROM {schema}.directory_log WHERE version <= %(version)s::bigint - %(kept)s::bigint;

-- name: read_directory
SELECT
    (SELECT directory_version FROM {schema}.cluster), d.tenant, d.version, d.placement
FROM (SELECT) AS one LEFT JOIN {schema}.directory AS d ON true;

-- name: read_log
SELECT version, tenant, placement FROM {schema}.directory_log WHERE version > %(since)s ORDER BY version LIMIT %(kept)s;
