"""A cluster on one machine: three servers with 64 shards on a Redis Cluster of three primaries and three replicas.

``python -m bench --only cluster`` runs everything; ``python -m bench.cluster PART…`` some parts. Each add is on the disks of a primary and
of its replica before its reply. Clients, servers and Redis share the machine, so compare figures with each other only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
from redis.crc import key_slot

from bench.table import Table, percentile
from tenantq.client.async_client import AsyncClient
from tenantq.client.settings import Retries
from tenantq.domain.placement import jump_hash, tenant_key
from tenantq.errors import TenantqError
from tenantq.store.redis.layout import Layout
from tests.crash.cluster_servers import NAME, TOKEN, Server
from tests.redis_servers import RedisNodes, ReplicatedNodes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SHARDS: Final = 64
HANG_S: Final = 30.0


class Prober:
    """Adds messages to one tenant one after the other, and records when each was confirmed."""

    def __init__(self, client: AsyncClient, tenant: str, shard: int) -> None:
        self.shard = shard
        self._queue = client.tenant(tenant).queue("work")
        self.times: list[float] = [time.perf_counter()]
        self.waits: list[float] = []
        self.errors = 0
        self.running = True

    async def run(self, pause_s: float) -> None:
        """Add until it is stopped."""
        while self.running:
            began = time.perf_counter()
            try:
                await self._queue.add("a" * 100)
            except TenantqError:
                self.errors += 1
            else:
                self.times.append(time.perf_counter())
                self.waits.append(self.times[-1] - began)
            await asyncio.sleep(pause_s)

    def gap(self, since: float) -> float:
        """Return the longest time between two confirmed adds, the second of which is after ``since``."""
        times = [*self.times, time.perf_counter()]
        return max(b - a for a, b in itertools.pairwise(times) if b >= since)


class Cluster:
    """Redis, servers and clients."""

    def __init__(self, directory: Path, *, quick: bool) -> None:
        self.quick = quick
        self.nodes = ReplicatedNodes(directory / "redis", "appendonly yes", "appendfsync always", timeout_ms=120_000)
        self.servers = [Server(number, directory, self.nodes.url, SHARDS) for number in range(3)]
        urls = [server.url for server in self.servers]
        self.client = AsyncClient(urls, TOKEN, retries=Retries(count=20, base_ms=20, max_ms=2_000), timeout_ms=60_000)
        self.tenants: dict[int, str] = {}  # by shard

    async def until_whole(self, count: int, *, without: str = "", balanced: bool = False) -> Any:
        """Wait until this many servers own all shards, no former server is left and no shard is moving; return the cluster."""
        even = 0
        while True:
            with contextlib.suppress(TenantqError):
                found = await self.client.platform().cluster()
                shares = [one.shards for one in found.members if not one.draining and one.id != without]
                if len(shares) == count and sum(shares) == SHARDS and not any(one.moving_to for one in found.shards):
                    even += 1
                    if not balanced or max(shares) - min(shares) <= 8 or even > 120:  # balancing may still move shards
                        return found
            await asyncio.sleep(0.25)

    def busiest(self, found: Any) -> str:
        """Return the ID of the server that owns most tenants."""
        owners: list[str] = [one.owner for one in found.shards if one.number in self.tenants]
        return max(set(owners), key=owners.count)

    async def create_tenants(self) -> None:
        """Create a tenant on every third shard."""
        number = 0
        while len(self.tenants) < SHARDS // 3:
            name = f"tenant-{number}"
            shard = jump_hash(tenant_key(name), SHARDS)
            if shard not in self.tenants:
                self.tenants[shard] = name
                await self.client.tenant(name).configure()
                await self.client.tenant(name).queue("work").configure()
            number += 1

    @contextlib.asynccontextmanager
    async def probing(self, pause_s: float = 0.02) -> Any:
        """Probe all tenants while the block runs."""
        probers = [Prober(self.client, tenant, shard) for shard, tenant in self.tenants.items()]
        tasks = [asyncio.ensure_future(one.run(pause_s)) for one in probers]
        try:
            yield probers
        finally:
            for one in probers:
                one.running = False
            await asyncio.gather(*tasks)

    async def close(self) -> None:
        """Stop everything."""
        await self.client.close()
        for server in self.servers:
            if not server.is_gone:
                server.end()
        self.nodes.stop()


async def throughput(cluster: Cluster) -> None:
    """Measure the throughput of one, two and three servers, and how evenly the primaries are loaded."""
    table = Table("servers", "adds/s", "p50 ms", "p99 ms", "keys per primary", "commits per primary")
    for count, server in enumerate(cluster.servers, 1):
        server.start()
        await cluster.until_whole(count, balanced=True)
        await cluster.create_tenants()
        primaries = sorted(cluster.nodes.primaries(), key=lambda node: node.port)
        before = [_commits(node) for node in primaries]
        started = time.perf_counter()
        async with cluster.probing(0) as first, cluster.probing(0) as second, cluster.probing(0) as third:
            await asyncio.sleep(2 if cluster.quick else 8)
        spent = time.perf_counter() - started
        waits = [wait for one in (*first, *second, *third) for wait in one.waits]
        commits = [_commits(node) - old for node, old in zip(primaries, before, strict=True)]
        table.row(
            count, f"{len(waits) / spent:,.0f}", f"{percentile(waits, 50) * 1e3:.1f}", f"{percentile(waits, 99) * 1e3:.1f}",
            " ".join(str(node.client().dbsize()) for node in primaries), " ".join(map(str, commits)),
        )  # fmt: skip
    table.show()


def _commits(node: Any) -> int:
    """Return how many commits the shards of a primary have had."""
    client = node.client()
    return sum(int(client.hget(key, "commit") or 0) for key in client.scan_iter("t:{*}:s", count=1_000))


async def forwarding(cluster: Cluster) -> None:
    """Compare calls at the owner of a tenant with forwarded ones, over HTTP, one at a time."""
    found = await _start(cluster)
    urls = {one.id: one.url for one in found.members}
    shard, tenant = next(iter(cluster.tenants.items()))
    owner = next(one.owner for one in found.shards if one.number == shard)
    table = Table("call", "p50 ms", "p99 ms")
    for name, url in (("at the owner", urls[owner]), ("forwarded", next(urls[id] for id in urls if id != owner))):
        waits: list[float] = []
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, base_url=url) as client:
            for _ in range(50 if cluster.quick else 1_000):
                began = time.perf_counter()
                reply = await client.post(
                    f"/v1/tenants/{tenant}/queues/work/messages", json={"messages": [{"body": "a"}]}
                )
                waits.append(time.perf_counter() - began)
                assert reply.status_code == 200, reply.text
        table.row(name, f"{percentile(waits, 50) * 1e3:.2f}", f"{percentile(waits, 99) * 1e3:.2f}")
    table.show()


async def handovers(cluster: Cluster) -> None:
    """Measure how long tenants are unavailable while their shards are handed over."""
    found = await _start(cluster)
    gaps: list[float] = []
    errors = 0
    while len(gaps) < (5 if cluster.quick else 50):
        member = cluster.busiest(found)
        async with cluster.probing() as probers:
            await asyncio.sleep(0.5)
            since = time.perf_counter()
            leaving = {one.number for one in found.shards if one.owner == member}
            await cluster.client.platform().drain_member(member)
            while any(one.owner == member for one in found.shards):
                await asyncio.sleep(0.1)
                found = await cluster.client.platform().cluster()
            await asyncio.sleep(0.5)
            gaps += [one.gap(since) for one in probers if one.shard in leaving]
            errors += sum(one.errors for one in probers)
        await cluster.client.platform().drain_member(member, drain=False)
        found = await cluster.until_whole(3)
    _show_gaps("handovers", gaps, errors)


async def takeovers(cluster: Cluster) -> None:
    """Measure how long tenants are unavailable after their server was killed."""
    found = await _start(cluster)
    gaps: list[float] = []
    errors = 0
    while len(gaps) < (5 if cluster.quick else 50):
        member = cluster.busiest(found)
        url = next(one.url for one in found.members if one.id == member)
        server = next(one for one in cluster.servers if one.url == url)
        async with cluster.probing() as probers:
            await asyncio.sleep(0.5)
            since = time.perf_counter()
            await asyncio.to_thread(server.end, signal.SIGKILL)
            lost = {one.number for one in found.shards if one.owner == member}
            await asyncio.sleep(6)
            gaps += [one.gap(since) for one in probers if one.shard in lost]
            errors += sum(one.errors for one in probers)
        server.start()
        found = await cluster.until_whole(3, without=member)
    _show_gaps("takeovers", gaps, errors)


def _show_gaps(what: str, gaps: list[float], errors: int) -> None:
    table = Table("unavailable during", "count", "p50 ms", "max ms", "errors")
    table.row(what, len(gaps), f"{percentile(gaps, 50) * 1e3:.0f}", f"{max(gaps) * 1e3:.0f}", errors)
    table.show()


async def hang(cluster: Cluster) -> None:
    """Measure shards on two primaries while the third, which has the cluster's own rows, hangs."""
    await _start(cluster)
    slot = key_slot(f"{{{NAME}}}".encode())
    hanging = next(node for node in cluster.nodes.primaries() if RedisNodes.holds(node, slot))
    on_it = {shard for shard in cluster.tenants if RedisNodes.holds(hanging, key_slot(Layout(NAME, str(shard)).state))}
    seconds = 3.0 if cluster.quick else HANG_S
    table = Table("", "p50 ms", "p99 ms", "max ms", "/healthz max ms")
    async with cluster.probing() as probers:
        for name in ("before", f"while a primary hangs for {seconds:.0f} s"):
            if name != "before":
                hanging.signal(signal.SIGSTOP)
            for one in probers:
                one.waits.clear()
            slowest = await _watch_health(cluster, seconds)
            waits = [wait for one in probers if one.shard not in on_it for wait in one.waits]
            table.row(
                name, f"{percentile(waits, 50) * 1e3:.1f}", f"{percentile(waits, 99) * 1e3:.1f}", f"{max(waits) * 1e3:.0f}",
                f"{slowest * 1e3:.0f}",
            )  # fmt: skip
        hanging.signal(signal.SIGCONT)
    table.show()


async def _watch_health(cluster: Cluster, seconds: float) -> float:
    ends, slowest = time.perf_counter() + seconds, 0.0
    async with httpx.AsyncClient(timeout=60) as client:
        while time.perf_counter() < ends:
            for server in cluster.servers:
                began = time.perf_counter()
                assert (await client.get(f"{server.url}/healthz")).status_code == 200
                slowest = max(slowest, time.perf_counter() - began)
            await asyncio.sleep(0.2)
    return slowest


async def _start(cluster: Cluster) -> Any:
    """Start the servers that are not running, and return the cluster once they share the shards."""
    for server in cluster.servers:
        if server.process is None:
            server.start()
    found = await cluster.until_whole(3, balanced=True)
    await cluster.create_tenants()
    return found


PARTS: Final[dict[str, Callable[[Cluster], Awaitable[None]]]] = {
    "throughput": throughput,
    "forwarding": forwarding,
    "handovers": handovers,
    "takeovers": takeovers,
    "hang": hang,
}


async def run(directory: Path, *, quick: bool, parts: tuple[str, ...] = tuple(PARTS)) -> None:
    """Run some parts on one cluster."""
    cluster = Cluster(directory, quick=quick)
    try:
        for part in parts:
            await PARTS[part](cluster)
    finally:
        await cluster.close()


def main() -> None:
    """Read the command line, run, print the figures."""
    parser = argparse.ArgumentParser(description="measure a cluster of three servers on one machine")
    parser.add_argument("parts", metavar="PART", nargs="*", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="run few repetitions, only to check that everything works")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="tenantq-bench-") as scratch:
        parts = tuple(
            one for one in PARTS if not options.parts or one in options.parts
        )  # throughput starts the servers
        asyncio.run(run(Path(scratch), quick=options.quick, parts=parts))


if __name__ == "__main__":
    main()
