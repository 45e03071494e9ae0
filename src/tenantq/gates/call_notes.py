"""Notes about refused calls and reads on their way to the journal: row by row while there are few, counted during a flood.

A flood costs a bounded number of rows, and no call is left out of the counts.
"""

import logging
from collections import Counter
from collections.abc import Callable
from itertools import islice, takewhile
from typing import Final, Literal

import msgspec

from tenantq.runtime.clock import Clock, Timer

log = logging.getLogger("tenantq")

CallOutcome = Literal["denied", "throttled", "refused", "ok"]

ANY: Final = "*"
"""Replaces values in a row that counts many kinds of calls."""


_ROWS_MAX: Final = 200
"""Rows that are written at once, in one turn of the event loop."""

_TOO_MANY: Final = "too many kinds of calls to list"
_CallKind = tuple[str, ...]


class CallNote(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was refused, or with outcome ``ok`` one that only read. Empty text means unknown or not applicable."""

    tenant: str
    queue: str = ""
    action: str
    principal: str = ""
    remote: str = ""
    request_id: str = ""
    user_agent: str = ""
    outcome: CallOutcome
    error_code: str
    details: str = ""


class CountedCallNote(CallNote, frozen=True, kw_only=True):
    """A row for the journal: one call, or the common values of several with the details of the first."""

    count: int
    first_at: int  # wall clock
    last_at: int


class _NoteCount:
    """Calls of one kind that are not written yet. Zero: the only call so far was."""

    __slots__ = ("count", "due", "first_at", "last_at", "note")

    def __init__(self, note: CallNote, due: int) -> None:
        self.note = note
        self.due = due  # monotonic clock
        self.count = self.first_at = self.last_at = 0

    def add(self, at: int) -> None:
        self.first_at = min(self.first_at, at) if self.count else at
        self.last_at = max(self.last_at, at) if self.count else at
        self.count += 1

    def row(self) -> CountedCallNote:
        return _row(self.note, self.count, self.first_at, self.last_at)


class CallNotes:
    """Passes notes to ``write``: the first ones of each second at once, the rest merged by kind after ``flush_ms``.

    With ``merges_repeats``, only the first call of a kind is written at once. Repeats are merged every ``flush_ms``, until there
    are none for that long. If there are too many kinds, the queues and addresses of a caller are merged first.

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
        *,
        merges_repeats: bool = False,
    ) -> None:
        self._clock = clock
        self._write = write
        self._rows_per_second = rows_per_second
        self._kinds_max = kinds_max
        self._flush_ms = flush_ms
        self._merges_repeats = merges_repeats
        self._second = 0
        self._rows_now: Counter[str] = Counter()  # rows written in this second, by tenant
        self._kinds: dict[_CallKind, _NoteCount] = {}  # the next due first, as in the overflow
        self._kinds_of: Counter[str] = Counter()  # by tenant
        self._overflow: dict[_CallKind, _NoteCount] = {}
        self._timer: Timer | None = None

    @property
    def pending(self) -> int:
        """How many calls are counted but not written yet."""
        return sum(counter.count for counters in (self._kinds, self._overflow) for counter in counters.values())

    def note(self, note: CallNote) -> None:
        """Write a call, or count it. Never raises."""
        now, kind = self._clock.wall_ms(), self._kind(note)
        if self._merges_repeats and kind not in self._kinds and not self._has_room(note):
            note = msgspec.structs.replace(note, queue=ANY, remote=ANY, details=_TOO_MANY)
            kind = self._kind(note)
        if self._merges_repeats and kind in self._kinds:
            self._kinds[kind].add(now)
        elif not self._may_go_singly(note.tenant) or not self._written([_row(note, 1, now, now)]):
            self._counter(kind, note).add(now)
        elif self._merges_repeats and self._has_room(note):
            self._keep(kind, note)

    def flush(self) -> None:
        """Write all counted calls. Call it again before the journal closes."""
        for counters in (self._kinds, self._overflow):
            while counters and self._write_part(counters, tuple(islice(counters, _ROWS_MAX)), goes_on=False):
                pass
        self._set_timer()

    def _flush_due(self) -> None:
        """Write counted calls that are due, a bounded number of rows at once."""
        now = self._clock.monotonic_ms()
        for counters in (self._kinds, self._overflow):
            due = takewhile(lambda item: item[1].due <= now, counters.items())
            kinds = tuple(kind for kind, _ in islice(due, _ROWS_MAX))
            self._write_part(counters, kinds, goes_on=self._merges_repeats and counters is self._kinds)
        self._set_timer()

    def _write_part(
        self, counters: dict[_CallKind, _NoteCount], kinds: tuple[_CallKind, ...], *, goes_on: bool
    ) -> bool:
        """Write counted calls and forget them; with ``goes_on``, only those that had no repeat. Return False if that fails."""
        rows = [counter.row() for kind in kinds if (counter := counters[kind]).count]
        is_written = not rows or self._written(rows)
        for kind in kinds:
            counter = counters.pop(kind)
            if not is_written or (goes_on and counter.count):
                counter.count = 0 if is_written else counter.count
                counter.due = self._clock.monotonic_ms() + self._flush_ms
                counters[kind] = counter  # at the end: they are in order of time
            elif counters is self._kinds:
                self._kinds_of[kind[0]] -= 1
                if not self._kinds_of[kind[0]]:
                    del self._kinds_of[kind[0]]
        return is_written

    def _set_timer(self) -> None:
        """Wake up when the first counter is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        firsts = [next(iter(counters.values())).due for counters in (self._kinds, self._overflow) if counters]
        if firsts:
            delay_ms = max(1, min(firsts) - self._clock.monotonic_ms())
            self._timer = self._clock.call_later(delay_ms, self._flush_due)

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
            log.exception("%d rows about calls could not be journaled; retrying later", len(rows))
            return False
        return True

    def _kind(self, note: CallNote) -> _CallKind:
        """Return what calls of one row have in common. Repeats of a read have the same details, too."""
        details = note.details if self._merges_repeats else ""
        return note.tenant, note.queue, note.action, note.principal, note.remote, note.outcome, note.error_code, details

    def _has_room(self, note: CallNote) -> bool:
        """Return whether one more kind can be counted. Half of the places are for those that already merge many."""
        most = self._kinds_max if note.queue != ANY else 2 * self._kinds_max
        return len(self._kinds) < most and self._kinds_of[note.tenant] < max(1, most // 10)

    def _keep(self, kind: _CallKind, note: CallNote) -> _NoteCount:
        """Start to count the calls of a kind."""
        self._kinds_of[note.tenant] += 1
        return self._start(self._kinds, kind, msgspec.structs.replace(note, request_id="", user_agent=""))

    def _start(self, counters: dict[_CallKind, _NoteCount], kind: _CallKind, note: CallNote) -> _NoteCount:
        counter = counters[kind] = _NoteCount(note, self._clock.monotonic_ms() + self._flush_ms)
        if self._timer is None:
            self._set_timer()
        return counter

    def _counter(self, kind: _CallKind, note: CallNote) -> _NoteCount:
        """Return the counter of a call: of its kind, or of its tenant and outcome if there are too many kinds."""
        counter = self._kinds.get(kind)
        if counter is not None:
            return counter
        tenant, outcome = note.tenant, note.outcome
        if self._has_room(note):
            return self._keep(kind, note)
        if (tenant, outcome) not in self._overflow and len(self._overflow) >= self._kinds_max:
            tenant = ""
        counter = self._overflow.get((tenant, outcome))
        if counter is None:
            counter = self._start(self._overflow, (tenant, outcome), _overflow_row(tenant, outcome))
        return counter


def _row(note: CallNote, count: int, first_at: int, last_at: int) -> CountedCallNote:
    fields = msgspec.structs.asdict(note)
    return CountedCallNote(**fields, count=count, first_at=first_at, last_at=last_at)


def _overflow_row(tenant: str, outcome: CallOutcome) -> CallNote:
    any_values = dict.fromkeys(("queue", "action", "principal", "remote", "error_code"), ANY)
    details = _TOO_MANY if tenant else "too many tenants to list"
    return CallNote(**any_values, tenant=tenant, outcome=outcome, details=details)
