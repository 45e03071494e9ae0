-- usage_hourly and slo_daily straight from the segments, as DuckDB would be asked for them. Purges and drops of queues are followed,
-- deleted tenants and removed leases are not: a made-up journal has none.

CREATE OR REPLACE TEMP TABLE resets AS
SELECT tenant, queue, list({'seq': seq, 'n': n, 'ts': ts, 'op': op} ORDER BY seq, n) AS resets
FROM journal WHERE op IN ('purge', 'drop_queue') AND outcome = 'ok' GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE queue_hours AS
WITH changes AS (
    SELECT shard, seq, n, ts, tenant, queue,
        if(outcome = 'ok' AND principal <> 'system', count, 0) AS operations,
        if(op = 'add' AND outcome = 'ok', 1, 0) AS messages_in,
        if(op = 'poll' AND outcome = 'ok', 1, 0) AS messages_out,
        if(op = 'add' AND outcome = 'ok', bytes, 0) AS bytes_in,
        if(op = 'poll' AND outcome = 'ok', bytes, 0) AS bytes_out,
        if(outcome = 'refused', count, 0) AS refused,
        if(outcome = 'throttled', count, 0) AS throttled,
        if(outcome = 'denied', count, 0) AS denied,
        CASE WHEN op = 'add' AND outcome = 'ok' THEN 1
             WHEN (op IN ('ack', 'remove', 'redrive') AND outcome = 'ok') OR (op = 'expire' AND outcome = 'expired')
               OR (op = 'dead_letter' AND outcome = 'dead') THEN -1 ELSE 0 END AS messages,
        messages * bytes AS stored,
        CASE WHEN op = 'poll' AND outcome = 'ok' THEN 1
             WHEN (op IN ('ack', 'nack', 'release') AND outcome = 'ok') OR op = 'lease_expired' THEN -1 ELSE 0 END AS in_flight
    FROM journal
    UNION ALL
    SELECT shard, seq, n, ts, tenant, regexp_extract(details, '^to ([^:]*)', 1), 0, 0, 0, 0, 0, 0, 0, 0, 1, bytes, 0
    FROM journal WHERE op IN ('dead_letter', 'redrive') AND outcome IN ('ok', 'dead') AND message_id <> ''
), placed AS (
    SELECT changes.*, date_trunc('hour', ts) AS began,
        coalesce(len(list_filter(resets, lambda one: (one.seq, one.n) < (changes.seq, changes.n))), 0) AS epoch,
        epoch_ms(least(began + INTERVAL 1 HOUR, resets[epoch + 1].ts)) - epoch_ms(ts) AS left_ms
    FROM changes LEFT JOIN resets USING (tenant, queue)
), risen AS (
    SELECT *, sum(messages - in_flight) OVER level AS backlog_level, sum(in_flight) OVER level AS in_flight_level
    FROM placed WINDOW level AS (PARTITION BY tenant, queue, shard, epoch, began ORDER BY ts, seq)
)
SELECT tenant, queue, shard, epoch, began, sum(operations) AS operations, sum(messages_in) AS messages_in,
    sum(messages_out) AS messages_out, sum(bytes_in) AS bytes_in, sum(bytes_out) AS bytes_out, sum(refused) AS refused,
    sum(throttled) AS throttled, sum(denied) AS denied, sum(messages) AS messages_net, sum(stored) AS bytes_net,
    sum(in_flight) AS in_flight_net, sum(stored::HUGEINT * left_ms) AS byte_ms, max(backlog_level) AS backlog_top,
    max(in_flight_level) AS in_flight_top
FROM risen GROUP BY ALL;

CREATE OR REPLACE TEMP TABLE usage_hourly AS
WITH carried AS (
    SELECT queue_hours.*, resets[epoch + 1].ts AS epoch_end, lead(began) OVER hours AS next_at, max(began) OVER () AS newest,
        coalesce(sum(messages_net) OVER before, 0) AS messages_before,
        coalesce(sum(bytes_net) OVER before, 0) AS bytes_before,
        coalesce(sum(in_flight_net) OVER before, 0) AS in_flight_before
    FROM queue_hours LEFT JOIN resets USING (tenant, queue)
    WINDOW hours AS (PARTITION BY tenant, queue, shard, epoch ORDER BY began),
        before AS (PARTITION BY tenant, queue, shard, epoch ORDER BY began ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), active AS (
    SELECT tenant, queue, shard, began, operations, messages_in, messages_out, bytes_in, bytes_out, refused, throttled, denied,
        byte_ms + bytes_before::HUGEINT * (epoch_ms(least(began + INTERVAL 1 HOUR, epoch_end)) - epoch_ms(began)) AS byte_ms,
        if(epoch_end < began + INTERVAL 1 HOUR, 0, messages_before + messages_net) AS messages_stored,
        if(epoch_end < began + INTERVAL 1 HOUR, 0, bytes_before + bytes_net) AS bytes_stored,
        greatest(messages_before - in_flight_before, messages_before - in_flight_before + backlog_top, 0) AS peak_backlog,
        greatest(in_flight_before, in_flight_before + in_flight_top, 0) AS peak_in_flight
    FROM carried
), silent AS (
    SELECT tenant, queue, shard, messages_before + messages_net AS messages, bytes_before + bytes_net AS bytes,
        in_flight_before + in_flight_net AS in_flight, epoch_end,
        unnest(generate_series(began + INTERVAL 1 HOUR,
            least(coalesce(next_at - INTERVAL 1 HOUR, newest), date_trunc('hour', epoch_end)), INTERVAL 1 HOUR)) AS began
    FROM carried WHERE messages_before + messages_net <> 0 OR bytes_before + bytes_net <> 0
), whole AS (
    SELECT * FROM active
    UNION ALL
    SELECT tenant, queue, shard, began, 0, 0, 0, 0, 0, 0, 0, 0,
        bytes::HUGEINT * (epoch_ms(least(began + INTERVAL 1 HOUR, epoch_end)) - epoch_ms(began)),
        if(epoch_end < began + INTERVAL 1 HOUR, 0, messages), if(epoch_end < began + INTERVAL 1 HOUR, 0, bytes),
        greatest(messages - in_flight, 0), greatest(in_flight, 0)
    FROM silent
), per_shard AS (
    SELECT tenant, queue, shard, began, sum(COLUMNS(* EXCLUDE (tenant, queue, shard, began, peak_backlog, peak_in_flight))),
        max(peak_backlog) AS peak_backlog, max(peak_in_flight) AS peak_in_flight
    FROM whole GROUP BY tenant, queue, shard, began
)
SELECT tenant, queue, strftime(began, '%Y-%m-%d') AS date, strftime(began, '%H') AS hour,
    sum(COLUMNS(* EXCLUDE (tenant, queue, shard, began)))
FROM per_shard GROUP BY tenant, queue, began;

CREATE OR REPLACE TEMP TABLE slo_daily AS
WITH days AS (
    SELECT tenant, queue, strftime(ts, '%Y-%m-%d') AS date,
        count(*) FILTER (op = 'poll' AND outcome = 'ok') AS deliveries,
        quantile_cont(wait_ms, [0.5, 0.95, 0.99]) FILTER (op = 'poll' AND outcome = 'ok') AS waits,
        max(wait_ms) FILTER (op = 'poll' AND outcome = 'ok') AS wait_max_ms,
        count(*) FILTER ((op IN ('ack', 'nack') AND outcome = 'ok') OR op = 'lease_expired') AS settled,
        quantile_cont(process_ms, [0.5, 0.95, 0.99])
            FILTER ((op IN ('ack', 'nack') AND outcome = 'ok') OR op = 'lease_expired') AS times,
        max(process_ms) FILTER ((op IN ('ack', 'nack') AND outcome = 'ok') OR op = 'lease_expired') AS process_max_ms,
        count(*) FILTER (op = 'ack' AND outcome = 'ok') AS acked,
        count(*) FILTER (op = 'dead_letter' AND outcome = 'dead') AS dead,
        count(*) FILTER (op = 'expire' AND outcome = 'expired') AS expired,
        count(*) FILTER (op = 'poll' AND outcome = 'ok' AND wait_ms > 60000) AS slow
    FROM journal
    WHERE queue <> '' AND op IN ('poll', 'ack', 'nack', 'lease_expired', 'dead_letter', 'expire') GROUP BY ALL
), lives AS (
    SELECT tenant, message_id, max(queue) FILTER (op = 'add') AS queue, min(ts) FILTER (op = 'add') AS added_at,
        max({'seq': seq, 'place': if(op IN ('nack', 'release', 'lease_expired'), -1, n), 'op': op, 'ts': ts,
             'queue': if(op IN ('dead_letter', 'redrive'), regexp_extract(details, '^to ([^:]*)', 1), queue)}) AS last
    FROM journal
    WHERE message_id <> '' AND outcome IN ('ok', 'expired', 'dead')
        AND op IN ('add', 'poll', 'nack', 'release', 'lease_expired', 'ack', 'remove', 'expire', 'dead_letter', 'redrive')
    GROUP BY tenant, message_id
), ended AS (
    SELECT lives.tenant, lives.queue, added_at,
        if(last.op IN ('ack', 'remove', 'expire'), NULL,
            list_filter(resets, lambda one: (one.seq, one.n) > (last.seq, last.place))[1]) AS cut,
        if(cut IS NOT NULL, struct_extract(cut, 'ts'), if(last.op IN ('ack', 'remove', 'expire', 'dead_letter'), last.ts, NULL)) AS left_at
    FROM lives LEFT JOIN resets ON resets.tenant = lives.tenant AND resets.queue = lives.last.queue
), newest AS (SELECT max(ts) AS as_of FROM journal), held AS (
    SELECT tenant, queue, added_at, as_of, unnest(generate_series(added_at::DATE,
        if(left_at IS NULL, as_of::DATE, left_at::DATE - 1), INTERVAL 1 DAY))::DATE AS day
    FROM ended, newest WHERE queue IS NOT NULL AND if(left_at IS NULL, as_of::DATE, left_at::DATE - 1) >= added_at::DATE
), oldest AS (
    SELECT tenant, queue, strftime(day, '%Y-%m-%d') AS date,
        max(greatest(least(epoch_ms(day + 1), epoch_ms(as_of)) - epoch_ms(added_at), 0)) AS oldest_age_ms
    FROM held GROUP BY ALL
)
SELECT tenant, queue, date, coalesce(deliveries, 0) AS deliveries, waits[1] AS wait_p50_ms, waits[2] AS wait_p95_ms,
    waits[3] AS wait_p99_ms, wait_max_ms, coalesce(settled, 0) AS settled, times[1] AS process_p50_ms, times[2] AS process_p95_ms,
    times[3] AS process_p99_ms, process_max_ms, coalesce(oldest_age_ms, 0) AS oldest_age_ms, coalesce(acked, 0) AS acked,
    coalesce(dead, 0) AS dead, coalesce(expired, 0) AS expired, coalesce(slow, 0) AS slow
FROM days FULL JOIN oldest USING (tenant, queue, date);
