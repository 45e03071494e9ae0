"""Rows of tenants: status, weight, quota state, backlog, leases, dead letters, throttled calls."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from tenantq.console.not_granted import NOT_GRANTED, NOT_GRANTED_TEXT, NotGranted, known
from tenantq.console.rate_history import TREND, RateHistory, rate_cell, trend_cell
from tenantq.console.table import Cell, Column, Row, count_cell, row_of
from tenantq.domain.formatting import plural, show_size
from tenantq.domain.names import dead_letter_name
from tenantq.wire.queues import QueueReply
from tenantq.wire.tenants import TenantFigures, TenantReply, UsageReply

TenantHealth = Literal["good", "warning", "critical"]
SortKey = Literal["name", "quota", "backlog", "in_flight", "dead", "throttled", "weight"]

SORT_KEYS: Final[tuple[SortKey, ...]] = ("name", "quota", "backlog", "in_flight", "dead", "throttled", "weight")
NUMBERED: Final = 9
"""Tenants that a digit key selects."""

TENANT_COLUMNS: Final = (
    Column("number", " #", 2, 3, lambda one, chosen, _: Cell(f"{'▸' if chosen else ' '}{one.number if one.number <= NUMBERED else ''}", "" if chosen else "dim")),
    Column("name", "tenant", 12, 0, lambda one, *_: Cell(one.name), width_max=32),
    Column("status", "status", 9, 6, lambda one, _, rates: _status_cell(one, rates)),
    Column("quota", "quota", 10, 1, lambda one, *_: health_cell(one.health)),
    Column("backlog", "backlog", 7, 2, lambda one, *_: count_cell(one.backlog), right=True),
    Column("in_flight", "leased", 6, 9, lambda one, *_: count_cell(one.in_flight), right=True),
    Column("dead", "dead", 5, 4, lambda one, *_: count_cell(one.dead, "warning"), right=True),
    Column("throttled", "429s", 5, 5, lambda one, *_: count_cell(one.throttled, "warning"), right=True),
    Column("weight", "weight", 6, 11, lambda one, *_: count_cell(one.weight), right=True),
    Column("bytes", "stored", 9, 12, lambda one, *_: count_cell(one.bytes, show=show_size), right=True),
    Column("queues", "queues", 6, 13, lambda one, *_: count_cell(one.queues), right=True),
    Column("added", "added/s", 7, 7, lambda one, _, rates: rate_cell(rates.last(f"{one.name}/added")), right=True),
    Column("done", "done/s", 6, 10, lambda one, _, rates: rate_cell(rates.last(f"{one.name}/done")), right=True),
    Column("trend", "trend", TREND, 8, lambda one, _, rates: trend_cell(rates.all(f"{one.name}/added"))),
)  # fmt: skip
_MARKS: Final[dict[TenantHealth, str]] = {"good": "●", "warning": "▲", "critical": "■"}
_RANK: Final[dict[TenantHealth, int]] = {"good": 0, "warning": 1, "critical": 2}


class TenantSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a tenant. None means that the credential may not see it, or that an older server does not report it."""

    name: str
    number: int  # by name, from 1
    status: str | None = None
    on_hold: bool = False
    weight: int | None = None
    health: TenantHealth | None = None
    backlog: int | None = None
    in_flight: int | None = None
    dead: int | None = None
    throttled: int | None = None
    bytes: int | None = None
    queues: int | None = None
    added: int | None = None  # in total
    acked: int | None = None


def summaries(tenants: Iterable[TenantReply]) -> list[TenantSummary]:
    """Return the summaries of a list of tenants, as a platform administrator gets it."""
    return [
        TenantSummary(name=tenant.name, number=number, **_facts(tenant), **_figures(tenant.figures))
        for number, tenant in enumerate(sorted(tenants, key=lambda one: one.name), 1)
    ]


def own_summary(
    name: str,
    tenant: TenantReply | NotGranted = NOT_GRANTED,
    usage: UsageReply | NotGranted = NOT_GRANTED,
    queues: Sequence[QueueReply] | NotGranted = NOT_GRANTED,
) -> TenantSummary:
    """Return the summary of the only tenant that a credential can see, from the parts that it may read."""
    fields: dict[str, Any] = {} if isinstance(tenant, NotGranted) else _facts(tenant)
    if (used := known(usage)) is not None:
        fields |= {name: used.quotas[name].used for name in ("backlog", "in_flight", "queues")}
        fields |= {"health": used.state, "throttled": used.throttled_total, "bytes": used.quotas["stored_bytes"].used}
    if (found := known(queues)) is not None:
        added, acked = sum(one.added_total for one in found), sum(one.acked_total for one in found)
        fields |= {"dead": dead_in(found), "added": added, "acked": acked}
    return TenantSummary(name=name, number=1, **fields)


def _facts(tenant: TenantReply) -> dict[str, Any]:
    return {"status": tenant.status, "on_hold": tenant.hold is not None, "weight": tenant.config.get("weight")}


def _figures(figures: TenantFigures | None) -> dict[str, Any]:
    if figures is None:
        return {}
    counts = {name: getattr(figures, name) for name in ("backlog", "in_flight", "dead", "queues")}
    totals = {"throttled": figures.throttled_total, "added": figures.added_total, "acked": figures.acked_total}
    return counts | totals | {"health": figures.state, "bytes": figures.stored_bytes}


def dead_in(queues: Sequence[QueueReply]) -> int:
    """Return the number of messages in dead-letter queues."""
    letters = {queue.config.get("dead_letter") or dead_letter_name(queue.name) for queue in queues}
    return sum(queue.ready + queue.delayed + queue.in_flight for queue in queues if queue.name in letters)


def arrange(tenants: Iterable[TenantSummary], sort: SortKey, *, reverse: bool, text: str) -> list[TenantSummary]:
    """Return the tenants whose name or status contains ``text``, sorted; numbers from large to small, equal ones by name."""
    wanted = text.strip().lower()
    shown = [
        tenant
        for tenant in tenants
        if wanted in tenant.name or (tenant.status is not None and wanted in _status(tenant))
    ]
    shown.sort(key=lambda tenant: tenant.name)
    if sort == "name":
        return shown[::-1] if reverse else shown
    shown.sort(key=lambda tenant: _sort_value(tenant, sort), reverse=not reverse)
    return shown


def tenant_row(tenant: TenantSummary, rates: RateHistory | None = None, *, chosen: bool = False) -> Row:
    """Return the row of a tenant."""
    return row_of(TENANT_COLUMNS, tenant.name, tenant, chosen, rates or RateHistory())


def tenant_totals(tenants: Iterable[TenantSummary]) -> dict[str, int]:
    """Return the counters behind the rates of tenants."""
    return {
        f"{one.name}/{what}": total
        for one in tenants
        for what, total in (("added", one.added), ("done", one.acked))
        if total is not None
    }


def is_idle(tenant: TenantSummary, rates: RateHistory) -> bool:
    """Return whether a tenant stores nothing and did nothing while the console watched."""
    seen = [*rates.all(f"{tenant.name}/added"), *rates.all(f"{tenant.name}/done")]
    return tenant.backlog == 0 and bool(seen) and not any(seen)


def health_cell(health: TenantHealth | None) -> Cell:
    """Return the state of quotas as mark, word and tone."""
    if health is None:
        return Cell(NOT_GRANTED_TEXT, "dim")
    return Cell(f"{_MARKS[health]} {health}", health)


def summary_line(tenants: Sequence[TenantSummary]) -> str:
    """Return a line with the number of tenants, and of those that need attention."""
    texts = [plural(len(tenants), "tenant")]
    for health in ("critical", "warning"):
        count = sum(tenant.health == health for tenant in tenants)
        if count:
            texts.append(f"{count:,} {health}")
    suspended = sum(tenant.status == "suspended" for tenant in tenants)
    return ", ".join([*texts, *([f"{suspended:,} suspended"] if suspended else [])])


def _status(tenant: TenantSummary) -> str:
    return f"{tenant.status}, held" if tenant.on_hold else str(tenant.status)


def _status_cell(tenant: TenantSummary, rates: RateHistory) -> Cell:
    if tenant.status is None:
        return Cell(NOT_GRANTED_TEXT, "dim")
    if tenant.status == "suspended":
        return Cell("suspended", "warning")
    if tenant.on_hold:
        return Cell("on hold", "warning")
    return Cell("idle", "dim") if is_idle(tenant, rates) else Cell(str(tenant.status), "good")


def _sort_value(tenant: TenantSummary, sort: SortKey) -> int:
    if sort == "quota":
        return -1 if tenant.health is None else _RANK[tenant.health]
    value = getattr(tenant, sort)
    return value if isinstance(value, int) else -1
