"""Waiting lines, one per tenant, served in weighted fair turns, and the budget of each round.

This is start-time fair queueing. Each tenant has a virtual time that advances by cost / weight as it is served, and the
tenant furthest behind is next. A tenant that gets work after a rest starts at the present virtual time: it is next or
nearly so, however long the other lines are, and it cannot save up turns. The service never idles while a line has work.

Rounds are long while one tenant is alone, and short while several share.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import Any, Final, Protocol

from tenantq.engine.settings import ShardSettings

SHARED_LATELY_MS: Final = 1_000
"""How long rounds stay short after a call of another tenant."""

_GROWTH: Final = 1.25  # of the budget after a round that had time to spare
_NONE: deque[Any] = deque(maxlen=0)  # shared by all lines without work; an empty deque for each would add up


class Work(Protocol):
    """What waits in a line: an operation."""

    @property
    def cost(self) -> float:
        """What it costs, in messages."""

    @property
    def line(self) -> TenantLine:
        """The line it waits in."""


class TenantLine:
    """One tenant's waiting operations."""

    __slots__ = ("operations", "system", "ticket", "time", "weight")

    def __init__(self, weight: int = 1, *, system: bool = False) -> None:
        self.weight = weight
        self.system = system  # the platform's own line, which does not make a tenant share rounds
        self.time = 0.0
        self.ticket = -1  # of its valid entry in the heap; older entries are dropped when they reach the top
        self.operations = _NONE

    def charge(self, cost: float) -> None:
        """Advance the tenant's virtual time by work done for it."""
        self.time += cost / self.weight


class FairLines:
    """All lines that have work, furthest behind first."""

    def __init__(self, turn_cost: int) -> None:
        self.turn_cost = turn_cost
        self.time = 0.0  # the virtual time of the line served last, when its turn began
        self.active = 0  # lines that have work
        self.cost = 0.0  # of all that waits
        self.last: TenantLine | None = None  # the line that was joined last
        self.switches = 0  # how often another line was joined than the time before
        self._heap: list[tuple[float, float, int, TenantLine]] = []  # time, rested since, ticket
        self._tickets = itertools.count()

    def __bool__(self) -> bool:
        return self.active > 0

    @property
    def shared(self) -> bool:
        """Whether more than one tenant has work."""
        return self.active > 1

    def push(self, line: TenantLine, operation: Work) -> None:
        """Put an operation at the end of its tenant's line."""
        if not line.operations:
            rested_since = line.time
            line.time = max(line.time, self.time)
            self.active += 1
            self._enter(line, rested_since)
            line.operations = deque()
            if line is not self.last and not line.system:
                self.last = line
                self.switches += 1
        line.operations.append(operation)
        self.cost += operation.cost

    def take_turn(self, budget: float, *, may_use_all: bool = True) -> list[Any]:
        """Return the next operations of the tenant whose turn it is, worth a turn or ``budget``, at least one.

        With ``may_use_all``, a tenant that is alone may use up the ``budget``.
        """
        line = self.next_line()
        self.time = max(self.time, line.time)
        allowed = budget if may_use_all and self.active == 1 else min(budget, self.turn_cost * line.weight)
        turn: list[Any] = []
        spent = 0.0
        waiting = line.operations
        while waiting and (not turn or spent + waiting[0].cost <= allowed):
            operation = waiting.popleft()
            spent += operation.cost
            turn.append(operation)
        line.charge(spent)
        self.cost -= spent
        if waiting:
            line.ticket = next(self._tickets)
            heapq.heapreplace(self._heap, (line.time, line.time, line.ticket, line))
        else:
            self.active -= 1
            if not self.active:
                self.cost = 0.0  # sums of fractions drift
            heapq.heappop(self._heap)
            line.operations = _NONE
        return turn

    def put_back(self, operations: list[Any]) -> None:
        """Return operations that were taken and not started to the front of their lines, uncharged."""
        lines: dict[TenantLine, None] = {}
        for operation in reversed(operations):
            line = operation.line
            if not line.operations:
                self.active += 1
                line.operations = deque()
            line.operations.appendleft(operation)
            line.charge(-operation.cost)
            self.cost += operation.cost
            lines[line] = None
        for line in lines:
            self._enter(line, line.time)
            self.time = min(self.time, line.time)  # a newcomer must not wait for work that was not done

    def set_aside(self) -> TenantLine:
        """Skip the next line until ``restore``, and return it."""
        line = self.next_line()
        heapq.heappop(self._heap)
        self.active -= 1
        return line

    def restore(self, lines: list[TenantLine]) -> None:
        """Return lines that were set aside, with the turn they had."""
        for line in lines:
            self.active += 1
            self._enter(line, line.time)

    def drain(self) -> list[Any]:
        """Remove and return everything, for a shard that stops."""
        left: list[Any] = []
        for *_, line in self._heap:
            left += line.operations
            line.operations = _NONE
        self._heap.clear()
        self.active = 0
        self.cost = 0.0
        return left

    def _enter(self, line: TenantLine, rested_since: float) -> None:
        """Put a line into the heap. Of lines with equal time, the one that rested longest is first."""
        line.ticket = next(self._tickets)
        heapq.heappush(self._heap, (line.time, rested_since, line.ticket, line))

    def next_line(self) -> TenantLine:
        """Return the line of the tenant whose turn it is, after dropping old entries and moving lines that were charged since."""
        heap = self._heap
        while True:
            at, _, ticket, line = heap[0]
            if ticket != line.ticket or not line.operations:
                heapq.heappop(heap)
            elif line.time > at:
                line.ticket = next(self._tickets)
                heapq.heapreplace(heap, (line.time, line.time, line.ticket, line))
            else:
                return line


class RoundBudget:
    """Picks the operations of each round."""

    def __init__(self, settings: ShardSettings) -> None:
        self._settings = settings
        self._cost = float(settings.round_cost_alone)  # the budget of a tenant that is alone
        self._switches_seen = 1  # joining the first line is not a switch
        self._shared_until_ms = -1
        self.is_shared = False  # several tenants had work when the last round was picked, or lately

    def pick(self, lines: FairLines, now_ms: int, *, large_syncs: bool = False) -> list[Any]:
        """Take the next round's operations from the lines, in fair turns, up to the budget.

        While tenants share rounds, a large operation runs in a round alone, and waits while another one is synced
        (``large_syncs``). Otherwise every small operation would wait for the write and the sync of several large ones.
        """
        shared = self.is_shared = self._is_shared(lines, now_ms)
        operations: list[Any] = []
        budget = float(self._settings.round_cost_shared) if shared else self._cost
        served: set[TenantLine] = set()
        aside: list[TenantLine] = []
        while lines and budget > 0:
            if shared:  # one turn per round: a loud tenant gets few replies at a time, and so sends few calls at a time
                line = lines.next_line()
                if line in served:
                    break
                if (operations or large_syncs) and self.is_large(line.operations[0]):
                    aside.append(lines.set_aside())
                    continue
                served.add(line)
            turn = lines.take_turn(budget, may_use_all=not shared)
            budget -= sum([operation.cost for operation in turn])
            operations += turn
        lines.restore(aside)
        return operations

    def is_large(self, operation: Work) -> bool:
        """Return whether an operation is more than all of a round that tenants share."""
        return operation.cost > self._settings.round_cost_shared

    def adapt(self, lines: FairLines, operations: list[Any], unstarted: list[Any]) -> None:
        """Put back the operations that the round did not start, and adapt the budget to what it ran."""
        if unstarted:
            lines.put_back(unstarted)
            done = sum(one.cost for one in operations) - sum(one.cost for one in unstarted)
            self._cost = max(float(self._settings.round_cost_shared), done)
        elif self._cost < self._settings.round_cost_alone:
            self._cost = min(float(self._settings.round_cost_alone), self._cost * _GROWTH)

    def _is_shared(self, lines: FairLines, now_ms: int) -> bool:
        """Return whether several tenants have work, or had lately.

        The next call of a quiet tenant must not wait for a long round, and all its replies, of a loud one.
        """
        if lines.switches > self._switches_seen:
            self._switches_seen = lines.switches
            self._shared_until_ms = now_ms + SHARED_LATELY_MS
        return lines.shared or now_ms < self._shared_until_ms
