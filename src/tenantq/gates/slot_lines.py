"""Lines for slots: who waits for a place, and who is next."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenantq.gates.slots import Ticket
    from tenantq.runtime.clock import Timer

Task = asyncio.Task[Any] | None


class Waiter:
    """A request that has some of its places, and waits for the next."""

    __slots__ = ("granted", "places", "stage", "task", "tenant", "timer")

    def __init__(self, tenant: str, places: list[Place], task: Task, granted: asyncio.Future[Ticket | None]) -> None:
        self.tenant = tenant
        self.places = places
        self.stage = 0  # how many of the places it has
        self.task = task
        self.granted = granted  # the ticket; None: its time is over
        self.timer: Timer | None = None


class Line:
    """Who waits for one bound. The tenants take turns, and inside a tenant the first that came is the first to go."""

    __slots__ = ("limit", "tenants")

    def __init__(self) -> None:
        self.limit = 0  # as the latest caller said
        self.tenants: OrderedDict[str, OrderedDict[Waiter, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self.tenants)

    def push(self, waiter: Waiter) -> None:
        """Put a waiter behind the others of its tenant."""
        self.tenants.setdefault(waiter.tenant, OrderedDict())[waiter] = None

    def pop(self) -> Waiter:
        """Take out whoever is next."""
        tenant, waiters = next(iter(self.tenants.items()))
        waiter = waiters.popitem(last=False)[0]
        if waiters:
            self.tenants.move_to_end(tenant)
        else:
            del self.tenants[tenant]
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Take a waiter out, if it is there."""
        waiters = self.tenants.get(waiter.tenant)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self.tenants[waiter.tenant]


class Bound:
    """One kind of bound: how many are in flight for each key, and who waits."""

    __slots__ = ("in_flight", "lines", "setting", "what")

    def __init__(self, setting: str, what: str) -> None:
        self.setting = setting
        self.what = what
        self.in_flight: dict[Hashable, int] = {}
        self.lines: dict[Hashable, Line] = {}


Place = tuple[Bound, Hashable, int]
"""A place that a request needs: in a bound, under a key, of so many."""
