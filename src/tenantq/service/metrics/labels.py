"""Which tenants and queues have their own label: those with the most recent work.

``_other`` sums up all the rest. A sum over a changing set is not a counter, so each change of the set is corrected:
what ``_other`` has counted for a queue stays in it when the queue gets a label, and is not added again afterwards.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.engine.work_counters import TenantCounters, WorkSums
from tenantq.runtime.loop_slices import next_slice
from tenantq.service.metrics.slice_counter import SliceCounter

if TYPE_CHECKING:
    from tenantq.engine.catalog import Catalog
    from tenantq.runtime.clock import Clock

OTHER: Final = "_other"
"""The label of all tenants or queues without their own. No tenant or queue can have this name."""

HALF_LIFE_MS: Final = 20_000
"""Work counts half as much after this time."""
RANK_EVERY_MS: Final = 5_000
_INCUMBENT: Final = 1.25  # how much hotter another must be to take over a label
S = TypeVar("S", QueueState, TenantState)


class Labelled(Generic[S]):
    """The tenants or queues that have a label, and what corrects the sums of the others.

    A scrape calls ``visit`` for every subject and then ``finish``.
    """

    def __init__(self) -> None:
        self.chosen: dict[S, None] = {}
        self.work = WorkSums()
        self.counters = TenantCounters()
        self._shown: set[S] = set()  # under their own label, by the last scrape
        self._in_other: set[S] = set()
        self._shown_next: set[S] = set()
        self._in_other_next: set[S] = set()

    def visit(self, subject: S, work: WorkSums, counters: TenantCounters | None = None) -> bool:
        """Return whether a subject with these sums has a label. Correct the sums of the others if that has changed."""
        if subject in self.chosen:
            self._shown_next.add(subject)
            if subject in self._in_other:
                self.work.merge(work)
                if counters is not None:
                    self.counters.merge(counters)
            return True
        self._in_other_next.add(subject)
        if subject in self._shown:
            self.exclude(work, counters)
        return False

    def finish(self) -> list[S]:
        """Return the subjects that had a label and were deleted. Their sums are part of those of all deleted ones now."""
        gone = [one for one in self._shown if one not in self._shown_next and one not in self._in_other_next]
        self._shown, self._in_other = self._shown_next, self._in_other_next
        self._shown_next, self._in_other_next = set(), set()
        for one in gone:
            self.chosen.pop(one, None)
        return gone

    @property
    def has_others(self) -> bool:
        """Whether the last scrape found subjects without a label."""
        return bool(self._in_other)

    def exclude(self, work: WorkSums, counters: TenantCounters | None = None) -> None:
        """Exclude sums from those of the others: they were shown under a label of their own."""
        self.work.subtract(work)
        if counters is not None:
            self.counters.merge(counters, -1)


class Ranking:
    """Measures the recent work of every tenant and queue, and chooses those that get labels."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._ranked_ms: int | None = None
        self.most: tuple[int, int] | None = None  # the numbers of labels that the last scrape of all tenants allowed
        self.tenants = Labelled[TenantState]()
        self.queues = Labelled[QueueState]()

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
        best_tenants, best_queues = _Best(self.tenants, tenants), _Best(self.queues, queues)
        slices = SliceCounter()
        for tenant in list(self._catalog.tenants.values()):
            heat = 0.0
            for queue in list(tenant.queues.values()):
                work = queue.work_done
                queue.heat = queue.heat * decay + max(0, work - queue.work_seen)
                queue.work_seen = work
                heat += queue.heat
                best_queues.offer(queue, queue.heat, queue.messages)
                if slices.is_full():
                    await next_slice()
            best_tenants.offer(tenant, heat, tenant.usage.messages)
            if slices.is_full():
                await next_slice()
        self.tenants.chosen, self.queues.chosen = await best_tenants.found(), await best_queues.found()

    def _has_room(self, tenants: int, queues: int) -> bool:
        """Return whether labels are left, which new tenants and queues get at once."""
        return len(self.tenants.chosen) < tenants or len(self.queues.chosen) < queues


async def hottest(labelled: Labelled[QueueState], queues: Iterable[QueueState], most: int) -> dict[QueueState, None]:
    """Return the hottest of some queues. Other work runs between slices."""
    best, slices = _Best(labelled, most), SliceCounter()
    for queue in list(queues):
        best.offer(queue, queue.heat, queue.messages)
        if slices.is_full():
            await next_slice()
    return await best.found()


class _Best(Generic[S]):
    """Finds the ``most`` hottest of many subjects. Of equally hot ones, those with labels keep them."""

    def __init__(self, labelled: Labelled[S], most: int) -> None:
        self._chosen: dict[S, None] = labelled.chosen
        self._most = most
        self._found: list[tuple[float, bool, int, int, int, S]] = []  # a heap, the least hot first
        self._offered = 0

    def offer(self, subject: S, heat: float, messages: int) -> None:
        """Consider one more subject."""
        holds = subject in self._chosen
        if holds:
            heat *= _INCUMBENT
        self._offered += 1  # no two entries are equal: subjects cannot be compared
        entry = (heat, holds, messages, -subject.id, -self._offered, subject)
        if len(self._found) < self._most:
            heapq.heappush(self._found, entry)
        else:
            heapq.heappushpop(self._found, entry)

    async def found(self) -> dict[S, None]:
        """Return the subjects. Other work runs between slices."""
        found: dict[S, None] = {}
        slices = SliceCounter()
        for *_, subject in self._found:
            found[subject] = None
            if slices.is_full():
                await next_slice()
        return found
