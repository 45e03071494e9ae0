-- River: one table. Priority 1 goes first; discarded jobs used up their attempts.
select
    id::text as key,
    queue,
    args::text as body,
    case state::text
        when 'available' then 'ready'
        when 'running' then 'in_progress'
        when 'discarded' then 'dead'
        else 'delayed'
    end as state,
    (extract(epoch from created_at) * 1000)::bigint as added_at,
    (extract(epoch from scheduled_at) * 1000)::bigint as visible_at,
    greatest(0, 4 - priority) as priority,
    case when state::text = 'discarded'
        then coalesce(errors[array_upper(errors, 1)] ->> 'error', 'discarded in River')
    end as dead,
    null as message_group,
    jsonb_build_object('river-kind', kind, 'river-id', id::text) as attributes
from {table}
where state::text in ('available', 'scheduled', 'retryable', 'running', 'pending', 'discarded')
