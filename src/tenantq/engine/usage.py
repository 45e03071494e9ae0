"""The usage of a tenant, counted in the same rounds as its messages.

Messages, bytes and leases are sums over the tenant's queues. Adds and deliveries increase them and count their queue at
once. Everything that decreases them is counted when the round ends. So no quota is exceeded within a round.

Messages added in the current hour and day are stored in the batch that adds them. A window only moves forward: setting
the clock back does not open a new one. Only if the clock was more than two days ahead does the window follow it back,
with its count. Otherwise a clock that was wrong for a short time would hold a window for years. The window that was
left is remembered: if the clock returns to it, it continues with its count.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tenantq.domain.limits import DAY_MS, HOUR_MS
from tenantq.domain.quotas import QuotaState
from tenantq.engine.work_counters import TOTALS, WorkSums

COUNTED: Final = ("messages_per_hour", "messages_per_day", "backlog", "stored_bytes", "in_flight", "queues")
"""The quotas that the shard counts. The others limit a single message or consumer."""

_FAR_DAYS: Final = 2


class WindowsRow(msgspec.Struct, frozen=True, array_like=True):
    """The stored part of a tenant's usage."""

    hour: int  # hours since 1970
    hour_messages: int
    day: int
    day_messages: int
    left_hour: int = 0  # the latest hour, if the clock went far back since
    left_hour_messages: int = 0
    left_day: int = 0
    left_day_messages: int = 0
    dropped: list[int] = []  # totals of the queues that were deleted


_encode = msgspec.msgpack.Encoder().encode


class Window(msgspec.Struct, gc=False):
    """The messages added in one hour or day, and in the latest one if the clock went far back since."""

    number: int = 0  # hours or days since 1970
    messages: int = 0
    left_number: int = 0
    left_messages: int = 0

    def at(self, number: int, far: int) -> Window:
        """Return the window in which an add counts at this hour or day; this one, if it still does."""
        if number > self.number:
            if number < self.left_number:
                return Window(number, 0, self.left_number, self.left_messages)
            return Window(number, max(self.messages, self.left_messages) if number == self.left_number else 0)
        if number and self.number - number > far:
            left = max((self.number, self.messages), (self.left_number, self.left_messages))
            return Window(number, self.messages, *left)
        return self


class Usage:
    """One tenant's usage."""

    __slots__ = (
        "bytes", "day", "dropped", "hour", "in_flight", "messages", "queues",
        "reported", "reported_day", "reported_hour",
    )  # fmt: skip

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.in_flight = 0
        self.queues = 0
        self.hour = Window()
        self.day = Window()
        self.dropped = WorkSums()  # work of the queues that were deleted; only its totals are stored
        self.reported: dict[str, QuotaState] = {}  # the last reported state of each quota; missing: good
        self.reported_hour = self.reported_day = 0  # the windows that it is about

    def windows(self, wall_ms: int) -> tuple[Window, Window]:
        """Return the hour and the day in which an add counts at this time.

        Only an add moves forward to them, because the journal knows only adds. A clock that was far ahead is followed at
        once: adds refused in the old window would never leave it.
        """
        hour, day = self.hour.at(wall_ms // HOUR_MS, _FAR_DAYS * 24), self.day.at(wall_ms // DAY_MS, _FAR_DAYS)
        if hour.number != self.reported_hour:
            self.reported_hour = hour.number
            self.reported.pop("messages_per_hour", None)
        if day.number != self.reported_day:
            self.reported_day = day.number
            self.reported.pop("messages_per_day", None)
        if hour.number < self.hour.number:
            self.hour = hour
        if day.number < self.day.number:
            self.day = day
        return hour, day

    def added(self, count: int, wall_ms: int) -> None:
        self.hour, self.day = self.windows(wall_ms)
        self.hour.messages += count
        self.day.messages += count

    def pack(self) -> bytes:
        """Return the stored part."""
        hour, day = self.hour, self.day
        return _encode(
            WindowsRow(
                hour.number, hour.messages, day.number, day.messages,
                hour.left_number, hour.left_messages, day.left_number, day.left_messages,
                self.dropped.totals if any(self.dropped.totals) else [],
            )
        )  # fmt: skip

    def load(self, value: bytes) -> None:
        """Load the stored part."""
        row = msgspec.msgpack.decode(value, type=WindowsRow)
        self.hour = Window(row.hour, row.hour_messages, row.left_hour, row.left_hour_messages)
        self.day = Window(row.day, row.day_messages, row.left_day, row.left_day_messages)
        self.dropped.totals = [*row.dropped, *[0] * (len(TOTALS) - len(row.dropped))]
        self.reported_hour, self.reported_day = row.hour, row.day

    def used(self, wall_ms: int) -> dict[str, int]:
        """Return how much of each counted quota is used."""
        hour, day = self.windows(wall_ms)
        used = (hour.messages, day.messages, self.messages, self.bytes, self.in_flight, self.queues)
        return dict(zip(COUNTED, used, strict=True))


def reset_time(usage: Usage, name: str, wall_ms: int) -> int | None:
    """Return when a quota's window ends (wall clock), or None if it has no window."""
    hour, day = usage.windows(wall_ms)
    if name == "messages_per_hour":
        return (hour.number + 1) * HOUR_MS
    if name == "messages_per_day":
        return (day.number + 1) * DAY_MS
    return None
