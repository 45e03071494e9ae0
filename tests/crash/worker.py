"""A process under random concurrent traffic that gets killed: ``python -m tests.crash.worker DIR --seed N``.

It opens a shard on DIR, adds, polls, settles and removes in several coroutines, and writes every intent and every
reply to stdout (see events.py). At the K-th hit of a named point it kills itself; otherwise it closes the shard after
``--seconds``. Exit status 3: the shard stopped because of its store.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tenantq.domain.message import NewMessage, Result
from tenantq.engine.settings import ShardSettings
from tenantq.errors import Closed, StoreFailed, TenantqError
from tenantq.runtime.clock import SystemClock
from tenantq.store.framing import walk
from tenantq.store.redis.address import parse_address
from tenantq.store.redis.settings import RedisSettings
from tests.administration import put_queue, put_tenant, queues, tenants
from tests.crash import events
from tests.crash.events import emit
from tests.redis_servers import open_when_free
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tenantq.domain.message import Delivery, Outcome
    from tenantq.store.interface import Store

TENANTS = ("default", "acme", "zeta")
ATTEMPTS = {"work": 4, "ordered.fifo": 4, "groups": 4, "slow": 2}
QUEUES = tuple(ATTEMPTS)
BACKLOG_MAX = 250
STOPPED = 3


class Carried(msgspec.Struct):
    """What a worker takes over from the workers killed before it."""

    retries: list[tuple[str, str, str, str]] = []  # token, tenant, queue, key: adds whose reply never arrived
    receipts: list[tuple[str, str, str, str]] = []  # token, tenant, queue, receipt: leases that should still be valid
    trim_to: int = 0  # the parent has read the journal up to this record


class Traffic:
    """Random work on one shard."""

    def __init__(self, shard: Shard, rng: random.Random, name: str, body_bytes: int) -> None:
        self.shard = shard
        self.rng = rng
        self.name = name
        self.body_bytes = body_bytes
        self.count = 0
        self.ids: dict[str, tuple[str, str, bytes]] = {}  # token -> tenant, queue, id
        self.keyed: list[tuple[str, str, str, str]] = []  # token, tenant, queue, key

    def now(self) -> int:
        return self.shard.state.shard_clock.now_ms()

    def token(self) -> str:
        self.count += 1
        return f"{self.name}.{self.count}"

    async def make_queues(self) -> None:
        """Create the missing tenants and queues."""
        for tenant in TENANTS:
            if tenant not in tenants(self.shard):
                await put_tenant(self.shard, tenant, weight=TENANTS.index(tenant) + 1)
            for queue in QUEUES:
                if queue not in queues(self.shard, tenant):
                    await put_queue(self.shard, tenant, queue, max_attempts=ATTEMPTS[queue], backoff_base_ms=20)

    # ---- producing ----

    async def produce(self) -> None:
        """Add small batches forever, while the backlog is small."""
        rng = self.rng
        while True:
            await asyncio.sleep(rng.random() * 0.004)
            if sum(queue.messages for queue in self.shard.state.catalog.queues()) > BACKLOG_MAX and not self.body_bytes:
                await asyncio.sleep(0.02)
                continue
            tenant, queue = rng.choice(TENANTS), rng.choice(QUEUES)
            if self.keyed and rng.random() < 0.1:
                await self.add_again(*rng.choice(self.keyed))
                continue
            batch = [self.new_message(tenant, queue) for _ in range(rng.choice((1, 1, 2, 4)))]
            await self.add(tenant, queue, [token for token, _ in batch], [message for _, message in batch])

    def new_message(self, tenant: str, queue: str) -> tuple[str, NewMessage]:
        rng, token = self.rng, self.token()
        key = f"key-{token}" if rng.random() < 0.3 else None
        grouped = queue == "ordered.fifo" or (queue == "groups" and rng.random() < 0.7)
        if key is not None:
            self.keyed.append((token, tenant, queue, key))
        return token, NewMessage(
            body=events.body_of(token, self.body_bytes),
            priority=rng.choice((0, 0, 0, 5, 9)),
            delay_ms=rng.choice((0, 0, 0, 10, 80, 600)) if queue != "ordered.fifo" else 0,
            ttl_ms=rng.choice((40, 200, 2_000)) if rng.random() < 0.08 else None,
            key=key,
            group=f"g{rng.randrange(3)}" if grouped else None,
            attributes={"token": token} if rng.random() < 0.2 else {},
            max_attempts=rng.choice((1, 3)) if rng.random() < 0.1 else None,
        )

    async def add(self, tenant: str, queue: str, tokens: list[str], messages: list[NewMessage]) -> None:
        for token, m in zip(tokens, messages, strict=True):
            emit(
                events.ADD, self.now(), token, tenant, queue, m.key, m.group, m.ttl_ms or 0, m.delay_ms,
                m.max_attempts or ATTEMPTS[queue],
            )  # fmt: skip
        try:
            replies = await self.shard.add(tenant, queue, messages)
        except TenantqError as error:
            for token in tokens:
                emit(events.REFUSED, self.now(), token, type(error).__name__)
            raise
        for token, reply in zip(tokens, replies, strict=True):
            if reply.error is not None:
                emit(events.REFUSED, self.now(), token, type(reply.error).__name__)
                continue
            emit(events.ADDED, self.now(), token, reply.raw_id.hex(), int(reply.duplicate))
            self.ids[token] = (tenant, queue, reply.raw_id)

    async def add_again(self, token: str, tenant: str, queue: str, key: str) -> None:
        """Retry an add with its key, like a client that never saw the reply."""
        message = NewMessage(body=events.body_of(token, self.body_bytes), key=key)
        await self.add(tenant, queue, [token], [message])

    async def remove(self) -> None:
        """Remove a message by ID now and then."""
        while True:
            await asyncio.sleep(0.01 + self.rng.random() * 0.03)
            if self.ids:
                token = self.rng.choice(list(self.ids))
                tenant, queue, id = self.ids.pop(token)
                emit(events.REMOVE, self.now(), token, id.hex())
                outcome = (await self.shard.remove(tenant, queue, [id]))[0]
                emit(events.REMOVED, self.now(), token, id.hex(), _shown(outcome))

    # ---- consuming ----

    async def consume(self) -> None:
        """Poll, and settle in every possible way."""
        rng = self.rng
        while True:
            queue = rng.choice((*QUEUES, *QUEUES, "slow-dlq", "groups-dlq"))
            lease_ms = rng.choice((25, 60, 150, 400, 3_000))
            most, wait_ms = rng.choice((1, 1, 3, 8)), rng.choice((0, 5, 25, 80))
            tenant = rng.choice(TENANTS)
            try:
                if rng.random() < 0.15:
                    got = await self.shard.fleet_poll(queue, max=most, wait_ms=wait_ms, lease_ms=lease_ms)
                else:
                    got = await self.shard.poll(tenant, queue, max=most, wait_ms=wait_ms, lease_ms=lease_ms)
            except TenantqError as error:
                if isinstance(error, StoreFailed | Closed):
                    raise
                await asyncio.sleep(0.002)  # no dead-letter queue yet
                continue
            self.tell(got, lease_ms)
            if not got:
                await asyncio.sleep(0.001)
            await self.settle(got)

    def tell(self, got: list[Delivery], lease_ms: int) -> None:
        offset = self.shard.state.shard_clock.wall_offset_ms()
        for one in got:
            token = events.token_of(one.body)
            if token is None:
                emit(events.TORN, self.now(), one.raw_id.hex(), one.body[:80].hex())
                continue
            until = one.lease_until - offset
            emit(
                events.DELIVERED, self.now(), token, one.raw_id.hex(), one.receipt, one.attempt, one.tenant, one.queue,
                until - lease_ms, until, one.group,
            )  # fmt: skip

    async def settle(self, got: list[Delivery]) -> None:
        rng = self.rng
        for one in got:
            choice = rng.random()
            if choice < 0.55:
                await self.settle_one("ack", one)
            elif choice < 0.68:
                await self.settle_one("nack", one, rng.choice((0, 0, 30)))
            elif choice < 0.75:
                await self.settle_one("release", one)
            elif choice < 0.85:
                if await self.settle_one("extend", one, rng.choice((20, 300))):
                    await self.settle_one("ack", one)
            elif choice < 0.9:
                await asyncio.sleep(rng.random() * 0.1)  # possibly too late
                await self.settle_one("ack", one)

    async def settle_one(self, verb: str, one: Delivery, argument: int = 0) -> bool:
        token = events.token_of(one.body) or ""
        return await self.settle_receipt(verb, token, one.tenant, one.queue, one.receipt, argument)

    async def settle_receipt(
        self, verb: str, token: str, tenant: str, queue: str, receipt: str, argument: int = 0
    ) -> bool:
        shard = self.shard
        emit(events.SETTLE, self.now(), verb, token, receipt, argument)
        if verb == "ack":
            results = [Result("completed", token.encode())] if self.rng.random() < 0.2 else None
            outcomes = await shard.ack(tenant, queue, [receipt], results=results)
        elif verb == "nack":
            outcomes = await shard.nack(tenant, queue, [receipt], delay_ms=argument, reason="on purpose")
        elif verb == "release":
            outcomes = await shard.release(tenant, queue, [receipt])
        else:
            outcomes = await shard.extend(tenant, queue, [receipt], lease_ms=argument)
        outcome = outcomes[0]
        until = outcome.lease_until - shard.state.shard_clock.wall_offset_ms() if outcome.lease_until else 0
        emit(events.SETTLED, self.now(), verb, token, receipt, _shown(outcome), until)
        return outcome.ok

    # ---- all together ----

    async def take_over(self, carried: Carried) -> None:
        """Continue where a killed worker stopped: retry its adds, finish its leases."""
        for token, tenant, queue, receipt in carried.receipts:
            await self.settle_receipt("ack", token, tenant, queue, receipt)
        for retry in carried.retries:
            await self.add_again(*retry)
        first, last = self.shard.journal.span
        if first <= carried.trim_to <= last:
            await self.shard.journal.trim(carried.trim_to)


def _shown(outcome: Outcome) -> str:
    return "ok" if outcome.ok else type(outcome.error).__name__


class Probe:
    """Watches the named points: records log sizes around syncs, and kills the process at its point."""

    def __init__(self, directory: Path, point: str, after: int, *, sizes: bool) -> None:
        self.directory = directory
        self.point = point
        self.left = after
        self.sizes = sizes

    def __call__(self, point: str) -> None:
        if self.sizes and point in {"before_sync", "after_sync"}:
            emit(events.SIZES, point.partition("_")[0], *self._sizes())
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                emit(events.CRASH, point)
                os.kill(os.getpid(), signal.SIGKILL)

    def _sizes(self) -> list[str]:
        found = []
        for path in (self.directory / "db").glob("*.log"):
            with contextlib.suppress(FileNotFoundError):  # deleted in the meantime, after a flush
                found.append(f"{path.name}:{walk(path.read_bytes())[0]}")
        return found


async def run(arguments: argparse.Namespace) -> int:
    """Run traffic until the time is up or the shard stops."""
    directory: Path = arguments.directory
    settings = ShardSettings(
        durability=arguments.durability,
        sync_every_ms=arguments.sync_every_ms,
        memory_bytes=arguments.memory_mib << 20,
        disk_reserve_bytes=0,
    )
    probe = Probe(directory, arguments.crash_point, arguments.crash_after, sizes=arguments.sizes)
    rng = random.Random(arguments.seed)
    opener = None
    if arguments.store:
        wanted = msgspec.json.decode(arguments.store_settings, type=RedisSettings)
        address = parse_address(arguments.store)

        async def opener(name: str) -> Store:
            return await open_when_free(directory, address, wanted, name, durability=arguments.durability)

    shard = Shard(directory, settings=settings, probe=probe, open_store=opener)
    await shard.open()
    traffic = Traffic(shard, rng, arguments.name or f"s{arguments.seed}", arguments.body_bytes)
    emit(events.OPENED, traffic.now(), SystemClock().monotonic_ms(), shard.journal.span[1])
    carried = msgspec.json.decode(arguments.carried.read_bytes(), type=Carried) if arguments.carried else Carried()
    jobs: list[Callable[[], Coroutine[None, None, None]]] = (
        [traffic.produce] * 3 + [traffic.consume] * arguments.consumers + [traffic.remove]
    )
    try:
        await traffic.make_queues()
        await traffic.take_over(carried)
        tasks = [asyncio.ensure_future(job()) for job in jobs]
        stop = asyncio.ensure_future(shard.loop.stopped.wait())
        await asyncio.wait([stop, *tasks], timeout=arguments.seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in (stop, *tasks):
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, StoreFailed):
                raise ended
    except StoreFailed:
        pass  # reported below
    failure = shard.failure
    with contextlib.suppress(StoreFailed):
        await shard.close()
    if failure is not None:
        emit(events.FAILED, type(failure).__name__, *str(failure).split())
        return STOPPED
    emit(events.DONE, "closed")
    return 0


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description="random traffic on a shard, to be killed")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--name", default="", help="what this worker's tokens start with")
    parser.add_argument("--crash-point", choices=("none", *events.POINTS), default="none")
    parser.add_argument("--crash-after", type=int, default=1, help="hits of the crash point until the kill")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--durability", choices=("fsync", "os"), default="fsync")
    parser.add_argument("--sync-every-ms", type=int, default=20)
    parser.add_argument("--memory-mib", type=int, default=96, help="small values make the store flush all the time")
    parser.add_argument("--body-bytes", type=int, default=0, help="0: small bodies of various sizes, bounded backlog")
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--sizes", action="store_true", help="tell the log's size around every sync")
    parser.add_argument("--file-bytes-max", type=int, default=0, help="let writes beyond this size of a file fail")
    parser.add_argument("--store", help="URL of a Redis store; none: the embedded one")
    parser.add_argument("--store-settings", default="{}", help="its settings, as JSON")
    parser.add_argument("--carried", type=Path, help="a JSON file of what to take over from earlier workers")
    arguments = parser.parse_args()
    if arguments.file_bytes_max:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (arguments.file_bytes_max, hard))
    sys.exit(asyncio.run(run(arguments)))


if __name__ == "__main__":
    main()
