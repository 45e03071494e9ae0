-- pgmq: a table per queue, q_<queue>. A message that was read is invisible until vt.
select
    msg_id::text as key,
    substr('{name}', 3) as queue,
    message::text as body,
    case when vt <= now() then 'ready' when read_ct > 0 then 'in_progress' else 'delayed' end as state,
    (extract(epoch from enqueued_at) * 1000)::bigint as added_at,
    (extract(epoch from vt) * 1000)::bigint as visible_at,
    0 as priority,
    null as dead,
    null as message_group,
    jsonb_build_object('source-reads', read_ct::text) as attributes
from {table}
where true
