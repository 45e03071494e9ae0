"""Demo traffic over HTTP: one loud tenant, two quiet ones, and one worker fleet that serves all of them fairly."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec

from tenantq.client import AsyncClient, AsyncMessage
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.errors import NotFound, TenantqError

QUEUE: Final = "mail"
DEAD_LETTERS: Final = "mail-dlq"
WAITS_KEPT: Final = 500
_WORKERS = 8
_POLL_MAX = 4
_POLL_WAIT_MS = 400
_HANDLE_S = 0.008
_POISON_EVERY = 40  # one in this many jobs always fails
_POISON = b"poison"
_DEAD_MAX = 500  # dead letters that one tenant may collect
_TROUBLE_S = 1.0  # pause after a refusal: the user may suspend or delete a tenant
_STOP_S = 5


class DemoTenant(msgspec.Struct, frozen=True):
    """A tenant of the demo, and how it produces messages."""

    name: str
    weight: int
    batch: int  # messages added together
    pause_s: float  # between batches
    backlog_max: int  # it pauses at this many ready messages
    encrypted: bool = False


TENANTS: Final = (
    DemoTenant("acme", 2, 1, 0.1, 1_000, encrypted=True),
    DemoTenant("globex", 1, 2, 0.25, 1_000),
    DemoTenant("loud-corp", 1, 100, 0.1, 10_000),
)


class DemoTokens(msgspec.Struct):
    """The credentials of the demo. They are stored with the data, and the next demo uses them again."""

    admin: str
    fleet: str = ""
    tenants: dict[str, str] = {}


class DemoFigures(msgspec.Struct, frozen=True):
    """The figures of one tenant in one second of the demo."""

    tenant: str
    weight: int
    added_per_s: int
    done_per_s: int
    ready: int
    in_flight: int
    dead: int
    wait_p50_ms: int  # from added to delivered, of the last WAITS_KEPT first deliveries
    wait_p99_ms: int


async def prepare(url: str, tokens: DemoTokens) -> None:
    """Create the tenants, queues and keys that do not exist, and store the new tokens in ``tokens``."""
    async with AsyncClient(url, token=tokens.admin) as admin:
        for tenant in TENANTS:
            there = admin.tenant(tenant.name)
            encryption = {"enabled": tenant.encrypted, "plain_reasons": True}  # the user sees why jobs fail
            await there.configure(weight=tenant.weight, encryption=encryption)
            await there.queue(QUEUE).configure(max_attempts=3, backoff_base_ms=200, backoff_max_ms=1_000)
            await there.queue(DEAD_LETTERS).configure()
            tokens.tenants[tenant.name] = await _key(
                admin, tenant.name, tokens.tenants.get(tenant.name, ""), "demo", "tenant-admin"
            )
        tokens.fleet = await _key(admin, DEFAULT_TENANT, tokens.fleet, "demo fleet", "consumer")
        for tenant in TENANTS:
            await admin.tenant(tenant.name).grant(f"key:{_key_id(tokens.fleet)}", role="consumer")


async def _key(admin: AsyncClient, tenant: str, known: str, name: str, role: str) -> str:
    """Return the known token if it is valid, else the token of a new key."""
    there = admin.tenant(tenant)
    valid = {key.key_id for key in await there.keys() if key.revoked_at is None}
    if known and _key_id(known) in valid:
        return known
    return (await there.create_key(name, role=role)).token


def _key_id(token: str) -> str:
    return token.split("_")[1]


class Traffic:
    """Producers and workers, each with its own credential."""

    def __init__(self, url: str, tokens: DemoTokens) -> None:
        self._url = url
        self._tokens = tokens
        self._clients = AsyncExitStack()
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._waits: dict[str, deque[int]] = {tenant.name: deque(maxlen=WAITS_KEPT) for tenant in TENANTS}
        self._before: dict[str, tuple[float, int, int]] = {}
        self._random = random.Random()  # noqa: S311  # jitter of a demo
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Start producers and workers."""
        self._admin = await self._client(self._tokens.admin)
        await self.figures()  # rates count from here
        for tenant in TENANTS:
            self._go(self._produce(tenant, await self._client(self._tokens.tenants[tenant.name])))
        fleet = await self._client(self._tokens.fleet)
        for _ in range(_WORKERS):
            self._go(self._work(fleet))
        self._go(self._keep_small())

    async def stop(self) -> tuple[int, int]:
        """Stop producers, finish handlers and release other messages. Returns the ready and the leased messages."""
        self._stopping.set()
        _, late = await asyncio.wait(self._tasks, timeout=_STOP_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        figures = await self.figures()
        await self._clients.aclose()
        return sum(one.ready for one in figures), sum(one.in_flight for one in figures)

    async def figures(self) -> list[DemoFigures]:
        """Return the figures of every tenant, with rates since the last call."""
        return [await self._figures_of(tenant) for tenant in TENANTS]

    # ---- tasks ----

    async def _client(self, token: str) -> AsyncClient:
        return await self._clients.enter_async_context(AsyncClient(self._url, token=token, retries=0))

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

    async def _produce(self, tenant: DemoTenant, client: AsyncClient) -> None:
        queue = client.queue(QUEUE)
        count = 0
        while not self._stopping.is_set():
            try:
                if (await queue.stats()).ready < tenant.backlog_max:
                    numbers = range(count, count + tenant.batch)
                    await queue.add_many(
                        _POISON if number % _POISON_EVERY == _POISON_EVERY - 1 else b"hello %d" % number
                        for number in numbers
                    )
                    count += tenant.batch
            except TenantqError:
                await self._pause(_TROUBLE_S)
            await self._pause(tenant.pause_s * self._random.uniform(0.5, 1.5))

    async def _work(self, client: AsyncClient) -> None:
        """Handle messages of all tenants, in the fair order of the server."""
        fleet = client.fleet(QUEUE)
        while not self._stopping.is_set():
            try:
                for message in await fleet.poll(_POLL_MAX, wait_ms=_POLL_WAIT_MS):
                    await self._handle(message)
            except TenantqError:
                await self._pause(_TROUBLE_S)

    async def _handle(self, message: AsyncMessage) -> None:
        if self._stopping.is_set():
            await message.release()
            return
        if message.attempt == 1 and message.tenant in self._waits:
            self._waits[message.tenant].append(max(0, time.time_ns() // 1_000_000 - message.added_at))
        await asyncio.sleep(_HANDLE_S * self._random.uniform(0.5, 1.5))
        if message.body == _POISON:
            await message.nack(reason="demo: this job always fails")
        else:
            await message.ack()

    async def _keep_small(self) -> None:
        """Limit the dead letters of a demo that runs for days."""
        while not self._stopping.is_set():
            await self._pause(5)
            for tenant in TENANTS:
                letters = self._admin.tenant(tenant.name).queue(DEAD_LETTERS)
                try:
                    if (await letters.stats()).ready > _DEAD_MAX:
                        await letters.purge(confirm=DEAD_LETTERS, reason="demo: keep the disk small")
                except TenantqError:
                    continue  # the user may have deleted the tenant

    # ---- figures ----

    async def _figures_of(self, tenant: DemoTenant) -> DemoFigures:
        try:
            stats = await self._admin.tenant(tenant.name).queue(QUEUE).stats()
        except NotFound:
            return DemoFigures(tenant.name, tenant.weight, 0, 0, 0, 0, 0, 0, 0)
        now = time.monotonic()
        then, added, done = self._before.get(tenant.name, (now, stats.added_total, stats.acked_total))
        self._before[tenant.name] = (now, stats.added_total, stats.acked_total)
        seconds = max(now - then, 0.001)
        waits = sorted(self._waits[tenant.name]) or [0]
        return DemoFigures(
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
