"""Rows and lines about a tenant: queues, quotas, limits, encryption, settings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tenantq.console.not_granted import NOT_GRANTED_TEXT, NotGranted
from tenantq.console.rate_history import TREND, RateHistory, rate_cell, show_rate, sparkline, trend_cell
from tenantq.console.table import Cell, Column, Row, count_cell, minute_of, row_of, show_count, text_cell
from tenantq.console.tenant_rows import health_cell
from tenantq.domain.formatting import dotted, plural, printable, show_age, show_size
from tenantq.wire.queues import QueueReply, WorkerItem
from tenantq.wire.tenants import EncryptionReply, PlanItem, TenantReply, UsageItem, UsageReply

QUEUE_COLUMNS: Final = (
    Column("name", "queue", 10, 0, lambda queue, *_: Cell(queue.name), width_max=40),
    Column("status", "state", 8, 3, lambda queue, *_: Cell(queue.status, "dim" if queue.status == "active" else "warning")),
    Column("ready", "ready", 5, 1, lambda queue, *_: count_cell(queue.ready), right=True),
    Column("delayed", "delayed", 7, 10, lambda queue, *_: count_cell(queue.delayed), right=True),
    Column("in_flight", "leased", 6, 2, lambda queue, *_: count_cell(queue.in_flight), right=True),
    Column("dead", "dead", 5, 8, lambda queue, *_: count_cell(queue.dead, "warning"), right=True),
    Column("workers", "workers", 7, 5, lambda queue, _, workers: count_cell(workers.get(queue.name, 0) if workers is not None else None), right=True),
    Column("bytes", "stored", 9, 11, lambda queue, *_: count_cell(queue.bytes, show=show_size), right=True),
    Column("oldest", "oldest", 6, 4, lambda queue, *_: text_cell(queue.oldest_age_ms and show_age(queue.oldest_age_ms)), right=True),
    Column("added", "added/s", 7, 6, lambda queue, rates, _: rate_cell(rates.last(f"{queue.name}/added")), right=True),
    Column("done", "done/s", 6, 7, lambda queue, rates, _: rate_cell(rates.last(f"{queue.name}/done")), right=True),
    Column("trend", "trend", TREND, 9, lambda queue, rates, _: trend_cell(rates.all(f"{queue.name}/added"))),
)  # fmt: skip
_BYTE_QUOTAS: Final = ("stored_bytes",)
_BAR: Final = 10
TENANT: Final = "*"
"""The name of the rates of all queues together. No queue can have this name."""


def totals(queues: Iterable[QueueReply]) -> dict[str, int]:
    """Return the counters behind the rates, per queue and for all queues."""
    found: dict[str, int] = {f"{TENANT}/added": 0, f"{TENANT}/done": 0}
    for queue in queues:
        found[f"{queue.name}/added"], found[f"{queue.name}/done"] = queue.added_total, queue.acked_total
        found[f"{TENANT}/added"] += queue.added_total
        found[f"{TENANT}/done"] += queue.acked_total
    return found


def filtered(queues: Iterable[QueueReply], text: str) -> list[QueueReply]:
    """Return the queues whose name or state contains ``text``, by name."""
    text = text.strip().lower()
    return [one for one in sorted(queues, key=lambda one: one.name) if text in one.name.lower() or text in one.status]


def queue_row(queue: QueueReply, rates: RateHistory, workers: Mapping[str, int] | None = None) -> Row:
    """Return the row of a queue. ``workers`` counts them by queue; None: unknown."""
    return row_of(QUEUE_COLUMNS, queue.name, queue, rates, workers)


def rate_line(rates: RateHistory, width: int) -> str:
    """Return a tenant's current rates with their recent history."""
    names = {what: f"{TENANT}/{what}" for what in ("added", "done")}
    return "  ".join(
        f"{what} {show_rate(rates.last(name))}/s {sparkline(rates.all(name), width)}".rstrip()
        for what, name in names.items()
    )


def quota_rows(usage: UsageReply | NotGranted) -> list[Row]:
    """Return a row for each quota."""
    if isinstance(usage, NotGranted):
        return [row_of(QUOTA_COLUMNS, "quotas", "quotas", None)]
    return [row_of(QUOTA_COLUMNS, name, name, item) for name, item in usage.quotas.items()]


def limited_quotas(usage: UsageReply | NotGranted) -> list[str]:
    """Return a line with a bar for each quota with a limit, the most used first."""
    if isinstance(usage, NotGranted):
        return [f"quotas: {NOT_GRANTED_TEXT}"]
    limited = [(name, item) for name, item in usage.quotas.items() if item.limit is not None]
    limited.sort(key=lambda pair: -_share(pair[1]))
    lines: list[str] = []
    for name, item in limited:
        of = f"{_amount(name, item.used)} of {_amount(name, item.limit or 0)}"
        lines.append(f"{bar(_share(item), _BAR)} {_share(item):>3}% {name.replace('_', ' ')}, {of}")
    return lines or ["no quotas are set"]


def bar(percent: int, width: int) -> str:
    """Return a bar that is full at 100 percent."""
    full = min(width, percent * width // 100)
    return "█" * full + "░" * (width - full)


def rate_limits(config: Mapping[str, Any]) -> str:
    """Return a tenant's rate limits in one line."""
    limits = config.get("limits") or {}
    parts: list[str] = []
    for kind in ("write", "read"):
        rate = limits.get(kind) or {}
        ops, volume = rate.get("ops_per_sec"), rate.get("bytes_per_sec")
        texts = [*([f"{show_count(ops)}/s"] if ops else []), *([f"{show_size(volume)}/s"] if volume else [])]
        if texts:
            parts.append(f"{kind} {' and '.join(texts)}")
    return ", ".join(parts) or "no rate limits"


def encryption_state(encryption: EncryptionReply | NotGranted | None) -> str:
    """Return in a few words whether messages are encrypted."""
    if encryption is None or isinstance(encryption, NotGranted):
        return encryption_line(encryption)
    return f"encrypted, key {encryption.key_state}" if encryption.enabled else "not encrypted"


def encryption_line(encryption: EncryptionReply | NotGranted | None) -> str:
    """Return whether messages are encrypted, with the state of the key."""
    if encryption is None:
        return "encryption: …"
    if isinstance(encryption, NotGranted):
        return f"encryption: {NOT_GRANTED_TEXT}"
    if not encryption.enabled:
        kept = f", {len(encryption.data_keys)} older data keys" if encryption.data_keys else ""
        return f"encryption: off{kept}"
    wrapped = f", wrapped by {encryption.key}" if encryption.key else ""
    return f"encryption: on, key {encryption.key_state}, {plural(len(encryption.data_keys), 'data key')}{wrapped}"


def worker_rows(workers: Iterable[WorkerItem], now_ms: int) -> list[Row]:
    """Return a row for each worker."""
    return [row_of(WORKER_COLUMNS, f"{one.worker} {one.principal} {one.remote}", one, now_ms) for one in workers]


def setting_rows(config: Mapping[str, Any]) -> list[Row]:
    """Return a row for each setting, nested ones with dotted names."""
    return [row_of(SETTING_COLUMNS, name, name, value) for name, value in dotted(config)]


def facts_line(tenant: TenantReply | NotGranted) -> str:
    """Return status, weight and limits of a tenant."""
    if isinstance(tenant, NotGranted):
        return NOT_GRANTED_TEXT
    held = ", under legal hold" if tenant.hold is not None else ""
    plan = f"plan {tenant.config['plan']}, " if tenant.config.get("plan") else ""
    return f"{tenant.status}{held}, {plan}weight {tenant.config.get('weight', 1)}, {rate_limits(tenant.config)}"


def plan_lines(plans: Iterable[PlanItem], current: str | None) -> list[str]:
    """Return a line for each plan: name, limits, description. A mark shows the tenant's plan."""
    lines: list[str] = []
    for one in plans:
        plan, mark = one.plan, "▸" if one.name == current else " "
        quotas = [
            f"{_amount(name, limit)} {name.replace('_', ' ')}"
            for name, limit in plan["quotas"].items()
            if limit and name != "soft_percent"
        ]
        parts = [", ".join(quotas) or "no quotas", rate_limits(plan), *(["encrypted"] if plan["encrypted"] else [])]
        lines.append(f"{mark} {one.name}: {'; '.join(parts)}. {plan['description']}".rstrip())
    return lines


def truncation_note(shown: Sequence[object], most: int, total: int | None) -> str:
    """Return a note if not everything is shown, else an empty text."""
    if len(shown) < most:
        return ""
    return f"first {most:,} of {total:,}" if total is not None and total > most else f"first {most:,}"


def _limit_cell(name: str, item: UsageItem | None) -> Cell:
    if item is None or item.limit is None:
        return Cell("no limit" if item else "-", "dim")
    return Cell(_amount(name, item.limit))


def _use_cell(item: UsageItem | None) -> Cell:
    if item is None or item.limit is None:
        return Cell("" if item else NOT_GRANTED_TEXT, "dim")
    return Cell(f"{bar(_share(item), _BAR)} {_share(item)}%", item.state)


def _share(item: UsageItem) -> int:
    """Return the percentage of a quota that is used; 100 where nothing is allowed."""
    if item.limit is None:
        return 0
    return item.used * 100 // item.limit if item.limit else 100


def _amount(name: str, count: int) -> str:
    return show_size(count) if name in _BYTE_QUOTAS else f"{count:,}"


def _setting(name: str, value: Any) -> Cell:
    if value is None or value in ("", [], (), {}):
        return Cell("-", "dim")
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, int):
        return Cell(f"{show_age(value)} ({value:,} ms)" if name.endswith("_ms") else f"{value:,}")
    if isinstance(value, list | tuple):
        return Cell(", ".join(map(str, value)))
    return Cell(str(value))


SETTING_COLUMNS: Final = (
    Column("name", "setting", 24, 0, lambda name, _: Cell(name), width_max=40),
    Column("value", "value", 20, 1, _setting, width_max=100),
)
WORKER_COLUMNS: Final = (
    Column("worker", "worker", 16, 0, lambda one, _: Cell(printable(one.worker)), width_max=36),
    Column("seen", "last seen", 9, 1, lambda one, now_ms: Cell(show_age(max(0, now_ms - one.last_seen))), right=True),
    Column("since", "since (UTC)", 16, 2, lambda one, _: Cell(minute_of(one.since))),
    Column("principal", "principal", 20, 3, lambda one, _: Cell(printable(one.principal)), width_max=40),
    Column("version", "version", 10, 4, lambda one, _: Cell(printable(one.version)), width_max=24),
    Column("remote", "address", 12, 5, lambda one, _: Cell(one.remote, "dim"), width_max=20),
)
QUOTA_COLUMNS: Final = (
    Column("name", "quota", 18, 0, lambda name, _: Cell(name.replace("_", " "))),
    Column("used", "used", 10, 1, lambda name, item: text_cell(item and _amount(name, item.used)), width_max=16, right=True),
    Column("limit", "limit", 10, 2, _limit_cell, width_max=16, right=True),
    Column("use", "use", 17, 3, lambda _, item: _use_cell(item)),
    Column("state", "state", 10, 4, lambda _, item: health_cell(item and item.state)),
    Column("resets", "resets (UTC)", 16, 5, lambda _, item: Cell(minute_of(item.resets_at) if item and item.resets_at else "", "dim")),
)  # fmt: skip
