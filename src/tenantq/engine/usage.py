"""The usage of a tenant, counted in the same rounds as its messages.

Messages, bytes and leases are sums over the tenant's queues. Adds and deliveries increase them and count their queue at
once. Everything that decreases them is counted when the round ends. So no quota is exceeded within a round.

Messages added in the current hour and day are stored in the batch that adds them. A window only moves forward: setting
the clock back does not open a new one. Only if the clock was more than two days ahead does the window follow it back,
with its count, so that a clock that was wrong for a short time does not hold a window for years.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tenantq.domain.limits import DAY_MS, HOUR_MS
from tenantq.domain.quotas import QuotaState

COUNTED: Final = ("messages_per_hour", "messages_per_day", "backlog", "stored_bytes", "in_flight", "queues")
"""The quotas that the shard counts. The others limit a single message or consumer."""

_FAR_DAYS: Final = 2


class WindowsRow(msgspec.Struct, frozen=True, array_like=True):
    """The stored part of a tenant's usage."""

    hour: int  # hours since 1970
    hour_messages: int
    day: int
    day_messages: int


class Usage:
    """One tenant's usage."""

    __slots__ = ("bytes", "day", "day_messages", "hour", "hour_messages", "in_flight", "messages", "queues", "reported")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.in_flight = 0
        self.queues = 0
        self.hour = 0
        self.hour_messages = 0
        self.day = 0
        self.day_messages = 0
        self.reported: dict[str, QuotaState] = {}  # the last reported state of each quota; missing: good

    def roll(self, wall_ms: int) -> None:
        """Start a new hour or day if one has begun."""
        hour, day = wall_ms // HOUR_MS, wall_ms // DAY_MS
        if hour > self.hour:
            self.hour, self.hour_messages = hour, 0
            self.reported.pop("messages_per_hour", None)
        elif hour and self.hour - hour > _FAR_DAYS * 24:
            self.hour = hour  # the clock was far ahead: the window follows it back and keeps its count
        if day > self.day:
            self.day, self.day_messages = day, 0
            self.reported.pop("messages_per_day", None)
        elif day and self.day - day > _FAR_DAYS:
            self.day = day

    def added(self, count: int, wall_ms: int) -> None:
        """Count added messages."""
        self.roll(wall_ms)
        self.hour_messages += count
        self.day_messages += count

    def pack(self) -> bytes:
        """Return the stored part."""
        return msgspec.msgpack.encode(WindowsRow(self.hour, self.hour_messages, self.day, self.day_messages))

    def load(self, value: bytes) -> None:
        """Load the stored part."""
        row = msgspec.msgpack.decode(value, type=WindowsRow)
        self.hour, self.hour_messages, self.day, self.day_messages = (
            row.hour,
            row.hour_messages,
            row.day,
            row.day_messages,
        )

    def used(self, wall_ms: int) -> dict[str, int]:
        """Return how much of each counted quota is used."""
        self.roll(wall_ms)
        return dict(
            zip(
                COUNTED,
                (self.hour_messages, self.day_messages, self.messages, self.bytes, self.in_flight, self.queues),
                strict=True,
            )
        )


def reset_time(usage: Usage, name: str) -> int | None:
    """Return when a quota's window ends (wall clock), or None if it has no window."""
    if name == "messages_per_hour":
        return (usage.hour + 1) * HOUR_MS
    if name == "messages_per_day":
        return (usage.day + 1) * DAY_MS
    return None
