-- name: set_up
-- Set the parameters of a new session, and read what it needs to know about the server.
-- Scans must use the primary key whatever the statistics say: those of a queue are outdated at once.
SELECT
    current_setting('server_version_num')::integer,
    current_setting('server_encoding'),
    current_setting('fsync'),
    pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
    set_config('statement_timeout', %(statement_ms)s, false),
    set_config('lock_timeout', %(lock_ms)s, false),
    set_config('idle_in_transaction_session_timeout', %(idle_ms)s, false),
    set_config('synchronous_commit', %(synchronous_commit)s, false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('tcp_keepalives_idle', %(keepalive_s)s, false),
    set_config('tcp_keepalives_interval', %(keepalive_s)s, false),
    set_config('tcp_keepalives_count', '3', false),
    set_config('enable_seqscan', 'off', false),
    set_config('enable_bitmapscan', 'off', false),
    set_config('enable_hashjoin', 'off', false),
    set_config('enable_mergejoin', 'off', false),
    set_config('plan_cache_mode', 'force_generic_plan', false),
    set_config('jit', 'off', false);

-- name: look
SELECT current_setting('fsync'), pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean;
