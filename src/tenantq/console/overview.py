"""All tenants, a line each: status, weight, how the quotas stand, backlog, leases, dead letters, throttled calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from tenantq.console.answers import NOT_GRANTED, NOT_GRANTED_TEXT, NotGranted, known
from tenantq.console.cells import Cell, Column, Row, Tone, count_cell, size
from tenantq.domain.names import dead_letter_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tenantq.wire import QueueReply, TenantReply, UsageReply

Health = Literal["good", "warning", "critical"]
SortKey = Literal["name", "quota", "backlog", "in_flight", "dead", "throttled", "weight"]

SORT_KEYS: Final[tuple[SortKey, ...]] = ("name", "quota", "backlog", "in_flight", "dead", "throttled", "weight")
NUMBERED: Final = 9
"""Tenants that a digit leads to."""

COLUMNS: Final = (
    Column("number", " #", 2, 3),
    Column("name", "tenant", 12, 0, width_max=32),
    Column("status", "status", 9, 6),
    Column("quota", "quota", 10, 1),
    Column("backlog", "backlog", 7, 2, right=True),
    Column("in_flight", "leased", 6, 7, right=True),
    Column("dead", "dead", 5, 4, right=True),
    Column("throttled", "429s", 5, 5, right=True),
    Column("weight", "weight", 6, 8, right=True),
    Column("bytes", "stored", 9, 9, right=True),
    Column("queues", "queues", 6, 10, right=True),
)
_MARKS: Final[dict[Health, str]] = {"good": "●", "warning": "▲", "critical": "■"}
_RANK: Final[dict[Health, int]] = {"good": 0, "warning": 1, "critical": 2}


class TenantLine(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant. None: the credential may not see it, or an older server does not tell."""

    name: str
    number: int  # in order of names, from 1; a digit leads to the first nine
    status: str | None = None
    on_hold: bool = False
    weight: int | None = None
    health: Health | None = None
    backlog: int | None = None
    in_flight: int | None = None
    dead: int | None = None
    throttled: int | None = None
    bytes: int | None = None
    queues: int | None = None


def listed_lines(tenants: Iterable[TenantReply]) -> list[TenantLine]:
    """Return the lines of a list of tenants, as a platform administrator gets it."""
    lines: list[TenantLine] = []
    for number, tenant in enumerate(sorted(tenants, key=lambda one: one.name), 1):
        figures = tenant.figures
        line = TenantLine(
            name=tenant.name,
            number=number,
            status=tenant.status,
            on_hold=tenant.hold is not None,
            weight=tenant.config.get("weight"),
        )
        if figures is not None:
            line = msgspec.structs.replace(
                line,
                health=figures.state,
                backlog=figures.backlog,
                in_flight=figures.in_flight,
                dead=figures.dead,
                throttled=figures.throttled_total,
                bytes=figures.stored_bytes,
                queues=figures.queues,
            )
        lines.append(line)
    return lines


def own_line(
    name: str,
    tenant: TenantReply | NotGranted = NOT_GRANTED,
    usage: UsageReply | NotGranted = NOT_GRANTED,
    queues: Sequence[QueueReply] | NotGranted = NOT_GRANTED,
) -> TenantLine:
    """Return the line of the only tenant a credential can see, of whatever it may see of it."""
    line = TenantLine(name=name, number=1)
    if (facts := known(tenant)) is not None:
        line = msgspec.structs.replace(
            line, status=facts.status, on_hold=facts.hold is not None, weight=facts.config.get("weight")
        )
    if (used := known(usage)) is not None:
        line = msgspec.structs.replace(
            line,
            health=used.state,
            backlog=used.quotas["backlog"].used,
            in_flight=used.quotas["in_flight"].used,
            throttled=used.throttled_total,
            bytes=used.quotas["stored_bytes"].used,
            queues=used.quotas["queues"].used,
        )
    if (found := known(queues)) is not None:
        line = msgspec.structs.replace(line, dead=dead_in(found))
    return line


def dead_in(queues: Sequence[QueueReply]) -> int:
    """Return how many messages are in queues that take the dead letters of another."""
    letters = {queue.config.get("dead_letter") or dead_letter_name(queue.name) for queue in queues}
    return sum(queue.ready + queue.delayed + queue.in_flight for queue in queues if queue.name in letters)


def arranged(lines: Iterable[TenantLine], sort: SortKey, *, reverse: bool, text: str) -> list[TenantLine]:
    """Return the lines whose name or status contains ``text``, in order; of equals, by name. Numbers go from large to small."""
    wanted = text.strip().lower()
    shown = [line for line in lines if wanted in line.name or (line.status is not None and wanted in _status(line))]
    shown.sort(key=lambda line: line.name)
    if sort == "name":
        return shown[::-1] if reverse else shown
    shown.sort(key=lambda line: _sort_value(line, sort), reverse=not reverse)
    return shown


def tenant_row(line: TenantLine, *, chosen: bool = False) -> Row:
    """Return what a tenant's row shows."""
    dead: Tone = "warning" if line.dead else ""
    throttled: Tone = "warning" if line.throttled else ""
    cells = {
        "number": Cell(
            f"{'▸' if chosen else ' '}{line.number if line.number <= NUMBERED else ''}", "" if chosen else "dim"
        ),
        "name": Cell(line.name),
        "status": Cell(NOT_GRANTED_TEXT, "dim") if line.status is None else _status_cell(line),
        "quota": health_cell(line.health),
        "backlog": _figure(line.backlog),
        "in_flight": _figure(line.in_flight),
        "dead": _figure(line.dead, dead),
        "throttled": _figure(line.throttled, throttled),
        "weight": Cell("-", "dim") if line.weight is None else Cell(str(line.weight)),
        "bytes": Cell("-", "dim") if line.bytes is None else Cell(size(line.bytes), "" if line.bytes else "dim"),
        "queues": _figure(line.queues),
    }
    return Row(line.name, cells)


def health_cell(health: Health | None) -> Cell:
    """Return how quotas stand, by mark, word and tone."""
    if health is None:
        return Cell(NOT_GRANTED_TEXT, "dim")
    return Cell(f"{_MARKS[health]} {health}", health)


def in_short(lines: Sequence[TenantLine]) -> str:
    """Return a line about all tenants: how many, and how many need somebody."""
    texts = [f"{len(lines):,} tenant{'' if len(lines) == 1 else 's'}"]
    for health in ("critical", "warning"):
        count = sum(line.health == health for line in lines)
        if count:
            texts.append(f"{count:,} {health}")
    suspended = sum(line.status == "suspended" for line in lines)
    return ", ".join([*texts, *([f"{suspended:,} suspended"] if suspended else [])])


def _figure(count: int | None, tone: Tone = "") -> Cell:
    return Cell("-", "dim") if count is None else count_cell(count, tone)


def _status(line: TenantLine) -> str:
    return f"{line.status}, held" if line.on_hold else str(line.status)


def _status_cell(line: TenantLine) -> Cell:
    if line.status == "suspended":
        return Cell("suspended", "warning")
    return Cell("on hold", "warning") if line.on_hold else Cell(str(line.status), "good")


def _sort_value(line: TenantLine, sort: SortKey) -> int:
    if sort == "quota":
        return -1 if line.health is None else _RANK[line.health]
    value = getattr(line, sort)
    return value if isinstance(value, int) else -1
