-- good_job: one table. A job that was started and not finished is in progress.
select
    id::text as key,
    coalesce(queue_name, 'default') as queue,
    serialized_params::text as body,
    case
        when performed_at is not null then 'in_progress'
        when scheduled_at > now() then 'delayed'
        else 'ready'
    end as state,
    (extract(epoch from created_at) * 1000)::bigint as added_at,
    (extract(epoch from scheduled_at) * 1000)::bigint as visible_at,
    0 as priority,
    null as dead,
    null as message_group,
    jsonb_build_object(
        'good-job-class', serialized_params ->> 'job_class', 'good-job-id', id::text, 'source-priority', priority::text
    ) as attributes
from {table}
where finished_at is null
