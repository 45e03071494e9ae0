"""Demo traffic on a shard: one loud tenant, two quiet ones, and one worker fleet that serves them all in fair turns."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.message import NewMessage

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from tenantq.engine.shard import Shard
    from tenantq.message import Delivery

QUEUE: Final = "mail"
DEAD_LETTERS: Final = "mail-dlq"
_WORKERS = 8
_POLL_MAX = 4
_POLL_WAIT_MS = 400
_HANDLE_S = 0.008
_POISON_EVERY = 40  # one job of so many fails however often it is tried
WAITS_KEPT: Final = 500
_DEAD_MAX = 500  # dead letters that one tenant may collect
_JOURNAL_KEPT = 20_000  # records; nothing exports the journal yet, so the demo trims it
_STOP_S = 5


class DemoTenant(msgspec.Struct, frozen=True):
    """A tenant of the demo and its way of producing."""

    name: str
    weight: int
    batch: int  # messages at once
    pause_s: float  # between batches
    backlog_max: int  # it pauses at this many ready messages


TENANTS: Final = (
    DemoTenant("acme", 2, 1, 0.1, 1_000),
    DemoTenant("globex", 1, 2, 0.25, 1_000),
    DemoTenant("loud-corp", 1, 200, 0.1, 10_000),
)


class Line(msgspec.Struct, frozen=True):
    """One tenant in figures, for one second of the demo."""

    tenant: str
    weight: int
    added_per_s: int
    done_per_s: int
    ready: int
    in_flight: int
    dead: int
    wait_p50_ms: int  # from added to delivered, of the last WAITS_KEPT first deliveries
    wait_p99_ms: int


class Traffic:
    """Producers and workers on an open shard. What they add stays when they stop."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._waits: dict[str, deque[int]] = {tenant.name: deque(maxlen=WAITS_KEPT) for tenant in TENANTS}
        self._before: dict[str, tuple[float, int, int]] = {}
        self._random = random.Random()  # noqa: S311  # jitter of a demo
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Make the tenants and their queues, and begin."""
        for tenant in TENANTS:
            await self._shard.put_tenant(tenant.name, weight=tenant.weight)
            await self._shard.put_queue(tenant.name, QUEUE, max_attempts=3, backoff_base_ms=200, backoff_max_ms=1_000)
            await self._shard.put_queue(tenant.name, DEAD_LETTERS)
        self.lines()  # rates count from here
        for tenant in TENANTS:
            self._go(self._produce(tenant))
        for _ in range(_WORKERS):
            self._go(self._work())
        self._go(self._keep_small())

    async def stop(self) -> tuple[int, int]:
        """Stop adding, let handlers finish, give unhandled messages back; return what waits and what is leased."""
        self._stopping.set()
        _, late = await asyncio.wait(self._tasks, timeout=_STOP_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        stats = [self._shard.stats(tenant.name, QUEUE) for tenant in TENANTS]
        return sum(one.ready + one.delayed for one in stats), sum(one.in_flight for one in stats)

    def lines(self) -> list[Line]:
        """Return every tenant's figures; rates are since the last call."""
        return [self._line(tenant) for tenant in TENANTS]

    # ---- what runs ----

    def _go(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_result(error)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    async def _produce(self, tenant: DemoTenant) -> None:
        shard = self._shard
        count = 0
        while not self._stopping.is_set():
            if shard.stats(tenant.name, QUEUE).ready < tenant.backlog_max:
                bodies = [
                    b"poison" if (count + i) % _POISON_EVERY == _POISON_EVERY - 1 else b"hello %d" % (count + i)
                    for i in range(tenant.batch)
                ]
                await shard.add(tenant.name, QUEUE, [NewMessage(body=body) for body in bodies])
                count += tenant.batch
            await self._pause(tenant.pause_s * self._random.uniform(0.5, 1.5))

    async def _work(self) -> None:
        """Take messages of any tenant, in the fair order the shard hands them out."""
        while not self._stopping.is_set():
            names = [tenant.name for tenant in TENANTS]
            for got in await self._shard.fleet_poll(QUEUE, tenants=names, max=_POLL_MAX, wait_ms=_POLL_WAIT_MS):
                await self._handle(got)

    async def _handle(self, got: Delivery) -> None:
        shard = self._shard
        if self._stopping.is_set():
            await shard.release(got.tenant, got.queue, [got.receipt])
            return
        if got.attempt == 1:
            self._waits[got.tenant].append(max(0, time.time_ns() // 1_000_000 - got.added_at))
        await asyncio.sleep(_HANDLE_S * self._random.uniform(0.5, 1.5))
        if got.body == b"poison":
            await shard.nack(got.tenant, got.queue, [got.receipt], reason="demo: this job always fails")
        else:
            await shard.ack(got.tenant, got.queue, [got.receipt])

    async def _keep_small(self) -> None:
        """Bound what a demo that runs for days leaves on the disk."""
        shard = self._shard
        while not self._stopping.is_set():
            await self._pause(5)
            for tenant in TENANTS:
                if shard.stats(tenant.name, QUEUE).dead > _DEAD_MAX:
                    await shard.purge(tenant.name, DEAD_LETTERS, reason="demo: keep the disk small")
            first, last = shard.journal_span
            if last - first > 2 * _JOURNAL_KEPT:
                await shard.trim_journal(last - _JOURNAL_KEPT)

    # ---- figures ----

    def _line(self, tenant: DemoTenant) -> Line:
        stats = self._shard.stats(tenant.name, QUEUE)
        now = time.monotonic()
        then, added, done = self._before.get(tenant.name, (now, stats.added_total, stats.acked_total))
        self._before[tenant.name] = (now, stats.added_total, stats.acked_total)
        seconds = max(now - then, 0.001)
        waits = sorted(self._waits[tenant.name]) or [0]
        return Line(
            tenant.name,
            tenant.weight,
            round((stats.added_total - added) / seconds),
            round((stats.acked_total - done) / seconds),
            stats.ready,
            stats.in_flight,
            stats.dead,
            waits[len(waits) // 2],
            waits[len(waits) * 99 // 100],
        )
