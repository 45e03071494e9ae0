"""Load on a cluster during a chaos run: producers and consumers of tenants, each checked by ``TotalQueue``."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Final

from tenantq.errors import LeaseLost, NotFound, TenantqError
from tests.crash.total_queue import TotalQueue

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from tenantq.client.async_queue import AsyncFleet, AsyncQueue
    from tests.crash.cluster_transports import LeasedMessage, QueueClient

LEASE_S: Final = 4.0
"""Lease of polled messages: short, so that messages whose replies were lost return during the run."""
PAUSE_S: Final = 0.04
"""Pause of each producer between two messages."""
REPEATS: Final = 0.1
"""Share of messages after which an earlier one is added again, with its idempotency key."""
REPEATED: Final = 1_000
"""The earlier message is among this many last ones. Amazon SQS forgets keys after five minutes."""


class Load:
    """Producers and a consumer of one tenant."""

    def __init__(self, tenant: str, queue: AsyncQueue, rng: random.Random, client: QueueClient | None = None) -> None:
        """Prepare. ``client`` adds and polls; by default ``queue`` of the SDK does, which is also asked for figures."""
        self.tenant, self.queue, self._rng = tenant, queue, rng
        self._client = client or queue
        self.checker = TotalQueue()
        self.successes: list[float] = [time.monotonic()]  # when adds were confirmed
        self.errors: list[tuple[float, str]] = []
        self.producing = self.consuming = True

    async def produce(self) -> None:
        """Add messages one by one, each until it is confirmed."""
        number = 0
        while self.producing:
            number += 1
            body = f"{self.tenant} {number}"
            self.checker.trying(body)
            while True:
                try:
                    added = await self._client.add(body, key=body)
                except TenantqError as error:
                    self.failed("add", error)
                    await asyncio.sleep(PAUSE_S)
                else:
                    break
            self.checker.confirmed(body, added.id)
            self.successes.append(time.monotonic())
            if self._rng.random() < REPEATS:
                await self._repeat(f"{self.tenant} {self._rng.randint(max(1, number - REPEATED), number)}")
            await asyncio.sleep(PAUSE_S)

    async def _repeat(self, body: str) -> None:
        """Add a message again: its key must find the first one, wherever the tenant is now."""
        try:
            added = await self._client.add(body, key=body)
        except TenantqError as error:
            self.failed("repeat", error)
        else:
            self.checker.confirmed(body, added.id)

    async def consume(self) -> None:
        """Lease, and ack nine of ten messages; nack the tenth."""
        while self.consuming:
            asked_at = time.monotonic()
            try:
                messages = await self._client.poll(5, wait_ms=300, lease_ms=int(LEASE_S * 1_000))
            except TenantqError as error:
                self.failed("poll", error)
                await asyncio.sleep(PAUSE_S)
                continue
            for one in messages:
                self.checker.leased(one.text, one.id, asked_at, time.monotonic(), LEASE_S)
            for one in messages:
                await self.finish(one, asked_at + LEASE_S)

    async def finish(self, one: LeasedMessage, leased_until: float) -> None:
        """Ack or nack a message."""
        is_ack = self._rng.random() < 0.9
        self.checker.settling(one.text, returns=not is_ack)
        try:
            await (one.ack() if is_ack else one.nack(delay_ms=0))
        except TenantqError as error:
            if is_ack:
                self.checker.settled(one.text, one.id, ok=False)
            if not isinstance(error, LeaseLost) or time.monotonic() < leased_until:
                self.failed("ack" if is_ack else "nack", error)
        else:
            if is_ack:
                self.checker.settled(one.text, one.id, ok=True)

    def failed(self, what: str, error: TenantqError) -> None:
        """Note an error that a client saw."""
        self.checker.counts[f"{what}: {error.code}"] += 1
        self.errors.append((time.monotonic(), f"{what}: {error.code}: {error}"))

    def longest_gap(self, start: float, end: float) -> float:
        """Return the longest time without a confirmed add that overlaps an interval."""
        times = [*self.successes, end] if self.successes[-1] < end else self.successes
        return max((b - a for a, b in itertools.pairwise(times) if b >= start and a <= end), default=0.0)

    async def finish_uncertain(self) -> None:
        """Look up in the journal how acks without a clear reply ended."""
        for body, id in list(self.checker.uncertain.items()):
            with contextlib.suppress(NotFound):
                ops = {(row["op"], row["outcome"]) for row in await self.queue.trace(id)}
                if ("ack", "ok") not in ops:
                    self.checker.wrong("lost", f"{body} ({id}) is gone without an ack: {sorted(ops)}")


class FleetLoad:
    """A consumer of many tenants by fleet polls."""

    def __init__(self, fleet: AsyncFleet, loads: Mapping[str, Load]) -> None:
        """Prepare to consume what the producers of ``loads``, by tenant, add."""
        self._fleet, self._loads = fleet, loads

    async def consume(self) -> None:
        """Lease and settle until no tenant needs it."""
        loads = self._loads
        while any(load.consuming for load in loads.values()):
            asked_at = time.monotonic()
            try:
                messages = await self._fleet.poll(10, wait_ms=300, lease_ms=int(LEASE_S * 1_000))
            except TenantqError as error:
                next(iter(loads.values())).failed("fleet poll", error)
                await asyncio.sleep(PAUSE_S)
                continue
            for one in messages:
                loads[one.tenant].checker.leased(one.text, one.id, asked_at, time.monotonic(), LEASE_S)
            await asyncio.gather(*(loads[one.tenant].finish(one, asked_at + LEASE_S) for one in messages))
