"""What a tenant uses, counted in the same rounds as its messages, and the room its quotas leave.

Messages, bytes and leases are sums over the tenant's queues. Only adds and deliveries make them grow, and those count
their queue at once; what makes them shrink is counted when the round ends. So within a round nothing is ever overshot.
Messages added in an hour and in a day are stored beside, in the batch that adds them. A window only moves forward: a
clock that is set back does not open a new one. Only where it had been more than two days ahead, the window follows it back,
with its count, so that a clock that was wrong for a moment does not hold a window for years.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.domain.quotas import DAY_MS, HOUR_MS, QuotaState, state_of
from tenantq.errors import QuotaExceeded, TenantqError, TooLarge

if TYPE_CHECKING:
    from tenantq.engine.queue_state import QueueState, TenantState

COUNTED: Final = ("messages_per_hour", "messages_per_day", "backlog", "stored_bytes", "in_flight", "queues")
"""The quotas that the shard counts; the others are about a single message or consumer."""

_FAR_DAYS: Final = 2
_REARM_PERCENT: Final = 10  # a warning comes again only after use fell this far below the soft limit
_RANK: Final[dict[QuotaState, int]] = {"good": 0, "warning": 1, "critical": 2}


class WindowsRow(msgspec.Struct, frozen=True, array_like=True):
    """The stored part of a tenant's use."""

    hour: int  # hours since 1970
    hour_messages: int
    day: int
    day_messages: int


class Usage:
    """One tenant's use."""

    __slots__ = ("bytes", "day", "day_messages", "hour", "hour_messages", "in_flight", "messages", "queues", "told")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.in_flight = 0
        self.queues = 0
        self.hour = 0
        self.hour_messages = 0
        self.day = 0
        self.day_messages = 0
        self.told: dict[str, QuotaState] = {}  # the state of each quota as last told; not there: good

    def roll(self, wall_ms: int) -> None:
        """Begin a new hour or day if it is time."""
        hour, day = wall_ms // HOUR_MS, wall_ms // DAY_MS
        if hour > self.hour:
            self.hour, self.hour_messages = hour, 0
            self.told.pop("messages_per_hour", None)
        elif hour and self.hour - hour > _FAR_DAYS * 24:
            self.hour = hour  # the clock had been far ahead: the window comes back with it, and what was counted stays
        if day > self.day:
            self.day, self.day_messages = day, 0
            self.told.pop("messages_per_day", None)
        elif day and self.day - day > _FAR_DAYS:
            self.day = day

    def added(self, count: int, wall_ms: int) -> None:
        """Count messages that were added."""
        self.roll(wall_ms)
        self.hour_messages += count
        self.day_messages += count

    def pack(self) -> bytes:
        """Return the stored part."""
        return msgspec.msgpack.encode(WindowsRow(self.hour, self.hour_messages, self.day, self.day_messages))

    def load(self, value: bytes) -> None:
        """Take over the stored part."""
        row = msgspec.msgpack.decode(value, type=WindowsRow)
        self.hour, self.hour_messages, self.day, self.day_messages = (
            row.hour,
            row.hour_messages,
            row.day,
            row.day_messages,
        )

    def used(self, wall_ms: int) -> dict[str, int]:
        """Return what is used of each quota that is counted here."""
        self.roll(wall_ms)
        return dict(
            zip(
                COUNTED,
                (self.hour_messages, self.day_messages, self.messages, self.bytes, self.in_flight, self.queues),
                strict=True,
            )
        )


def count(queue: QueueState) -> None:
    """Bring the tenant's sums up to date with one of its queues."""
    usage = queue.tenant.usage
    messages, bytes, in_flight = queue.messages, queue.bytes, queue.in_flight
    before = queue.counted
    usage.messages += messages - before[0]
    usage.bytes += bytes - before[1]
    usage.in_flight += in_flight - before[2]
    queue.counted = (messages, bytes, in_flight)


class Capacity:
    """What a tenant's quotas leave for messages to be added now."""

    __slots__ = ("_bytes", "_message_bytes", "_messages", "_tenant", "_wall_ms")

    def __init__(self, tenant: TenantState, wall_ms: int) -> None:
        usage, quotas = tenant.usage, tenant.config.quotas
        usage.roll(wall_ms)
        self._tenant = tenant
        self._wall_ms = wall_ms
        self._message_bytes = quotas.message_bytes
        self._bytes = None if quotas.stored_bytes is None else quotas.stored_bytes - usage.bytes
        self._messages = [
            (limit - used, name, limit)
            for limit, used, name in (
                (quotas.messages_per_hour, usage.hour_messages, "messages_per_hour"),
                (quotas.messages_per_day, usage.day_messages, "messages_per_day"),
                (quotas.backlog, usage.messages, "backlog"),
            )
            if limit is not None
        ]

    def take(self, size: int, taken: int, taken_bytes: int) -> TenantqError | None:
        """Tell why one more message of ``size`` bytes has no room, after so many were let in already; None: it has."""
        tenant = self._tenant
        if self._message_bytes is not None and size > self._message_bytes:
            text = f"quotas.message_bytes: {size} bytes, this tenant's limit for one message is {self._message_bytes}"
            return TooLarge(text, tenant=tenant.name)
        for left, name, limit in self._messages:
            if taken >= left:
                return exceeded(tenant, name, limit, limit - left + taken, self._wall_ms)
        if self._bytes is not None and taken_bytes + size > self._bytes:
            limit = tenant.config.quotas.stored_bytes or 0
            return exceeded(tenant, "stored_bytes", limit, limit - self._bytes + taken_bytes, self._wall_ms)
        return None


def exceeded(tenant: TenantState, name: str, limit: int, current: int, wall_ms: int) -> QuotaExceeded:
    """Return the error for a quota that is used up."""
    resets_at = reset_time(tenant.usage, name)
    wait_ms = max(1, resets_at - wall_ms) if resets_at is not None else 1_000
    when = "it resets by itself" if resets_at is not None else "finish or remove work"
    text = f"quotas.{name}: {current} of {limit} used; {when}, or ask for a higher quota"
    return QuotaExceeded(text, limit=limit, current=current, retry_after_ms=wait_ms, tenant=tenant.name)


def reset_time(usage: Usage, name: str) -> int | None:
    """Return when a quota's window ends, by the wall clock; None: it has none."""
    if name == "messages_per_hour":
        return (usage.hour + 1) * HOUR_MS
    if name == "messages_per_day":
        return (usage.day + 1) * DAY_MS
    return None


def risen(tenant: TenantState, wall_ms: int) -> list[tuple[str, QuotaState, int, int]]:
    """Return (quota, state, used, limit) of each that has just become worse, and remember that it was told."""
    quotas, usage = tenant.config.quotas, tenant.usage
    told = usage.told
    news: list[tuple[str, QuotaState, int, int]] = []
    for name, used in usage.used(wall_ms).items():
        limit = getattr(quotas, name)
        if limit is None:
            told.pop(name, None)
            continue
        state = state_of(used, limit, quotas.soft_percent)
        before = told.get(name, "good")
        if _RANK[state] > _RANK[before]:
            told[name] = state
            news.append((name, state, used, limit))
        elif state == "good" and used * 100 < limit * (quotas.soft_percent - _REARM_PERCENT):
            told.pop(name, None)
        elif state == "warning" and before == "critical" and used * 100 < limit * (100 - _REARM_PERCENT):
            told[name] = "warning"
    return news


def recall(tenant: TenantState) -> None:
    """Take what stands in the store as told: the rounds that brought it there have journaled it."""
    risen(tenant, 0)  # at a time before every window, so that none is left
