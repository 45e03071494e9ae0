-- Procrastinate: one table. Jobs with the same lock run one at a time.
select
    id::text as key,
    queue_name as queue,
    args::text as body,
    case
        when status::text = 'doing' then 'in_progress'
        when status::text = 'failed' then 'dead'
        when scheduled_at > now() then 'delayed'
        else 'ready'
    end as state,
    null::bigint as added_at,
    (extract(epoch from scheduled_at) * 1000)::bigint as visible_at,
    least(9, greatest(0, priority)) as priority,
    case when status::text = 'failed' then 'failed in Procrastinate' end as dead,
    lock as message_group,
    jsonb_build_object('procrastinate-task', task_name, 'procrastinate-id', id::text) as attributes
from {table}
where status::text in ('todo', 'doing', 'failed')
