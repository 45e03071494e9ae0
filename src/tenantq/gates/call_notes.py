"""Notes about refused calls and reads on their way to the journal: row by row while there are few, counted during a flood.

A flood costs a bounded number of rows, and no call is left out of the counts.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from tenantq.runtime.clock import Clock, Timer

log = logging.getLogger("tenantq")

Outcome = Literal["denied", "throttled", "refused", "ok"]

ANY: Final = "*"
"""Replaces values in a row that counts many kinds of calls."""


class CallNote(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was refused, or with outcome ``ok`` one that only read. Empty text means unknown or not applicable."""

    tenant: str
    queue: str = ""
    action: str
    principal: str = ""
    remote: str = ""
    request_id: str = ""
    user_agent: str = ""
    outcome: Outcome
    error_code: str
    details: str = ""


class CountedCallNote(CallNote, frozen=True, kw_only=True):
    """A row for the journal: one call, or the common values of several with the details of the first."""

    count: int
    first_at: int  # wall clock
    last_at: int


class _NoteCount:
    """Calls of one kind since the last flush."""

    __slots__ = ("count", "first_at", "last_at", "note")

    def __init__(self, note: CallNote, at: int) -> None:
        self.note = note
        self.count = 0
        self.first_at = self.last_at = at

    def row(self) -> CountedCallNote:
        return _row(self.note, self.count, self.first_at, self.last_at)


class CallNotes:
    """Passes refusals to ``write``: the first ones of each second at once, the rest merged every ``flush_ms``.

    ``rows_per_second`` is for each tenant, and ten times that for all. Beyond ``kinds_max`` kinds between two flushes, or a
    tenth of that for one tenant, calls are counted by tenant and outcome only; beyond ``kinds_max`` of these, by outcome. If
    ``write`` fails, what it was given is kept, merged, for the next flush.
    """

    def __init__(
        self,
        clock: Clock,
        write: Callable[[list[CountedCallNote]], None],
        rows_per_second: int = 20,
        kinds_max: int = 1_000,
        flush_ms: int = 1_000,
    ) -> None:
        self._clock = clock
        self._write = write
        self._rows_per_second = rows_per_second
        self._kinds_max = kinds_max
        self._flush_ms = flush_ms
        self._second = 0
        self._rows_now: Counter[str] = Counter()  # rows written in this second, by tenant
        self._kinds: dict[tuple[str, ...], _NoteCount] = {}
        self._kinds_of: Counter[str] = Counter()  # by tenant
        self._overflow: dict[tuple[str, Outcome], _NoteCount] = {}
        self._timer: Timer | None = None

    @property
    def pending(self) -> int:
        """How many calls are counted but not written yet."""
        return sum(counter.count for counters in (self._kinds, self._overflow) for counter in counters.values())

    def note(self, note: CallNote) -> None:
        """Write a refused call, or count it. Never raises."""
        now = self._clock.wall_ms()
        if not (self._may_go_singly(note.tenant) and self._written([_row(note, 1, now, now)])):
            self._count(note, now)

    def flush(self) -> None:
        """Write all counted calls. Call it again before the journal closes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rows = [counter.row() for counter in (*self._kinds.values(), *self._overflow.values())]
        if not rows:
            return
        if self._written(rows):
            self._kinds.clear()
            self._kinds_of.clear()
            self._overflow.clear()
        else:
            self._timer = self._clock.call_later(self._flush_ms, self.flush)

    def _may_go_singly(self, tenant: str) -> bool:
        """Return whether a tenant may have another row in this second, and count it."""
        second = self._clock.monotonic_ms() // 1_000
        if second != self._second:
            self._second = second
            self._rows_now.clear()
        if self._rows_now[tenant] >= self._rows_per_second or self._rows_now.total() >= 10 * self._rows_per_second:
            return False
        self._rows_now[tenant] += 1
        return True

    def _written(self, rows: list[CountedCallNote]) -> bool:
        try:
            self._write(rows)
        except Exception:  # notes must not raise; unwritten rows are kept
            log.exception("%d rows about refused calls could not be journaled; retrying later", len(rows))
            return False
        return True

    def _count(self, note: CallNote, at: int) -> None:
        counter = self._counter(note, at)
        counter.count += 1
        counter.first_at = min(counter.first_at, at)
        counter.last_at = max(counter.last_at, at)
        if self._timer is None:
            self._timer = self._clock.call_later(self._flush_ms, self.flush)

    def _counter(self, note: CallNote, at: int) -> _NoteCount:
        """Return the counter of a call: of its kind, or of its tenant and outcome if there are too many kinds."""
        tenant, outcome = note.tenant, note.outcome
        key = (tenant, note.queue, note.action, note.principal, note.remote, outcome, note.error_code)
        counter = self._kinds.get(key)
        if counter is not None:
            return counter
        if len(self._kinds) < self._kinds_max and self._kinds_of[tenant] < max(1, self._kinds_max // 10):
            self._kinds_of[tenant] += 1
            counter = self._kinds[key] = _NoteCount(msgspec.structs.replace(note, request_id="", user_agent=""), at)
            return counter
        if (tenant, outcome) not in self._overflow and len(self._overflow) >= self._kinds_max:
            tenant = ""
        counter = self._overflow.get((tenant, outcome))
        if counter is None:
            counter = self._overflow[tenant, outcome] = _NoteCount(_overflow_row(tenant, outcome), at)
        return counter


def _row(note: CallNote, count: int, first_at: int, last_at: int) -> CountedCallNote:
    fields = msgspec.structs.asdict(note)
    return CountedCallNote(**fields, count=count, first_at=first_at, last_at=last_at)


def _overflow_row(tenant: str, outcome: Outcome) -> CallNote:
    return CallNote(
        tenant=tenant,
        queue=ANY,
        action=ANY,
        principal=ANY,
        remote=ANY,
        outcome=outcome,
        error_code=ANY,
        details="too many kinds of calls to list" if tenant else "too many tenants to list",
    )
