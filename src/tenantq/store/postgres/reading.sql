-- name: get_rows
SELECT key, value FROM {rows} WHERE key = ANY (%(keys)b::bytea[]);

-- name: scan_keys
SELECT key FROM {rows} WHERE key >= %(lower)b AND key < %(upper)b ORDER BY key LIMIT %(limit)s;

-- name: scan_rows
SELECT key, value FROM {rows} WHERE key >= %(lower)b AND key < %(upper)b ORDER BY key LIMIT %(limit)s;

-- name: scan_sized_rows
-- Rows up to the first one beyond bytes_max.
SELECT key, value FROM (
    SELECT
        key, value,
        sum(octet_length(value)) OVER (ORDER BY key ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING) AS bytes
    FROM (SELECT key, value FROM {rows} WHERE key >= %(lower)b AND key < %(upper)b ORDER BY key LIMIT %(limit)s) AS page
) AS sized
WHERE coalesce(bytes, 0) < %(bytes_max)s ORDER BY key;

-- name: last_row
SELECT key, value FROM {rows} WHERE key >= %(lower)b AND key < %(upper)b ORDER BY key DESC LIMIT 1;
