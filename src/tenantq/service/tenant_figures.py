"""Figures of a tenant: backlog, leases, and usage of its quotas."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from tenantq.domain.quotas import QuotaState, state_of
from tenantq.engine.queue_state import TenantState
from tenantq.engine.shard import Shard
from tenantq.engine.usage import reset_time
from tenantq.engine.work_counters import ACKED, ADDED
from tenantq.wire.tenants import TenantFigures, UsageItem

_STATES: Final[tuple[QuotaState, ...]] = ("good", "warning", "critical")


class OtherPartUsage(Protocol):
    """What the part of a tenant on another shard uses."""

    used: dict[str, int]
    hour: int
    day: int


def used_by_other_parts(tenant: TenantState, wall_ms: int, parts: Iterable[OtherPartUsage]) -> Counter[str]:
    """Return how much of each counted quota the other parts of a tenant use, in the hour and day of this one."""
    hour, day = tenant.usage.windows(wall_ms)
    total: Counter[str] = Counter()
    for part in parts:
        windows = {"messages_per_hour": part.hour >= hour.number, "messages_per_day": part.day >= day.number}
        total.update({name: used for name, used in part.used.items() if windows.get(name, True)})
    return total


def usage_items(shard: Shard, tenant: TenantState, parts: Iterable[OtherPartUsage] = ()) -> dict[str, UsageItem]:
    """Return each counted quota and its use, of all parts. Raises StoreFailed or Closed if the shard has stopped."""
    shard.loop.check_open()
    quotas, usage = tenant.config.quotas, tenant.usage
    items: dict[str, UsageItem] = {}
    wall_ms = shard.state.wall_ms()
    used_by_others = used_by_other_parts(tenant, wall_ms, parts)
    for name, used_here in usage.used(wall_ms).items():
        used, limit = used_here + used_by_others[name], getattr(quotas, name)
        items[name] = UsageItem(
            limit=limit,
            used=used,
            remaining=None if limit is None else max(0, limit - used),
            state=state_of(used, limit, quotas.soft_percent),
            resets_at=reset_time(usage, name, wall_ms),
        )
    return items


def worst(states: Iterable[QuotaState]) -> QuotaState:
    """Return the state of the quota closest to its limit."""
    return _STATES[max(map(_STATES.index, states), default=0)]


def figures_of(shard: Shard, tenant: TenantState) -> TenantFigures:
    """Return the figures of a tenant. Its queues are counted only if it has messages."""
    usage, quotas = tenant.usage, tenant.config.quotas
    used = usage.used(shard.state.wall_ms())
    return TenantFigures(
        state=worst(state_of(count, getattr(quotas, name), quotas.soft_percent) for name, count in used.items()),
        backlog=usage.messages,
        in_flight=usage.in_flight,
        dead=_dead(shard, tenant) if usage.messages else 0,
        stored_bytes=usage.bytes,
        queues=usage.queues,
        throttled_total=tenant.counters.throttled if tenant.has_counters else 0,
        added_total=_total(tenant, ADDED),
        acked_total=_total(tenant, ACKED),
    )


def summed_figures(tenant: TenantState, own: TenantFigures, parts: Iterable[TenantFigures]) -> TenantFigures:
    """Return the figures of all parts of a tenant together."""
    all_parts = (own, *parts)
    names = [one.name for one in msgspec.structs.fields(TenantFigures) if one.name != "state"]
    sums = {name: sum(getattr(one, name) for one in all_parts) for name in names}
    quotas = tenant.config.quotas
    levels = ("backlog", "in_flight", "stored_bytes", "queues")
    states = (state_of(sums[name], getattr(quotas, name), quotas.soft_percent) for name in levels)
    return msgspec.structs.replace(own, **sums, state=worst((own.state, *states)))


def _total(tenant: TenantState, place: int) -> int:
    """Return a counter of all queues, deleted ones included."""
    return sum(queue.work.totals[place] for queue in tenant.queues.values()) + tenant.usage.dropped.totals[place]


def _dead(shard: Shard, tenant: TenantState) -> int:
    """Return how many messages are in queues that take the dead letters of another, which may be deleted."""
    name_of, queues = shard.state.catalog.dead_letter_name, tenant.queues.values()
    letters = {name for queue in queues if (name := name_of(queue)) != queue.name}
    return sum(queue.messages for queue in queues if queue.system_made or queue.name in letters)
