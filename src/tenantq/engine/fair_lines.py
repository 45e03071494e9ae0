"""Waiting lines, one per tenant, served in weighted fair turns.

Start-time fair queueing: each tenant has a virtual time that moves on by cost / weight as it is served, and the
tenant furthest behind is next. A tenant that comes with work after a rest starts at the present virtual time, so it
is next or nearly so however long the others' lines are, and it cannot save up turns. With one tenant there is no choice
to make and no cost; the service never idles while any line has work.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenantq.engine.operation import Operation


class Line:
    """One tenant's waiting operations."""

    __slots__ = ("operations", "time", "weight")

    def __init__(self, weight: int = 1) -> None:
        self.weight = weight
        self.time = 0.0
        self.operations: deque[Operation] = deque()

    def charge(self, cost: float) -> None:
        """Move the tenant's virtual time on by work done for it."""
        self.time += cost / self.weight


class FairLines:
    """All lines that have work, furthest behind first."""

    __slots__ = ("_heap", "_tie", "time", "turn_cost")

    def __init__(self, turn_cost: int) -> None:
        self.turn_cost = turn_cost
        self.time = 0.0
        self._heap: list[tuple[float, int, Line]] = []
        self._tie = itertools.count()

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def shared(self) -> bool:
        """Whether more than one tenant has work."""
        return len(self._heap) > 1

    def push(self, line: Line, operation: Operation) -> None:
        """Put an operation at the end of its tenant's line."""
        if not line.operations:
            line.time = max(line.time, self.time)
            heapq.heappush(self._heap, (line.time, next(self._tie), line))
        line.operations.append(operation)

    def take_turn(self, budget: float) -> list[Operation]:
        """Return the next operations of the tenant whose turn it is, worth a turn or ``budget``, at least one."""
        heap = self._heap
        while True:
            at, _, line = heap[0]
            if line.time <= at:
                break
            heapq.heapreplace(heap, (line.time, next(self._tie), line))  # it was charged since: not its turn yet
        self.time = max(self.time, at)
        allowed = budget if len(heap) == 1 else min(budget, self.turn_cost * line.weight)
        turn: list[Operation] = []
        spent = 0.0
        waiting = line.operations
        while waiting and (not turn or spent + waiting[0].cost <= allowed):
            operation = waiting.popleft()
            spent += operation.cost
            turn.append(operation)
        line.charge(spent)
        if waiting:
            heapq.heapreplace(heap, (line.time, next(self._tie), line))
        else:
            heapq.heappop(heap)
        return turn

    def put_back(self, operations: list[Operation]) -> None:
        """Return operations that were taken and not started to the front of their lines, uncharged."""
        for operation in reversed(operations):
            line = operation.tenant.line
            if not line.operations:
                heapq.heappush(self._heap, (line.time, next(self._tie), line))
            line.operations.appendleft(operation)
            line.charge(-operation.cost)

    def drain(self) -> list[Operation]:
        """Take everything out, for a shard that stops."""
        left = [operation for _, _, line in self._heap for operation in line.operations]
        for _, _, line in self._heap:
            line.operations.clear()
        self._heap.clear()
        return left
