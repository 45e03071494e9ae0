"""Slots: how many requests may be in flight on a connection, in a queue, of a tenant and in the whole server.

A request takes a slot in each of these scopes, from the narrowest to the widest. If a scope is full, it waits there for a
bounded time. Tenants take turns at free slots, however many requests of theirs wait. No slot can leak: it is released with
its ticket, and ``reconcile`` releases the tickets of callers that have vanished.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Hashable
from typing import Final, Literal

from tenantq.domain.rates import Concurrency
from tenantq.errors import Busy
from tenantq.gates.slot_queue import CallTask, Slot, SlotQueue, SlotScope, SlotWaiter
from tenantq.gates.ticket import Ticket
from tenantq.runtime.clock import Clock

log = logging.getLogger("tenantq")

SlotKind = Literal["add", "poll"]

_SERVER: Final = "server"
_RECOUNT_EVERY: Final = 60  # calls of reconcile; it takes a microsecond or two for each request in flight


class Slots:
    """Limits on requests in flight. ``concurrency`` comes with each call, so a change applies at once."""

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
        self.connections = SlotScope("connection_requests", "requests on this connection")
        self._adds = SlotScope("concurrency.adds", "adds to this queue")
        self._polls = SlotScope("concurrency.polls", "polls of this queue")
        self._tenants = SlotScope("concurrency.requests", "requests of this tenant")
        self._server = SlotScope("server_requests", "requests to this server")
        self._tickets: set[Ticket] = set()
        self._waiters: set[SlotWaiter] = set()
        self._waiting: Counter[str] = Counter()  # by tenant
        self._reconciled = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def in_flight(self) -> int:
        """How many requests have a slot in the server."""
        return self._server.in_flight.get(_SERVER, 0)

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return len(self._waiters)

    def try_take(
        self,
        tenant: str,
        queue: str | None,
        kind: SlotKind | None,
        concurrency: Concurrency,
        connection: Hashable = None,
    ) -> Ticket | None:
        """Take a slot in every scope; return None if one is full or others wait for it. Then use ``take``."""
        slots = self._needed_slots(tenant, queue, kind, concurrency, connection)
        for scope, key, limit in slots:
            if scope.in_flight.get(key, 0) >= limit or (scope.queues and key in scope.queues):
                return None
        for scope, key, _ in slots:
            in_flight = scope.in_flight
            in_flight[key] = in_flight.get(key, 0) + 1
        ticket = Ticket(self, slots, self._this_task())
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
        """Take a slot in every scope, waiting up to ``wait_ms`` for full ones; then raise Busy naming the limit."""
        ticket = self.try_take(tenant, queue, kind, concurrency, connection)
        if ticket is not None:
            return ticket
        slots = self._needed_slots(tenant, queue, kind, concurrency, connection)
        if self._waiting[tenant] >= self.waiting_per_tenant:
            full = next(slot for slot in slots if _is_full(slot))
            raise _busy(full, tenant, queue, f"{self.waiting_per_tenant} more requests of this tenant wait already")
        waiter = self._join(tenant, slots)
        try:
            granted: Ticket | None = await waiter.granted
        except asyncio.CancelledError:
            self._leave(waiter)
            raise
        if granted is None:
            raise _busy(slots[waiter.stage], tenant, queue, f"none ended within {self.wait_ms} ms")
        return granted

    def reconcile(self) -> int:
        """Release tickets of callers that ended without releasing them; return how many there were.

        Called about once a second. Now and then, and whenever a caller vanished, all slots are recounted.
        """
        vanished = [ticket for ticket in self._tickets if ticket.task is not None and ticket.task.done()]
        for ticket in vanished:
            ticket.release()
        if vanished:
            log.warning("%d requests ended without releasing their slots; released them", len(vanished))
        self._reconciled += 1
        if vanished or self._reconciled % _RECOUNT_EVERY == 0:
            self._recount()
        return len(vanished)

    def _recount(self) -> None:
        """Recount the slots in use from tickets and waiters. A wrong count is a bug; it is logged and corrected."""
        counts: dict[SlotScope, Counter[Hashable]] = {scope: Counter() for scope in self._scopes()}
        for ticket in self._tickets:
            for scope, key, _ in ticket.slots:
                counts[scope][key] += 1
        for waiter in self._waiters:
            for scope, key, _ in waiter.slots[: waiter.stage]:
                counts[scope][key] += 1
        for scope, count in counts.items():
            if scope.in_flight != count:
                counted = sum(scope.in_flight.values())
                log.error(
                    "%s: wrong count of requests in flight (counted %d, actual %d); corrected it",
                    scope.setting,
                    counted,
                    count.total(),
                )
                scope.in_flight = dict(count)
                for key in list(scope.queues):
                    self._grant_free(scope, key)

    def _this_task(self) -> CallTask:
        """Return the current task. The event loop is cached, because looking it up takes a system call."""
        if self._loop is None:
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:  # none does
                return None
        return asyncio.current_task(self._loop)

    def _scopes(self) -> tuple[SlotScope, ...]:
        return (self.connections, self._adds, self._polls, self._tenants, self._server)

    def _needed_slots(
        self, tenant: str, queue: str | None, kind: SlotKind | None, concurrency: Concurrency, connection: Hashable
    ) -> list[Slot]:
        """Return the slots that a request needs, the narrowest first."""
        slots: list[Slot] = []
        if connection is not None:
            slots.append((self.connections, connection, self.connection_requests))
        if kind == "add":
            slots.append((self._adds, (tenant, queue), concurrency.adds))
        elif kind == "poll":
            slots.append((self._polls, (tenant, queue), concurrency.polls))
        slots.append((self._tenants, tenant, concurrency.requests))
        slots.append((self._server, _SERVER, self.server_requests))
        return slots

    def _join(self, tenant: str, slots: list[Slot]) -> SlotWaiter:
        """Take free slots up to the first full scope, and wait for that one."""
        waiter = SlotWaiter(tenant, slots, self._this_task(), asyncio.get_running_loop().create_future())
        waiter.timer = self._clock.call_later(self.wait_ms, lambda: self._time_out(waiter))
        self._waiters.add(waiter)
        self._waiting[tenant] += 1
        self._advance(waiter)
        return waiter

    def _advance(self, waiter: SlotWaiter) -> None:
        """Take further slots for a waiter until it has all, or waits for a full scope."""
        while waiter.stage < len(waiter.slots):
            scope, key, limit = slot = waiter.slots[waiter.stage]
            if _is_full(slot):
                waiting = scope.queues.get(key)
                if waiting is None:
                    waiting = scope.queues[key] = SlotQueue()
                raised = limit > waiting.limit
                waiting.limit = limit
                waiting.push(waiter)
                if raised:
                    self._grant_free(scope, key)
                return
            scope.in_flight[key] = scope.in_flight.get(key, 0) + 1
            waiter.stage += 1
        ticket = Ticket(self, waiter.slots, waiter.task)
        self._tickets.add(ticket)
        self._forget(waiter)
        waiter.granted.set_result(ticket)

    def _grant_free(self, scope: SlotScope, key: Hashable) -> None:
        """Grant free slots of one scope to its waiters."""
        waiting = scope.queues.get(key)
        if waiting is None:
            return
        while waiting and scope.in_flight.get(key, 0) < waiting.limit:
            waiter = waiting.pop()
            if not waiter.granted.done():  # else it was cancelled just now, and releases its slots itself
                scope.in_flight[key] = scope.in_flight.get(key, 0) + 1
                waiter.stage += 1
                self._advance(waiter)
        if not waiting:
            del scope.queues[key]

    def release(self, slots: list[Slot]) -> None:
        """Release slots, narrowest first, so that whoever gets one already waits for the next when that is granted."""
        for scope, key, _ in slots:
            in_flight = scope.in_flight
            left = in_flight[key] - 1
            if left:
                in_flight[key] = left
            else:
                del in_flight[key]
            if scope.queues:
                self._grant_free(scope, key)

    def end(self, ticket: Ticket, slots: list[Slot]) -> None:
        """Release the last slots of a ticket, and forget it."""
        self._tickets.discard(ticket)
        ticket.task = (
            None  # whose context refers to the call and its ticket: the cycle would wait for the garbage collector
        )
        self.release(slots)

    def _time_out(self, waiter: SlotWaiter) -> None:
        if not waiter.granted.done():
            waiter.granted.set_result(None)
            self._drop(waiter)

    def _leave(self, waiter: SlotWaiter) -> None:
        """Clean up after a cancelled waiter. A ticket that it was granted at the same time goes to the next."""
        if waiter.granted.cancelled() or not waiter.granted.done():
            self._drop(waiter)
        elif (ticket := waiter.granted.result()) is not None:
            ticket.release()

    def _drop(self, waiter: SlotWaiter) -> None:
        """Remove a waiter from its queue and release the slots that it has."""
        scope, key, _ = waiter.slots[waiter.stage]
        waiting = scope.queues.get(key)
        if waiting is not None:
            waiting.remove(waiter)
            if not waiting:
                del scope.queues[key]
        self._forget(waiter)
        self.release(waiter.slots[: waiter.stage])

    def _forget(self, waiter: SlotWaiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
        self._waiters.discard(waiter)
        self._waiting[waiter.tenant] -= 1
        if not self._waiting[waiter.tenant]:
            del self._waiting[waiter.tenant]


def _is_full(slot: Slot) -> bool:
    """Return whether a new request has to wait for this slot."""
    scope, key, limit = slot
    return key in scope.queues or scope.in_flight.get(key, 0) >= limit


def _busy(slot: Slot, tenant: str, queue: str | None, why: str) -> Busy:
    scope, _, limit = slot
    return Busy(
        f"{scope.setting}: {limit} {scope.what} are in flight and {why}. Wait for replies before sending more",
        tenant=tenant,
        queue=queue,
    )
