"""Slots: how many requests may be in flight on a connection, in a queue, of a tenant and in the whole server.

A request takes a place in each of these, from the narrowest to the widest, and where it finds one full it waits there for
a bounded time. Tenants take turns at a place that becomes free: one that waits with a thousand requests and one that waits
with a single one go alternately. No place can leak: it is given back with its ticket, and ``reconcile`` takes back tickets
whose callers have vanished.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, Self

from tenantq.errors import Busy
from tenantq.gates.slot_lines import Bound, Line, Place, Task, Waiter

if TYPE_CHECKING:
    from collections.abc import Hashable
    from types import TracebackType

    from tenantq.domain.rates import Concurrency
    from tenantq.runtime.clock import Clock

log = logging.getLogger("tenantq")

SlotKind = Literal["add", "poll"]

_SERVER: Final = "server"
_RECOUNT_EVERY: Final = 60  # calls of reconcile; it takes a microsecond or two for each request in flight


class Ticket:
    """The places of one request in flight. Release it when the request is done; ``with ticket:`` does so in any case."""

    __slots__ = ("_places", "_slots", "task")

    def __init__(self, slots: Slots, places: list[Place], task: Task) -> None:
        self._slots = slots
        self._places = places
        self.task = task  # who took it; when it is done, so is the ticket

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def released(self) -> bool:
        """Whether the places were given back."""
        return not self._places

    def release(self) -> None:
        """Give all places back, to those who wait for them. A second time does nothing."""
        places, self._places = self._places, []
        if places:
            self._slots._ended(self, places)  # noqa: SLF001  # a ticket is a part of its slots

    def park(self) -> None:
        """Give all places back but the connection's: the request only waits now, as a long poll without messages does."""
        connections = self._slots._connections  # noqa: SLF001  # as above
        places = self._places
        self._places = [place for place in places if place[0] is connections]
        if not self._places:
            self._slots._ended(self, places)  # noqa: SLF001  # as above
        else:
            self._slots._give_back(places[1:])  # noqa: SLF001  # as above


class Slots:
    """Bounds on what is in flight. ``concurrency`` comes with each call, so a change acts at once."""

    __slots__ = (
        "_adds",
        "_clock",
        "_connections",
        "_loop",
        "_polls",
        "_reconciled",
        "_server",
        "_tenants",
        "_tickets",
        "_waiters",
        "_waiting",
        "connection_requests",
        "server_requests",
        "wait_ms",
        "waiting_per_tenant",
    )

    def __init__(
        self,
        clock: Clock,
        *,
        server_requests: int = 10_000,
        connection_requests: int = 256,
        waiting_per_tenant: int = 1_000,
        wait_ms: int = 5_000,
    ) -> None:
        self._clock = clock
        self.server_requests = server_requests
        self.connection_requests = connection_requests
        self.waiting_per_tenant = waiting_per_tenant
        self.wait_ms = wait_ms
        self._connections = Bound("connection_requests", "requests on this connection")
        self._adds = Bound("concurrency.adds", "adds to this queue")
        self._polls = Bound("concurrency.polls", "polls of this queue")
        self._tenants = Bound("concurrency.requests", "requests of this tenant")
        self._server = Bound("server_requests", "requests to this server")
        self._tickets: set[Ticket] = set()
        self._waiters: set[Waiter] = set()
        self._waiting: Counter[str] = Counter()  # by tenant
        self._reconciled = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def in_flight(self) -> int:
        """How many requests have a place in the server."""
        return self._server.in_flight.get(_SERVER, 0)

    @property
    def waiting(self) -> int:
        """How many requests wait for a place."""
        return len(self._waiters)

    def in_flight_of(self, tenant: str) -> int:
        """Return how many requests of a tenant are in flight."""
        return self._tenants.in_flight.get(tenant, 0)

    def waiting_of(self, tenant: str) -> int:
        """Return how many requests of a tenant wait."""
        return self._waiting[tenant]

    def try_take(
        self,
        tenant: str,
        queue: str | None,
        kind: SlotKind | None,
        concurrency: Concurrency,
        connection: Hashable = None,
    ) -> Ticket | None:
        """Take a place everywhere at once; None if one is full or others wait for it: then ``take``."""
        places = self._places(tenant, queue, kind, concurrency, connection)
        for bound, key, limit in places:
            if bound.in_flight.get(key, 0) >= limit or (bound.lines and key in bound.lines):
                return None
        for bound, key, _ in places:
            in_flight = bound.in_flight
            in_flight[key] = in_flight.get(key, 0) + 1
        ticket = Ticket(self, places, self._this_task())
        self._tickets.add(ticket)
        return ticket

    async def take(
        self,
        tenant: str,
        queue: str | None,
        kind: SlotKind | None,
        concurrency: Concurrency,
        connection: Hashable = None,
    ) -> Ticket:
        """Take a place everywhere, waiting up to ``wait_ms`` for those that are full; then raise Busy naming the limit."""
        ticket = self.try_take(tenant, queue, kind, concurrency, connection)
        if ticket is not None:
            return ticket
        places = self._places(tenant, queue, kind, concurrency, connection)
        if self._waiting[tenant] >= self.waiting_per_tenant:
            full = next(place for place in places if _is_full(place))
            raise _busy(full, tenant, queue, f"{self.waiting_per_tenant} more requests of this tenant wait already")
        waiter = self._join(tenant, places)
        try:
            granted = await waiter.granted
        except asyncio.CancelledError:
            self._leave(waiter)
            raise
        if granted is None:
            raise _busy(places[waiter.stage], tenant, queue, f"none ended within {self.wait_ms} ms")
        return granted

    def reconcile(self) -> int:
        """Release tickets whose callers are done without having done so; return how many there were.

        To be called about once a second. Every so often, and whenever a caller vanished, everything is counted anew.
        """
        vanished = [ticket for ticket in self._tickets if ticket.task is not None and ticket.task.done()]
        for ticket in vanished:
            ticket.release()
        if vanished:
            log.warning("%d requests ended without giving their slots back; these are free again", len(vanished))
        self._reconciled += 1
        if vanished or self._reconciled % _RECOUNT_EVERY == 0:
            self._recount()
        return len(vanished)

    def _recount(self) -> None:
        """Count what is in flight by the tickets and waiters there are; a count that was wrong is a bug, put right."""
        counts: dict[Bound, Counter[Hashable]] = {bound: Counter() for bound in self._bounds()}
        for ticket in self._tickets:
            for bound, key, _ in ticket._places:  # noqa: SLF001  # a ticket is a part of its slots
                counts[bound][key] += 1
        for waiter in self._waiters:
            for bound, key, _ in waiter.places[: waiter.stage]:
                counts[bound][key] += 1
        for bound, count in counts.items():
            if bound.in_flight != count:
                counted = sum(bound.in_flight.values())
                log.error("%s: %d were counted in flight, %d are", bound.setting, counted, count.total())
                bound.in_flight = dict(count)
                for key in list(bound.lines):
                    self._fill(bound, key)

    def _this_task(self) -> Task:
        """Return who asks. To find out which event loop runs takes a system call, and it is always the same."""
        if self._loop is None:
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:  # none does
                return None
        return asyncio.current_task(self._loop)

    def _bounds(self) -> tuple[Bound, ...]:
        return (self._connections, self._adds, self._polls, self._tenants, self._server)

    def _places(
        self, tenant: str, queue: str | None, kind: SlotKind | None, concurrency: Concurrency, connection: Hashable
    ) -> list[Place]:
        """Return the places that a request needs, the narrowest first."""
        places: list[Place] = []
        if connection is not None:
            places.append((self._connections, connection, self.connection_requests))
        if kind == "add":
            places.append((self._adds, (tenant, queue), concurrency.adds))
        elif kind == "poll":
            places.append((self._polls, (tenant, queue), concurrency.polls))
        places.append((self._tenants, tenant, concurrency.requests))
        places.append((self._server, _SERVER, self.server_requests))
        return places

    def _join(self, tenant: str, places: list[Place]) -> Waiter:
        """Take the places that are free, up to the first that is full, and wait for that."""
        waiter = Waiter(tenant, places, self._this_task(), asyncio.get_running_loop().create_future())
        waiter.timer = self._clock.call_later(self.wait_ms, lambda: self._time_out(waiter))
        self._waiters.add(waiter)
        self._waiting[tenant] += 1
        self._advance(waiter)
        return waiter

    def _advance(self, waiter: Waiter) -> None:
        """Take further places for a waiter until it has all, or stands in the line for one that is full."""
        while waiter.stage < len(waiter.places):
            bound, key, limit = place = waiter.places[waiter.stage]
            if _is_full(place):
                line = bound.lines.get(key)
                if line is None:
                    line = bound.lines[key] = Line()
                raised = limit > line.limit
                line.limit = limit
                line.push(waiter)
                if raised:
                    self._fill(bound, key)
                return
            bound.in_flight[key] = bound.in_flight.get(key, 0) + 1
            waiter.stage += 1
        ticket = Ticket(self, waiter.places, waiter.task)
        self._tickets.add(ticket)
        self._forget(waiter)
        waiter.granted.set_result(ticket)

    def _fill(self, bound: Bound, key: Hashable) -> None:
        """Deal free places of one bound to those who wait for them."""
        line = bound.lines.get(key)
        if line is None:
            return
        while line and bound.in_flight.get(key, 0) < line.limit:
            waiter = line.pop()
            if not waiter.granted.done():  # else it was cancelled a moment ago, and gives back what it has by itself
                bound.in_flight[key] = bound.in_flight.get(key, 0) + 1
                waiter.stage += 1
                self._advance(waiter)
        if not line:
            del bound.lines[key]

    def _give_back(self, places: list[Place]) -> None:
        """Free places, the narrowest first: so whoever gets one stands in line for the next before that is dealt."""
        for bound, key, _ in places:
            in_flight = bound.in_flight
            left = in_flight[key] - 1
            if left:
                in_flight[key] = left
            else:
                del in_flight[key]
            if bound.lines:
                self._fill(bound, key)

    def _ended(self, ticket: Ticket, places: list[Place]) -> None:
        self._tickets.discard(ticket)
        self._give_back(places)

    def _time_out(self, waiter: Waiter) -> None:
        if not waiter.granted.done():
            waiter.granted.set_result(None)
            self._drop(waiter)

    def _leave(self, waiter: Waiter) -> None:
        """Clean up after a waiter that was cancelled: what it was given in the same moment goes to the next."""
        if waiter.granted.cancelled() or not waiter.granted.done():
            self._drop(waiter)
        elif (ticket := waiter.granted.result()) is not None:
            ticket.release()

    def _drop(self, waiter: Waiter) -> None:
        """Take a waiter out of its line, and give back the places that it has."""
        bound, key, _ = waiter.places[waiter.stage]
        line = bound.lines.get(key)
        if line is not None:
            line.remove(waiter)
            if not line:
                del bound.lines[key]
        self._forget(waiter)
        self._give_back(waiter.places[: waiter.stage])

    def _forget(self, waiter: Waiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
        self._waiters.discard(waiter)
        self._waiting[waiter.tenant] -= 1
        if not self._waiting[waiter.tenant]:
            del self._waiting[waiter.tenant]


def _is_full(place: Place) -> bool:
    """Tell whether a request that comes now has to wait for this place."""
    bound, key, limit = place
    return key in bound.lines or bound.in_flight.get(key, 0) >= limit


def _busy(place: Place, tenant: str, queue: str | None, why: str) -> Busy:
    bound, _, limit = place
    return Busy(
        f"{bound.setting}: {limit} {bound.what} are in flight and {why}. Wait for replies before sending more",
        tenant=tenant,
        queue=queue,
    )
