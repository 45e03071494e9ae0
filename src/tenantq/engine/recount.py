"""Compares a tenant's counters with its rows: the snapshot is taken on the event loop, and counted on a thread."""

from itertools import islice
from typing import Final

import msgspec

from tenantq.engine.catalog import USAGE_ROW
from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.engine.state import ShardState
from tenantq.engine.usage import WindowsRow
from tenantq.store.keys import after, tenant_prefix
from tenantq.store.rows import unpack_counters, unpack_message

_QUEUES_MAX: Final = 5_000
"""How many queues of a tenant one run checks: their counters are copied on the event loop."""

_BYTES_COUNTED_MAX: Final = 64 << 20
"""In larger queues only messages are counted, not their bytes."""


class _QueueCounters:
    """A queue's counters when the snapshot was taken."""

    def __init__(self, queue: QueueState) -> None:
        self.name = queue.name
        self.prefix = queue.prefix
        self.is_counted = True  # whether its rows are
        self.messages = queue.messages
        self.in_flight = queue.in_flight
        self.bytes = queue.bytes


class TenantRecount:
    """A recount of one tenant. Create it on the event loop, ``run`` it anywhere, then ``close`` it."""

    def __init__(self, state: ShardState, tenant: TenantState, rows_max: int) -> None:
        self.tenant = tenant.name
        self.skipped = 0  # queues with more rows than may be counted
        self._queues: list[_QueueCounters] = []
        self.rows = 0
        usage = tenant.usage
        self._sums = (usage.messages, usage.in_flight, usage.bytes)
        self._window = (usage.hour.number, usage.hour.messages, usage.day.number, usage.day.messages)
        self._stored_window = state.store.get(state.store.meta, USAGE_ROW + tenant_prefix(tenant.id))
        for queue in islice(tenant.queues.values(), _QUEUES_MAX):
            rows = queue.messages + queue.in_flight
            counted = _QueueCounters(queue)
            if queue.dropping or self.rows + rows > rows_max:
                self.skipped += 1
                counted.is_counted = False
            else:
                self.rows += rows
            self._queues.append(counted)
        self._has_all = len(self._queues) == len(tenant.queues)
        self.skipped += len(tenant.queues) - len(self._queues)
        prefix = tenant_prefix(tenant.id)
        self._snapshot = state.store.snapshot(prefix, after(prefix), "m", "li", "qc")

    def close(self) -> None:
        """Release the snapshot."""
        self._snapshot.close()

    def run(self) -> list[str]:
        """Return a sentence about each counter that differs from a recount."""
        wrong: list[str] = []
        for queue in self._queues:
            if queue.is_counted:
                self._compare(queue, wrong)
                self._compare_stored(queue, self._snapshot.get("qc", queue.prefix), wrong)
        if self._has_all:
            sums = tuple(sum(getattr(one, name) for one in self._queues) for name in ("messages", "in_flight", "bytes"))
            for name, kept, counted in zip(("backlog", "in_flight", "stored_bytes"), self._sums, sums, strict=True):
                if kept != counted:
                    wrong.append(f"tenant {self.tenant} uses {kept} of {name}, its queues have {counted}")
        self._compare_window(wrong)
        return wrong

    def _compare(self, queue: _QueueCounters, wrong: list[str]) -> None:
        with_bytes = queue.bytes <= _BYTES_COUNTED_MAX
        messages, size = self._count("m", queue.prefix, with_bytes=with_bytes)
        in_flight, _ = self._count("li", queue.prefix)
        counted = [("messages", queue.messages, messages), ("in_flight", queue.in_flight, in_flight)]
        if with_bytes:
            counted.append(("bytes", queue.bytes, size))
        for name, kept, found in counted:
            if kept != found:
                wrong.append(f"queue {self.tenant}/{queue.name} counts {kept} {name}, a recount gives {found}")

    def _count(self, family: str, prefix: bytes, *, with_bytes: bool = False) -> tuple[int, int]:
        count = size = 0
        for _, value in self._snapshot.walk(family, prefix):
            count += 1
            if with_bytes:
                size += unpack_message(value).size
        return count, size

    def _compare_stored(self, queue: _QueueCounters, stored_row: bytes | None, wrong: list[str]) -> None:
        """Compare the stored counters, which a restart would load, with those in memory."""
        if stored_row is None:
            if queue.messages:
                wrong.append(f"queue {self.tenant}/{queue.name} has no stored counters")
            return
        try:
            row = unpack_counters(stored_row)
        except msgspec.MsgspecError:
            wrong.append(f"queue {self.tenant}/{queue.name} has stored counters that cannot be read")
            return
        messages = sum(level.ready + level.delayed for level in row.levels) + row.blocked + row.in_flight
        for name, kept, stored in (
            ("messages", queue.messages, messages),
            ("in_flight", queue.in_flight, row.in_flight),
            ("bytes", queue.bytes, row.bytes),
        ):
            if kept != stored:
                wrong.append(f"queue {self.tenant}/{queue.name} counts {kept} {name}, its stored counters say {stored}")

    def _compare_window(self, wrong: list[str]) -> None:
        if self._stored_window is None:
            return
        try:
            row = msgspec.msgpack.decode(self._stored_window, type=WindowsRow)
        except msgspec.MsgspecError:
            wrong.append(f"tenant {self.tenant} has stored hours that cannot be read")
            return
        hour, hour_messages, day, day_messages = self._window
        for name, same, kept, stored in (
            ("hour", row.hour == hour, hour_messages, row.hour_messages),
            ("day", row.day == day, day_messages, row.day_messages),
        ):
            if same and kept != stored:
                wrong.append(f"tenant {self.tenant} counts {kept} messages this {name}, stored are {stored}")
