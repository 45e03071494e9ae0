"""Which tenants and queues have their own label: those with the most recent work.

``_other`` sums up all the rest. A sum over a changing set is not a counter, so each change of the set is corrected: what
``_other`` has counted for a queue stays in it when the queue gets a label, and what the label has shown is not added to
``_other`` when the queue loses it. Readers scrape at different times, so each has its own corrections. Between two of its
scrapes, the series of a reader together grow by exactly the work that was done.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Final, Generic, Protocol, Self, TypeVar

from tenantq.engine.queue_state import QueueState, TenantState, serials
from tenantq.engine.work_counters import ACKED, ADDED, DELIVERED, TenantSums, WorkSums
from tenantq.runtime.loop_slices import next_slice

if TYPE_CHECKING:
    from tenantq.engine.catalog import Catalog
    from tenantq.runtime.clock import Clock

OTHER: Final = "_other"
"""The label of all tenants or queues without their own. No tenant or queue can have this name."""

HALF_LIFE_MS: Final = 20_000
"""Work counts half as much after this time."""
RANK_EVERY_MS: Final = 5_000
_INCUMBENT: Final = 1.25  # how much hotter another must be to take over a label
_SLICE: Final = 256  # queues that are ranked at once: a fraction of a millisecond
S = TypeVar("S", QueueState, TenantState)


class Sums(Protocol):
    """Sums of counters."""

    def merge(self, other: Self, sign: int = 1) -> None:
        """Add the sums of ``other``; subtract them if ``sign`` is -1."""

    def assign(self, other: Self) -> None:
        """Become equal to ``other``."""


F = TypeVar("F", bound=Sums)


class LabelledSums(Generic[S, F]):
    """What a reader has seen under the labels of tenants or queues, and how that corrects the sums of the others.

    A scrape calls ``begin``, then ``show`` for every subject with a label, and then ``finish``.
    """

    def __init__(self, new: Callable[[], F]) -> None:
        self._new = new
        self._last: dict[S, F] = {}  # the sums that the last scrape showed
        self._next: dict[S, F] = {}
        self._known = self._limit = 0  # subjects with a lower serial were read by the last scrape, and by this one
        self.correction = new()

    @property
    def labelled(self) -> Container[S]:
        """The subjects that had a label in the last scrape."""
        return self._last

    def begin(self, limit: int) -> None:
        """Begin a scrape that reads the subjects whose serial is below ``limit``."""
        self._limit = limit

    def show(self, subject: S, sums: F) -> None:
        """Note that the subject has a label and these sums."""
        shown = self._last.pop(subject, None)
        if shown is None:
            shown = self._new()
            if subject.serial < self._known:  # it was one of the others
                self.correction.merge(sums)
        shown.assign(sums)
        self._next[subject] = shown

    def finish(self) -> Iterable[S]:
        """Return the subjects that have lost their label or were deleted."""
        gone = self._last
        for shown in gone.values():
            self.correction.merge(shown, -1)
        self._last, self._next, self._known = self._next, {}, self._limit
        return gone


class ReaderState:
    """What one reader of the metrics has seen. Each reader has its own, so that its series add up."""

    def __init__(self) -> None:
        self.tenants = LabelledSums[TenantState, TenantSums](TenantSums)
        self.queues = LabelledSums[QueueState, WorkSums](WorkSums)
        self.limit = 0

    def begin(self) -> None:
        """Begin a scrape. It must not read queues that are created from now on, whose serials reach ``limit``."""
        self.limit = next(serials)
        self.tenants.begin(self.limit)
        self.queues.begin(self.limit)


class Ranking:
    """Measures the recent work of every tenant and queue, and chooses those that get labels."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._ranked_ms: int | None = None
        self.most: tuple[int, int] | None = None  # the numbers of labels that the last scrape of all tenants allowed
        self.tenants: dict[TenantState, None] = {}
        self.queues: dict[QueueState, None] = {}

    async def update(self, tenants: int, queues: int) -> None:
        """Choose the hottest ``tenants`` and ``queues``, unless that was done a moment ago."""
        now_ms = self._clock.monotonic_ms()
        if (
            self._ranked_ms is not None
            and now_ms - self._ranked_ms < RANK_EVERY_MS
            and self.most == (tenants, queues)
            and not self._has_room(tenants, queues)
        ):
            return
        passed_ms = now_ms - self._ranked_ms if self._ranked_ms is not None else 0
        self._ranked_ms, self.most = now_ms, (tenants, queues)
        decay = 0.5 ** (passed_ms / HALF_LIFE_MS)
        best_tenants, best_queues = _Best[TenantState](tenants), _Best[QueueState](queues)
        holders = self.queues
        kept = [queue for queue in holders if self._exists(queue)]
        _update_heat(kept, decay)
        best_queues.offer(kept, hold=True)  # first, so that most others can be skipped
        read = len(kept)
        for tenant in list(self._catalog.tenants.values()):
            found, heat = list(tenant.queues.values()), 0.0
            for at in range(0, len(found), _SLICE):
                part = found[at : at + _SLICE]
                others = [queue for queue in part if queue not in holders]
                _update_heat(others, decay)
                best_queues.offer(others, hold=False)
                heat += sum([queue.heat for queue in part])
                if (read := read + len(part)) >= _SLICE:
                    read = 0
                    await next_slice()
            tenant.heat = heat
            best_tenants.offer((tenant,), hold=tenant in self.tenants)
            read += 1
        self.tenants, self.queues = await best_tenants.found(), await best_queues.found()

    def _exists(self, queue: QueueState) -> bool:
        tenant = queue.tenant
        return self._catalog.tenants.get(tenant.name) is tenant and tenant.queues.get(queue.name) is queue

    def _has_room(self, tenants: int, queues: int) -> bool:
        """Return whether labels are left, which new tenants and queues get at once."""
        return len(self.tenants) < tenants or len(self.queues) < queues


def _update_heat(queues: Iterable[QueueState], decay: float) -> None:
    """Add the work since the last time to the heat of queues."""
    for queue in queues:
        totals = queue.work.totals
        work = totals[ADDED] + totals[DELIVERED] + totals[ACKED]
        queue.heat = queue.heat * decay + max(0, work - queue.work_seen)
        queue.work_seen = work


async def hottest(holders: Container[QueueState], queues: Iterable[QueueState], most: int) -> dict[QueueState, None]:
    """Return the hottest of some queues, of which ``holders`` had a label. Other work runs between slices."""
    best, found = _Best[QueueState](most), list(queues)
    for at in range(0, len(found), _SLICE):
        part = found[at : at + _SLICE]
        best.offer([queue for queue in part if queue in holders], hold=True)
        best.offer([queue for queue in part if queue not in holders], hold=False)
        await next_slice()
    return await best.found()


class _Best(Generic[S]):
    """Finds the ``most`` hottest of many subjects. Of equally hot ones, those with labels keep them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: list[tuple[float, bool, int, int, int, S]] = []  # a heap, the least hot first

    def offer(self, subjects: Iterable[S], *, hold: bool) -> None:
        """Consider more subjects, which hold a label or not."""
        found, most, factor = self._found, self._most, _INCUMBENT if hold else 1.0
        for subject in subjects:
            heat = subject.heat * factor
            if len(found) < most:
                heapq.heappush(found, _entry(subject, heat, hold=hold))
            elif (heat, hold) >= found[0][:2]:
                heapq.heappushpop(found, _entry(subject, heat, hold=hold))

    async def found(self) -> dict[S, None]:
        """Return the subjects. Other work runs between slices."""
        found: dict[S, None] = {}
        for at in range(0, len(self._found), _SLICE):
            found.update(dict.fromkeys([entry[-1] for entry in self._found[at : at + _SLICE]]))
            await next_slice()
        return found


def _entry(subject: S, heat: float, *, hold: bool) -> tuple[float, bool, int, int, int, S]:
    """Return what subjects are compared by. Serials differ, so that subjects themselves are never compared."""
    return (heat, hold, subject.messages, -subject.id, -subject.serial, subject)
