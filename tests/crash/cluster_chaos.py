"""Faults in a whole cluster under load: ``python -m tests.crash.cluster_chaos --minutes 20 --seed 1``, or ``make chaos-cluster``.

Three servers share 64 shards on a Redis Cluster of three primaries and three replicas. Each server is a host with its own network
and clocks, and each Redis node has its own network. Clients of the SDK, Amazon SQS and Cap'n Proto add, poll, ack and nack all the
time, checked by ``TotalQueue``, while a seeded choice of faults happens. Servers are killed, paused, stopped, drained, and cut off from
each other, from Redis or from one primary. Primaries are killed, hang, and hand over. Slots and tenants move, and clocks jump.
The exit status is 0 only if nothing was lost, brought back or made up, leases were kept, and the doctor finds nothing. Where the
machine allows no network namespaces, everything runs on loopback and nothing is cut off.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

from redis.crc import key_slot

from tenantq.cli.exit_codes import UNAVAILABLE
from tenantq.client.async_client import AsyncClient
from tenantq.client.settings import Retries
from tenantq.errors import Conflict, NotFound, TenantqError
from tenantq.rpc.kj_loop import kj_loop
from tenantq.store.redis.layout import Layout
from tenantq.wire.cluster import PlacementRequest
from tests.crash.cluster_load import FleetLoad, Load
from tests.crash.cluster_servers import NAME, TOKEN, Server
from tests.crash.cluster_transports import RpcQueueClient, SqsQueueClient
from tests.crash.hosts_network import Host, enter_own_network, open_network
from tests.crash.skewed_server import set_offset
from tests.redis_servers import RedisNodes, RedisServer, ReplicatedNodes

MODULE = "tests.crash.cluster_chaos"
OWNER_LEASE_S = 3.0
TENANTS = 9
FLEET = 3
"""The first tenants, which are polled together."""
OVER_SQS: Final = frozenset({3, 4})
OVER_RPC: Final = frozenset({5, 6})
RECOVERY_S = 60.0
DRAIN_S = 120.0
DOCTOR_S = 120.0
ERRORS_SHOWN = 20
KINDS = (
    "lost", "resurrected", "unexpected", "doubled", "duplicates not by lease rules", "duplicates by lease rules",
)  # fmt: skip
UNNOTICED: Final = frozenset(
    {
        "server drained",
        "two servers drained",
        "server stopped",
        "tenants move",
        "primary hands over",
        "slot migrates",
        "clock jumps",
    }
)
"""Faults that clients must not notice."""
MOVED = 3
"""Tenants that move at the same time."""
FSYNC = ("appendonly yes", "appendfsync always")


class Chaos:
    """The cluster, its load, and its faults."""

    def __init__(self, scratch: Path, seed: int, shards: int, *, has_network: bool) -> None:
        self.scratch, self.shards = scratch, shards
        self.rng = random.Random(seed)
        self.hosts: list[Host] = []  # of servers
        self.node_hosts: list[Host] = []  # of Redis nodes
        if has_network:
            open_network()
            self.hosts = [Host(11 + number) for number in range(3)]
            self.node_hosts = [Host(21 + number) for number in range(6)]
        self.nodes = ReplicatedNodes(scratch / "redis", *FSYNC, hosts=self.node_hosts)
        self.servers = [
            Server(number, scratch, self.nodes.url, shards, self.hosts[number] if self.hosts else None)
            for number in range(3)
        ]
        self.loads: list[Load] = []
        self.queues: list[SqsQueueClient | RpcQueueClient] = []
        self.fleet: FleetLoad
        self.clients: list[AsyncClient] = []
        self.longest: dict[str, list[float]] = defaultdict(list)  # by fault: the longest gap of each run
        self.elsewhere: list[float] = []  # the longest gaps of tenants whose primary was not cut off
        self.restarts = 0  # of servers whose store was out of reach when they started
        self.wrongs: list[str] = []
        self.faults: dict[str, Callable[[], Awaitable[object]]] = {
            "server killed": self._kill_server,
            "server paused": self._pause_server,
            "server stopped": self._stop_server,
            "server drained": self._drain_server,
            "two servers drained": self._drain_two,
            "all servers killed": self._kill_all,
            "all servers stopped": self._stop_all,
            "tenants move": self._move_tenants,
            "tenants move, server killed": self._kill_during_moves,
            "tenants move, server paused": self._pause_during_moves,
            "tenants are spread": self._spread_tenants,
            "tenants are spread, server killed": self._kill_during_spread,
            "primary killed": self._kill_primary,
            "primary hands over": self._hand_over,
            "primary hangs": self._hang_primary,
            "slot migrates": self._migrate,
            "clock jumps": self._jump,
        }
        if has_network:
            self.faults |= {
                "server cut off from Redis": self._cut_redis,
                "server cut off from one primary": self._cut_primary,
                "servers cut off from each other": self._cut_peers,
            }

    # ---- the cluster ----

    async def start(self) -> None:
        """Start the servers and the load."""
        for server in self.servers:
            server.start()
        for number in range(3):
            self._client(number, TOKEN)
        assert await self.until_whole(120), f"the servers have not started; see the logs in {self.scratch}"
        for number in range(TENANTS):
            tenant = f"tenant-{number}"
            admin = self.clients[number % 3].tenant(tenant)
            await admin.configure()
            key = await admin.create_key("load", role="tenant-admin")
            name = "work.fifo" if number in OVER_SQS else "work"
            client: SqsQueueClient | RpcQueueClient | None = None
            if number in OVER_SQS:
                client = SqsQueueClient(self.servers, number, key.key_id, key.secret, name)
                await client.create()
            elif number in OVER_RPC:
                client = RpcQueueClient(self.servers, number, key.token, name)
            if client is not None:
                self.queues.append(client)
            await admin.queue(name).configure(max_attempts=1_000)
            queue = self._client(number, key.token).tenant(tenant).queue(name)
            self.loads.append(Load(tenant, queue, random.Random(number), client))
        by_fleet = {load.tenant: load for load in self.loads[:FLEET]}
        self.fleet = FleetLoad(self.clients[0].fleet("work", tenants=list(by_fleet)), by_fleet)

    def _client(self, number: int, token: str) -> AsyncClient:
        """Return a client of all servers."""
        urls = [server.url for server in self.servers]
        first = number % len(urls)
        client = AsyncClient(
            urls[first:] + urls[:first],
            token,
            timeout_ms=2_500,
            connect_timeout_ms=1_000,
            retries=Retries(count=20, base_ms=50, max_ms=2_000),
        )
        self.clients.append(client)
        return client

    async def cluster(self) -> Any:
        """Return the cluster as described by the first server that answers."""
        for client in self.clients[:3]:
            with contextlib.suppress(TenantqError):
                return await client.platform().cluster()
        return None

    async def _member_ids(self) -> dict[str, str]:
        """Return the ids of the members by their addresses."""
        found = await self.cluster()
        return {one.url: one.id for one in found.members} if found is not None else {}

    async def until_whole(self, seconds: float, *, left: Collection[str] = ()) -> bool:
        """Wait until all servers are members, every shard has one owner, and every tenant is served.

        The members in ``left`` were processes that have ended since.
        """
        ends, began = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < ends:
            self._supervise()
            found = await self.cluster()
            if (
                found is not None
                and len(found.members) == 3
                and not any(member.id in left for member in found.members)
                and all(shard.owner is not None for shard in found.shards)
                and all(load.successes[-1] > began for load in self.loads)
            ):
                return True
            await asyncio.sleep(0.1)
        return False

    def _supervise(self) -> None:
        """Restart servers that could not start because their store did not answer, as a supervisor does."""
        for server in self.servers:
            if server.is_gone:
                code = server.wait()
                if code != UNAVAILABLE:
                    self.wrongs.append(f"a server ended with {code}")
                self.restarts += 1
                server.start()

    # ---- faults ----

    def _any_server(self) -> Server:
        return self.rng.choice(self.servers)

    async def _kill_server(self) -> None:
        server = self._any_server()
        await asyncio.to_thread(server.end)
        await asyncio.sleep(self.rng.choice((0.0, 2.0, 6.0)))
        server.start()

    async def _pause_server(self) -> None:
        server = self._any_server()
        server.send(signal.SIGSTOP)
        await asyncio.sleep(OWNER_LEASE_S + self.rng.choice((0.5, 2.0, 4.0)))
        server.send(signal.SIGCONT)

    async def _stop_server(self) -> None:
        server = self._any_server()
        code = await asyncio.to_thread(server.end, signal.SIGTERM)
        if code != 0:
            self.wrongs.append(f"a stopped server ended with {code}")
        server.start()

    async def _drain_server(self) -> None:
        await self._drain(1)

    async def _drain_two(self) -> None:
        await self._drain(2)

    async def _drain(self, count: int) -> None:
        """Drain members at once or shortly after each other, and let them have shards again when they have none."""
        found = await self.cluster()
        if found is None:
            return
        members = self.rng.sample(sorted(one.id for one in found.members), count)
        platform = self.clients[0].platform()
        pause_s = self.rng.choice((0.0, 0.2, 0.4))  # shards are on their way to those that follow
        await asyncio.gather(*(self._drain_later(member, number * pause_s) for number, member in enumerate(members)))
        ends = time.monotonic() + 30
        while any(one.owner in members for one in found.shards) and time.monotonic() < ends:
            await asyncio.sleep(0.1)
            found = await self.cluster() or found
        if any(one.owner in members for one in found.shards):
            self.wrongs.append(f"{count} drained members still have shards after 30 s")
        for member in members:
            with contextlib.suppress(NotFound):
                await platform.drain_member(member, drain=False)

    async def _drain_later(self, member: str, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        await self.clients[0].platform().drain_member(member)

    async def _kill_all(self) -> None:
        for server in self.servers:
            server.send(signal.SIGKILL)
        for server in self.servers:
            await asyncio.to_thread(server.wait)
            server.start()

    async def _stop_all(self) -> None:
        for server in self.servers:
            server.send(signal.SIGTERM)
        for server in self.servers:
            code = await asyncio.to_thread(server.wait)
            if code != 0:
                self.wrongs.append(f"a stopped server ended with {code}")
        for server in self.servers:
            server.start()

    async def _begin_moves(self) -> dict[str, int]:
        """Start to move some tenants, and return their new shards."""
        moves = {}
        for load in self.rng.sample(self.loads, MOVED):
            shard = self.rng.randrange(self.shards)
            with contextlib.suppress(Conflict):  # an earlier move has not ended yet
                await self.clients[0].platform().place_tenant(load.tenant, PlacementRequest(shard=shard))
                moves[load.tenant] = shard
        return moves

    async def _end_moves(self, moves: dict[str, int]) -> None:
        """Wait until the tenants have moved."""
        ends = time.monotonic() + RECOVERY_S
        for tenant, shard in moves.items():
            placement = None
            while placement is None or placement.moves or placement.shard != shard:
                if time.monotonic() >= ends:
                    self.wrongs.append(f"{tenant} has not moved to shard {shard}: {placement}")
                    break
                await asyncio.sleep(0.05)
                with contextlib.suppress(TenantqError):
                    placement = await self.clients[0].platform().placement(tenant)

    async def _move_tenants(self) -> None:
        await self._end_moves(await self._begin_moves())

    async def _begin_spread(self) -> dict[str, int]:
        """Start to spread some tenants over other numbers of shards, and return these."""
        wanted = {}
        for load in self.rng.sample(self.loads, MOVED):
            spread = self.rng.choice((1, 2, 4))
            with contextlib.suppress(Conflict):  # an earlier change has not ended yet
                await self.clients[0].platform().place_tenant(load.tenant, PlacementRequest(spread=spread))
                wanted[load.tenant] = spread
        return wanted

    async def _end_spread(self, wanted: dict[str, int]) -> None:
        """Wait until the tenants are spread."""
        ends = time.monotonic() + RECOVERY_S
        for tenant, spread in wanted.items():
            placement = None
            while placement is None or placement.changing or placement.moves or placement.spread != spread:
                if time.monotonic() >= ends:
                    self.wrongs.append(f"{tenant} is not spread over {spread} shards: {placement}")
                    break
                await asyncio.sleep(0.05)
                with contextlib.suppress(TenantqError):
                    placement = await self.clients[0].platform().placement(tenant)

    async def _spread_tenants(self) -> None:
        await self._end_spread(await self._begin_spread())

    async def _kill_during_spread(self) -> None:
        wanted = await self._begin_spread()
        await asyncio.sleep(self.rng.uniform(0, 0.5))
        await self._kill_server()
        await self._end_spread(wanted)

    async def _kill_during_moves(self) -> None:
        moves = await self._begin_moves()
        await asyncio.sleep(self.rng.uniform(0, 0.3))
        await self._kill_server()
        await self._end_moves(moves)

    async def _pause_during_moves(self) -> None:
        moves = await self._begin_moves()
        await asyncio.sleep(self.rng.uniform(0, 0.3))
        await self._pause_server()
        await self._end_moves(moves)

    async def _cut(self, one: Host, others: Sequence[Host]) -> None:
        """Cut a host off from others for a while, in one direction or both."""
        to_others, to_one = [(one, other) for other in others], [(other, one) for other in others]
        ends = self.rng.choice((to_others + to_one, to_others, to_one))
        for sender, receiver in ends:
            sender.cut(receiver)
        await asyncio.sleep(self.rng.choice((1.0, 5.0, 9.0)))
        for sender, receiver in ends:
            sender.heal(receiver)

    async def _cut_redis(self) -> None:
        await self._cut(self.rng.choice(self.hosts), self.node_hosts)

    async def _cut_peers(self) -> None:
        one, other = self.rng.sample(self.hosts, 2)
        await self._cut(one, [other])

    async def _cut_primary(self) -> None:
        """Cut the server of some tenant off from that tenant's primary: it keeps serving its shards on others."""
        found = await self.cluster()
        if found is None:
            return
        shard = (await self.clients[0].platform().placement(self.rng.choice(self.loads).tenant)).shard
        primary = next(one for one in self.nodes.primaries() if _has(one, shard))
        owner = next((one for one in found.members if one.id == found.shards[shard].owner), None)
        server = next((one for one in self.servers if owner is not None and one.url == owner.url), None)
        if owner is None or server is None or server.host is None:
            return
        here = {one.number for one in found.shards if one.owner == owner.id and not _has(primary, one.number)}
        elsewhere = [load for load in self.loads if here >= await self._shards_of(load)]
        before = time.monotonic()
        await self._cut(server.host, [self.node_hosts[self.nodes.nodes.index(primary)]])
        after = time.monotonic()
        for load in elsewhere:
            gap = load.longest_gap(before, after)
            self.elsewhere.append(gap)
            if gap >= min(OWNER_LEASE_S, after - before):
                self.wrongs.append(f"{load.tenant} was not served for {gap:.1f} s, although its primary was reachable")

    async def _shards_of(self, load: Load) -> set[int]:
        placement = await self.clients[0].platform().placement(load.tenant)
        return {placement.shard, *placement.shards}

    async def _kill_primary(self) -> None:
        await asyncio.to_thread(self.nodes.kill, self.rng.choice(self.nodes.primaries()))

    async def _hand_over(self) -> None:
        await asyncio.to_thread(self.nodes.hand_over, self.rng.choice(self.nodes.primaries()))

    async def _hang_primary(self) -> None:
        primary = self.rng.choice(self.nodes.primaries())
        primary.signal(signal.SIGSTOP)
        await asyncio.sleep(self.rng.choice((0.7, 3.0, 6.0)))
        primary.signal(signal.SIGCONT)

    async def _migrate(self) -> None:
        shard = self.rng.randrange(self.shards)
        await asyncio.to_thread(self.nodes.migrate, Layout(NAME, str(shard)).state)

    async def _jump(self) -> None:
        for server in self.servers:
            set_offset(server.clock_file, self.rng.randint(-5_000, 5_000))
        await asyncio.sleep(1)

    async def happen(self, name: str) -> str:
        """Inject one fault, wait for full recovery, and return what it cost."""
        await asyncio.to_thread(self.nodes.settle)
        members, processes = await self._member_ids(), [server.process for server in self.servers]
        started, known = time.monotonic(), {load.tenant: len(load.errors) for load in self.loads}
        await self.faults[name]()
        await asyncio.to_thread(self.nodes.settle)
        pairs = zip(self.servers, processes, strict=True)
        left = {
            members[server.url] for server, process in pairs if server.process is not process and server.url in members
        }
        if not await self.until_whole(RECOVERY_S, left=left):
            found = await self.cluster()
            late = [load.tenant for load in self.loads if time.monotonic() - load.successes[-1] > 5]
            shards = [one.number for one in found.shards if one.owner is None] if found is not None else "unknown"
            self.wrongs.append(f"not whole {RECOVERY_S:.0f} s after {name}: tenants {late}, shards {shards}")
        ended = time.monotonic()
        gaps = sorted(load.longest_gap(started, ended) for load in self.loads)
        self.longest[name].append(gaps[-1])
        errors = [one for load in self.loads for one in load.errors[known[load.tenant] :]]
        if name in UNNOTICED:
            self.wrongs += [f"{name}: a client saw {text}" for _, text in errors]
        shown = f"longest unavailability {gaps[-1] * 1_000:6.0f} ms, median of tenants {gaps[len(gaps) // 2] * 1_000:5.0f} ms"
        return f"{name:32} {ended - started:5.1f} s, {shown}, {len(errors)} errors"

    # ---- final checks ----

    async def drain_queues(self, producers: Collection[asyncio.Task[None]]) -> None:
        """Let producers confirm their last messages, and consumers drain all queues."""
        for load in self.loads:
            load.producing = False
        await self.end_loads(producers)
        ends = time.monotonic() + DRAIN_S
        for load in self.loads:
            while time.monotonic() < ends:
                facts = await load.queue.stats()
                if not (facts.ready or facts.in_flight or facts.delayed):
                    break
                await asyncio.sleep(0.2)
            load.consuming = False

    async def end_loads(self, work: Collection[asyncio.Task[None]]) -> None:
        """Wait until some producers or consumers have ended."""
        _, stuck = await asyncio.wait(work, timeout=RECOVERY_S)
        if stuck:
            last = {load.tenant: load.errors[-1][1] for load in self.loads if load.errors}
            self.wrongs.append(f"{len(stuck)} loads do not end; the last errors of tenants: {last}")
        for task in set(work) - stuck:
            task.result()

    def is_wrong(self, *, once: bool) -> bool:
        """Return whether a promise was broken. A run of each fault ``once`` also ends at the first late recovery."""
        return any(load.checker.wrongs for load in self.loads) or (once and bool(self.wrongs))

    def examine(self) -> None:
        """Have the doctor examine all shards after the servers stopped."""
        server = self.servers[0]
        command = [sys.executable, "-m", "tenantq", "doctor", "--json", "--data-dir", str(server.data_dir)]
        done = subprocess.run(command, env=server.environment, capture_output=True, check=False, timeout=DOCTOR_S)
        try:
            report = json.loads(done.stdout)
        except ValueError:
            report = {}
        if done.returncode or not report.get("clean"):
            self.wrongs.append(f"doctor: {(done.stdout + done.stderr).decode(errors='replace')[:2_000]}")

    def close(self) -> None:
        """Stop everything."""
        for server in self.servers:
            if not server.is_gone:
                server.send(signal.SIGCONT)
                server.end()
        self.nodes.stop()
        for host in (*self.hosts, *self.node_hosts):
            host.close()

    def report(self, seconds: float) -> str:
        """Return all figures."""
        total: Counter[str] = sum((load.checker.counts for load in self.loads), Counter())
        for load in self.loads:
            self.wrongs += load.checker.wrongs
        added = sum(len(load.checker.added) for load in self.loads)
        acked = sum(len(load.checker.acked) for load in self.loads)
        uncertain = sum(len(load.checker.uncertain) for load in self.loads)
        lines = [
            f"{seconds:.0f} s, {sum(map(len, self.longest.values()))} faults, {added} adds and {acked} acks confirmed, {uncertain} without a clear reply"
        ]
        lines += [f"  {kind:30} {total.pop(kind, 0)}" for kind in KINDS]
        lines.append("longest unavailability of a tenant")
        lines += [
            f"  {name:32} {max(gaps) * 1_000:6.0f} ms in {len(gaps)}" for name, gaps in sorted(self.longest.items())
        ]
        if self.elsewhere:
            lines.append(
                f"  {'... tenants on other primaries':32} {max(self.elsewhere) * 1_000:6.0f} ms in {len(self.elsewhere)}"
            )
        lines.append(f"servers started again because their store was out of reach: {self.restarts}")
        lines.append(f"errors after all retries of clients: {dict(total) or 'none'}")
        texts = {text for load in self.loads for _, text in load.errors}
        lines += [f"  {text}" for text in sorted(texts)[:ERRORS_SHOWN]]
        return "\n".join(lines)


def _has(primary: RedisServer, shard: int) -> bool:
    """Return whether a shard is on a primary."""
    return RedisNodes.holds(primary, key_slot(Layout(NAME, str(shard)).state))


async def run(
    scratch: Path, seed: int, seconds: float, shards: int, only: list[str], *, once: bool, has_network: bool
) -> Chaos:
    """Run for a given time, or until each fault has happened once or something is wrong; return the figures."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # so that the servers stop too
    chaos, kj = Chaos(scratch, seed, shards, has_network=has_network), contextlib.AsyncExitStack()
    try:
        await kj.enter_async_context(kj_loop())
        await chaos.start()
        producers = [asyncio.create_task(load.produce()) for load in chaos.loads]
        steps = [load.consume() for load in chaos.loads[FLEET:]]
        consumers = [asyncio.create_task(step) for step in (*steps, chaos.fleet.consume())]
        started = time.monotonic()
        await asyncio.sleep(8)  # new members get their shards
        names: list[str] = []
        while time.monotonic() - started < seconds and not chaos.is_wrong(once=once):
            if not names:  # every kind equally often
                if once and chaos.longest:
                    break
                names = only or sorted(chaos.faults)
                names = chaos.rng.sample(names, len(names))
            shown = await chaos.happen(names.pop())
            print(f"{time.monotonic() - started:7.1f} s  {shown}", flush=True)
            await asyncio.sleep(chaos.rng.uniform(0.5, 2))
        await chaos.drain_queues(producers)
        await chaos.end_loads(consumers)
        for load in chaos.loads:
            load.checker.judge()
            await load.finish_uncertain()
        for server in chaos.servers:
            server.send(signal.SIGTERM)
        for server in chaos.servers:
            assert server.process is not None
            await asyncio.to_thread(server.process.wait, 60)
        await asyncio.to_thread(chaos.examine)
        print(chaos.report(time.monotonic() - started))
    finally:
        for client in (*chaos.clients, *chaos.queues):
            await client.close()
        await kj.aclose()
        chaos.close()
    return chaos


def main() -> int:
    """Read the command line, run, print the figures."""
    parser = argparse.ArgumentParser(
        description="cause faults in a cluster under load and check that it keeps its promises"
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--only", action="append", default=[], help="a kind of fault; repeat it for more")
    parser.add_argument("--once", action="store_true", help="end when each fault has happened once")
    parser.add_argument("--keep", type=Path, help="directory for logs and data, kept afterwards")
    options = parser.parse_args()
    if "--seed" not in sys.argv:
        sys.argv += ["--seed", str(options.seed)]
    has_network = enter_own_network(MODULE)
    print(f"seed {options.seed}{'' if has_network else ', without network namespaces: nothing is cut off'}", flush=True)
    with contextlib.ExitStack() as stack:
        scratch = options.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tenantq-chaos-cluster-"))
        )
        scratch.mkdir(parents=True, exist_ok=True)
        chaos = asyncio.run(
            run(
                scratch,
                options.seed,
                options.minutes * 60,
                options.shards,
                options.only,
                once=options.once,
                has_network=has_network,
            )
        )
    for wrong in chaos.wrongs[:50]:
        print(wrong)
    print("all promises were kept" if not chaos.wrongs else f"{len(chaos.wrongs)} things are wrong")
    return 1 if chaos.wrongs else 0


if __name__ == "__main__":
    sys.exit(main())
