"""Redis failures under load: ``python -m tests.redis_store.chaos --seconds 180``, or ``make chaos-redis``.

The first part runs a durable server behind a proxy that resets connections, the second a cluster whose primaries hang, are killed and
hand over, with one replica waited for. Workers are killed in between, and no reply to a user may turn out wrong. The third part does not
wait for replicas and measures how much confirmed work a lost primary takes with it. The exit status is 0 if the first two lost nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenantq.store.shard_lease import ShardHeld
from tests.crash.chaos import PROJECT, Chaos, LaterClock
from tests.crash.oracle import Oracle
from tests.crash.recount import JournalTally, recount
from tests.crash.worker import STOPPED
from tests.redis_servers import OnRedis, RedisNodes, RedisServer, ResettingProxy, eventually
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.engine.settings import ShardSettings
    from tenantq.store.interface import Store

NAME = "chaos"
STATE = b"t:{chaos:0}:s"
LEASE_MS = 500
DURABLE = ("appendonly yes", "appendfsync always", "repl-diskless-sync-delay 0")
_FAULTY_RUN_S = 6.0
"""How long a worker runs while a fault is injected."""


class Single:
    """One durable server behind a proxy."""

    replicas = 0

    def __init__(self, directory: Path, seed: int) -> None:
        self.server = RedisServer(directory, *DURABLE)
        self.proxy = ResettingProxy(self.server.port, 0.0, seed)
        self.url = self.proxy.url
        self.faults: dict[str, Callable[[random.Random], None]] = {
            "resets of 5 %": self._resets,
            "redis hangs": self._hang,
            "redis killed": self._kill,
        }
        self.first: dict[str, Callable[[random.Random], None]] = {"redis hangs for 30 s": self._hang_long}

    def direct(self) -> RedisServer:
        """Return the server itself."""
        return self.server

    def _resets(self, rng: random.Random) -> None:
        self.proxy.share = 0.05
        time.sleep(rng.uniform(1, 4))
        self.proxy.share = 0.0

    def _hang(self, rng: random.Random) -> None:
        self.server.signal(signal.SIGSTOP)
        time.sleep(rng.choice((0.3, 1, 2, 4)))
        self.server.signal(signal.SIGCONT)

    def _hang_long(self, rng: random.Random) -> None:
        del rng
        self.server.signal(signal.SIGSTOP)
        time.sleep(30)
        self.server.signal(signal.SIGCONT)

    def _kill(self, rng: random.Random) -> None:
        self.server.kill()
        time.sleep(rng.uniform(0, 2))
        self.server.start()

    def close(self) -> None:
        """End everything."""
        self.proxy.close()
        self.server.kill()


class Cluster:
    """Three primaries, and a replica of the one that owns the shard."""

    def __init__(self, directory: Path, replicas: int) -> None:
        self.nodes = RedisNodes(directory, STATE, *DURABLE)
        self.url, self.replicas = self.nodes.url, replicas
        self.faults: dict[str, Callable[[random.Random], None]] = {
            "primary killed": self._kill,
            "primary hangs": self._hang,
            "primary hands over": self._hand_over,
        }
        self.first: dict[str, Callable[[random.Random], None]] = {}

    def direct(self) -> RedisServer:
        """Return the primary."""
        return self.nodes.owner()

    def replica(self) -> RedisServer:
        """Return the replica of the primary."""
        owner = self.direct()
        for node in self.nodes.nodes:
            told = node.client().info("replication")
            if told["role"] == "slave" and told["master_port"] == owner.port:
                return node
        raise AssertionError("the primary has no replica")

    def wait_for_replica(self) -> None:
        """Wait until the primary has a replica again."""
        eventually(lambda: self.direct().client().info("replication")["connected_slaves"] == 1, 60)

    def _replaced(self, gone: RedisServer) -> None:
        def done() -> bool:
            others = [node for node in self.nodes.nodes if node is not gone]
            return any(
                node.client().info("replication")["role"] == "master" and self.nodes.holds(node, self.nodes.slot)
                for node in others
            )

        eventually(done, 60)

    def _kill(self, rng: random.Random) -> None:
        del rng
        gone = self.direct()
        gone.kill()
        self._replaced(gone)
        gone.start()
        self.wait_for_replica()

    def kill_cut_off(self, rng: random.Random) -> None:
        """Kill a primary 300 ms after its replica lost the connection; the replica replaces it anyway."""
        del rng
        behind = self.replica().client()
        behind.config_set("masterauth", "wrong")  # so that it cannot reconnect
        behind.execute_command("CLIENT", "KILL", "TYPE", "MASTER")
        time.sleep(0.3)
        gone = self.direct()
        gone.kill()
        self._replaced(gone)
        behind.config_set("masterauth", "")
        gone.start()
        self.wait_for_replica()

    def _hang(self, rng: random.Random) -> None:
        gone = self.direct()
        gone.signal(signal.SIGSTOP)
        time.sleep(rng.choice((0.3, 0.7, 3, 5)))
        gone.signal(signal.SIGCONT)
        self.wait_for_replica()

    def _hand_over(self, rng: random.Random) -> None:
        self.replica().client().execute_command("CLUSTER", "FAILOVER", *rng.choice(((), ("TAKEOVER",))))
        time.sleep(0.5)
        self.wait_for_replica()

    def close(self) -> None:
        """End everything."""
        self.nodes.stop()


class FaultyRun:
    """One worker on a Redis that suffers a fault."""

    def __init__(self, site: Any, directory: Path, log: Path, options: list[str]) -> None:
        command = [sys.executable, "-m", "tests.crash.worker", str(directory), *options]
        with log.open("wb") as out, log.with_suffix(".err").open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=out, stderr=errors, stdin=subprocess.DEVNULL, cwd=PROJECT)
        self.site, self.log = site, log
        self.recovery_s: float | None = None  # from the end of the fault to the next completed operation

    def run(self, what: Callable[[random.Random], None], rng: random.Random) -> int:
        """Inject the fault, measure how long work takes to resume, and return the worker's exit status."""
        ends = time.monotonic() + 30
        while self.log.stat().st_size < 4_000 and self.process.poll() is None and time.monotonic() < ends:
            time.sleep(0.02)
        happening = threading.Thread(target=what, args=(rng,))
        happening.start()
        happening.join()
        over, size = time.monotonic(), self.log.stat().st_size
        while self.process.poll() is None:
            if self.recovery_s is None and self.log.stat().st_size > size + 300:
                self.recovery_s = time.monotonic() - over
            time.sleep(0.005)
        return self.process.returncode


class RedisChaos(Chaos):
    """The same oracle, on a store outside the directory."""

    def __init__(self, scratch: Path, seed: int, site: Any) -> None:
        super().__init__(scratch, seed)
        self.site = site
        self.rng = random.Random(seed)
        self.opener = OnRedis(
            site, self.directory, "fsync", name=NAME, lease_ms=LEASE_MS, replicas=site.replicas, patience_ms=10_000
        )
        told = {"name": NAME, "lease_ms": LEASE_MS, "replicas": site.replicas, "patience_ms": 10_000}
        self.worker_options = ("--store", site.url, "--store-settings", json.dumps(told))
        self.open_store = self._open
        self.recoveries: list[float] = []
        self.stopped = 0

    def _open(self, path: Path) -> Store:
        """Open the store once the lease of the killed worker has ended."""
        while True:
            try:
                return self.opener.to_read(path)
            except ShardHeld as held:
                time.sleep(held.left_ms / 1_000 + 0.01)

    def has_store(self) -> bool:
        """Return whether a first commit exists."""
        return int(self.site.direct().client().hget(STATE, "commit") or 0) > 0

    def to_drain(self, settings: ShardSettings) -> Shard:
        """Return the shard that drains everything at the end."""
        return Shard(self.directory, clock=LaterClock(), settings=settings, open_store=self.opener)

    def inject_random_fault(self) -> str:
        """Inject a random fault into Redis while a worker runs, and judge the outcome."""
        name: str = self.rng.choice(sorted(self.site.faults))
        return self.inject_fault(name, self.site.faults[name])

    def inject_fault(self, name: str, what: Callable[[random.Random], None]) -> str:
        """Inject one fault, and judge the outcome."""
        self.carried_file.write_bytes(b"{}")
        options = ["--seed", str(self.rng.randrange(1 << 30)), "--name", f"t{self.kills.total()}"]
        options += [*self.worker_options, "--seconds", str(_FAULTY_RUN_S)]
        run = FaultyRun(self.site, self.directory, self.log, options)
        status = run.run(what, self.rng)
        if run.recovery_s is not None:
            self.recoveries.append(run.recovery_s)
        self.oracle.read(self.log.read_text(encoding="utf-8").splitlines(keepends=True))
        if status == STOPPED:
            self.stopped += 1
            self.recoveries.append(self._started_again())
        if status not in {0, STOPPED}:
            told = self.log.with_suffix(".err").read_text(encoding="utf-8", errors="replace")[-2_000:]
            self.oracle.wrong("broken worker", f"{name} ended with status {status}\n{told}")
        found = recount(self.directory, self.tally, self.open_store)
        self.oracle.compare(found)
        self._doctor()
        self._carry(found.seq)
        self.kills[name] += 1
        return name

    def _started_again(self) -> float:
        """Start a worker as a supervisor would, and return how long it takes to complete an operation."""
        started, options = (
            time.monotonic(),
            ["--seed", str(self.rng.randrange(1 << 30)), "--name", f"r{self.kills.total()}"],
        )
        run = FaultyRun(self.site, self.directory, self.log, [*options, *self.worker_options, "--seconds", "1"])
        run.run(lambda _: None, self.rng)
        self.oracle.read(self.log.read_text(encoding="utf-8").splitlines(keepends=True))
        return time.monotonic() - started - 1


def run_site(site: Any, scratch: Path, seed: int, seconds: float) -> bool:
    """Kill workers and inject faults for a given time; print the figures and return whether nothing was wrong."""
    scratch.mkdir()
    chaos = RedisChaos(scratch, seed, site)
    for name, what in site.first.items():
        print(f"{time.monotonic() - chaos.started:6.1f} s {chaos.inject_fault(name, what)}", flush=True)
    while not chaos.oracle.wrongs and time.monotonic() - chaos.started < seconds:
        name = chaos.inject_random_fault() if chaos.rng.random() < 0.5 else chaos.kill_one()
        print(f"{time.monotonic() - chaos.started:6.1f} s {name}", flush=True)
    if not chaos.oracle.wrongs:
        asyncio.run(chaos.drain())
    print(chaos.report())
    slowest = max(chaos.recoveries, default=0.0)
    print(f"  after {len(chaos.recoveries)} faults work resumed,", end=" ")
    print(f"at the latest {slowest:.2f} s after Redis was back or the shard was started again;", end=" ")
    print(f"{chaos.stopped} times it had stopped")
    return not chaos.oracle.wrongs and slowest <= 10


def measure_loss(
    cluster: Cluster, scratch: Path, seed: int, times: int, what: str, fault: Callable[[random.Random], None]
) -> None:
    """Kill primaries without waiting for replicas, and print how many confirmed operations were lost."""
    rng, adds, lost_adds, lost_acks, losses, noticed = random.Random(seed), 0, 0, 0, 0, 0
    for number in range(times):
        cluster.wait_for_replica()
        cluster.direct().client().flushall()
        chaos = RedisChaos(Path(tempfile.mkdtemp(prefix="loss", dir=scratch)), seed, cluster)
        options = ["--seed", str(rng.randrange(1 << 30)), "--name", f"l{number}"]
        run = FaultyRun(cluster, chaos.directory, chaos.log, [*options, *chaos.worker_options, "--seconds", "4"])
        noticed += run.run(fault, rng) == STOPPED
        oracle = Oracle()
        oracle.read(chaos.log.read_text(encoding="utf-8").splitlines(keepends=True))
        lost = oracle.compare(recount(chaos.directory, JournalTally(), chaos.open_store), lost_allowed=True)
        acks = sum(wrong.startswith("resurrected") for wrong in oracle.wrongs)
        adds += oracle.figures["adds confirmed"]
        lost_adds, lost_acks, losses = lost_adds + len(lost), lost_acks + acks, losses + bool(lost or acks)
    print(f"{what}: {times} times, {losses} of them with a loss:", end=" ")
    print(f"{lost_adds} of {adds} confirmed adds, and {lost_acks} acks;", end=" ")
    print(f"{noticed} times the shard stopped because it noticed")


def main() -> None:
    """Read the command line, run, print the figures."""
    parser = argparse.ArgumentParser(
        description="inject faults into a Redis under load and check that a shard keeps its promises"
    )
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    arguments = parser.parse_args()
    seed, part = arguments.seed, arguments.seconds / 2.5
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tenantq-chaos-redis-") as place:
        scratch = Path(place)
        single = Single(scratch / "redis", seed)
        try:
            print("== one server")
            well = run_site(single, scratch / "single", seed, part)
        finally:
            single.close()
        cluster = Cluster(scratch / "nodes", 1)
        try:
            print("== a cluster, one replica waited for")
            well = run_site(cluster, scratch / "cluster", seed, part) and well
            cluster.replicas = 0
            print("== a cluster, without waiting for replicas")
            times = max(1, round(part / 24))
            measure_loss(cluster, scratch, seed, times, "primary killed", cluster.faults["primary killed"])
            measure_loss(cluster, scratch, seed, times, "primary killed, cut off before", cluster.kill_cut_off)
        finally:
            cluster.close()
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
