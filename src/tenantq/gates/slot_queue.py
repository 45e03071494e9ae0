"""Queues of requests that wait for slots."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from tenantq.runtime.clock import Timer

CallTask = asyncio.Task[Any] | None


class SlotWaiter:
    """A request that has some of its slots and waits for the next."""

    __slots__ = ("granted", "slots", "stage", "task", "tenant", "timer")

    def __init__(self, tenant: str, slots: list[Slot], task: CallTask, granted: asyncio.Future[Any]) -> None:
        self.tenant = tenant
        self.slots = slots
        self.stage = 0  # number of slots it has
        self.task = task
        self.granted = granted  # the ticket; None: it timed out
        self.timer: Timer | None = None


class SlotQueue:
    """The waiters of one scope. Tenants take turns; the waiters of one tenant are served in order of arrival."""

    __slots__ = ("limit", "tenants")

    def __init__(self) -> None:
        self.limit = 0  # as of the latest caller
        self.tenants: OrderedDict[str, OrderedDict[SlotWaiter, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self.tenants)

    def push(self, waiter: SlotWaiter) -> None:
        """Put a waiter behind the others of its tenant."""
        self.tenants.setdefault(waiter.tenant, OrderedDict())[waiter] = None

    def pop(self) -> SlotWaiter:
        """Remove and return the next waiter."""
        tenant, waiters = next(iter(self.tenants.items()))
        waiter = waiters.popitem(last=False)[0]
        if waiters:
            self.tenants.move_to_end(tenant)
        else:
            del self.tenants[tenant]
        return waiter

    def remove(self, waiter: SlotWaiter) -> None:
        waiters = self.tenants.get(waiter.tenant)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self.tenants[waiter.tenant]


class SlotScope:
    """One kind of limit, such as requests per tenant: requests in flight and waiters by key."""

    __slots__ = ("in_flight", "queues", "setting", "what")

    def __init__(self, setting: str, what: str) -> None:
        self.setting = setting
        self.what = what
        self.in_flight: dict[Hashable, int] = {}
        self.queues: dict[Hashable, SlotQueue] = {}


Slot = tuple[SlotScope, Hashable, int]
"""A slot that a request needs: the scope, the key in it, and the limit."""
