"""Real Redis servers for tests: on free loopback ports, in the test's own directory, stopped by process ID."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any, Literal

from redis import Redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisError
from redis.retry import Retry

from tenantq.doctor.running_shard import RunningShard
from tenantq.store.redis.address import parse_address
from tenantq.store.redis.settings import RedisSettings
from tenantq.store.redis.store import RedisStore
from tenantq.store.shard_lease import ShardHeld
from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.crash.hosts_network import Host

_START_S = 20.0


_PORTS = range(10_000, 22_000)
"""Below the ports of outgoing connections, one of which could take a server's port while it restarts.

Cluster nodes also use the port 10,000 above, which is below them too.
"""
_given: set[int] = set()


def free_port() -> int:
    """Return a free port that this process has not got before."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


class RedisServer:
    """One redis-server process."""

    def __init__(
        self,
        directory: Path,
        *options: str,
        port: int | None = None,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        """Start a server; ``options`` are lines of its configuration, without quotes; ``prefix`` is put before its command."""
        self.directory, self.options = directory, options
        self.host, self._prefix = host, prefix
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start the process, or restart it after it ended."""
        lines = [
            f"port {self.port}",
            f"bind {self.host}",
            f"dir {self.directory}",
            'save ""',
            "daemonize no",
            "logfile redis.log",
            *self.options,
        ]
        (self.directory / "redis.conf").write_text("\n".join(lines) + "\n")
        command = [*self._prefix, "redis-server", str(self.directory / "redis.conf")]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.client().ping()
            except RedisError:
                assert self.process.poll() is None, (self.directory / "redis.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            else:
                return

    @property
    def url(self) -> str:
        """The address as ``--store`` takes it."""
        return f"redis://{self.host}:{self.port}"

    def client(self) -> Any:
        """Return a client to inspect and configure the server."""
        return Redis(host=self.host, port=self.port, socket_timeout=10, retry=Retry(NoBackoff(), 0))

    def clear(self) -> None:
        """Delete all keys."""
        self.client().flushall()

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the process at once."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


async def open_when_free(*arguments: Any, **options: Any) -> RedisStore:
    """Open a store as soon as its owner has released it."""
    while True:
        try:
            return await asyncio.to_thread(RedisStore, *arguments, **options)
        except ShardHeld as held:
            await asyncio.sleep(min(held.left_ms, 500) / 1_000)


class OnRedis:
    """Opens a shard's store on a Redis server, under a name derived from the shard's directory."""

    def __init__(self, server: Any, path: Path, durability: Literal["fsync", "os"] = "os", **settings: object) -> None:
        name = hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()
        self.path, self.durability = path, durability
        self.address = parse_address(server.url)
        self.settings = RedisSettings(**{"name": name, **settings})  # type: ignore[arg-type]  # each by its name

    async def __call__(self, shard: str) -> RedisStore:
        """Open the store as its owner."""
        return await open_when_free(self.path, self.address, self.settings, shard, durability=self.durability)

    def to_read(self, path: Path) -> RedisStore:
        """Open the store for the doctor. No server may own it."""
        return RedisStore(path, self.address, self.settings, "0", read_only=True)

    def while_owned(self, path: Path) -> RunningShard:
        """Open the store for the doctor, whether or not a server owns it."""
        return RunningShard(path, self.address, self.settings, "0")


class ReplicatedNodes:
    """A Redis Cluster of three primaries with one replica each, and the faults it can suffer."""

    def __init__(
        self,
        directory: Path,
        *options: str,
        hosts: Sequence[Host] = (),
        timeout_ms: int = 1_500,
    ) -> None:
        """Start and join the nodes, each on its own host if given; a replica replaces a primary that is silent for ``timeout_ms``."""
        wanted = (
            "cluster-enabled yes", f"cluster-node-timeout {timeout_ms}", "cluster-replica-validity-factor 0",
            "cluster-require-full-coverage no", "repl-diskless-sync-delay 0", "protected-mode no", *options,
        )  # fmt: skip
        self.nodes: list[RedisServer] = []
        try:
            for number in range(6):
                where = {"host": hosts[number].address, "prefix": hosts[number].prefix} if hosts else {}
                self.nodes.append(RedisServer(directory / str(number), *wanted, **where))  # type: ignore[arg-type]  # as named
            addresses = [f"{node.host}:{node.port}" for node in self.nodes]
            command = ["redis-cli", "--cluster", "create", *addresses, "--cluster-replicas", "1", "--cluster-yes"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
            self.settle()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The address as ``--store`` takes it."""
        return "redis+cluster://" + ",".join(f"{node.host}:{node.port}" for node in self.nodes)

    def primaries(self) -> list[RedisServer]:
        """Return the nodes that own slots, each by its own account."""
        found = []
        for node in self.nodes:
            try:
                mine = next(line for line in RedisNodes.view(node) if "myself" in line).split()
            except RedisError:
                continue
            if "master" in mine[2] and len(mine) > 8:
                found.append(node)
        return found

    def is_whole(self) -> bool:
        """Return whether there are three primaries, each with a replica in sync."""
        primaries = self.primaries()
        return len(primaries) == 3 and all(
            RedisNodes.is_healthy(node) and self._follower(node) is not None for node in primaries
        )

    def settle(self) -> None:
        """Wait until the cluster is whole."""
        eventually(self.is_whole, 90)

    def _follower(self, primary: RedisServer) -> RedisServer | None:
        """Return the replica that is in sync with a primary."""
        for node in self.nodes:
            try:
                told = node.client().info("replication")
            except RedisError:
                continue
            if told["role"] == "slave" and told["master_port"] == primary.port and told["master_link_status"] == "up":
                return node
        return None

    def kill(self, primary: RedisServer) -> None:
        """Kill a primary, and start it again when its replica has replaced it."""
        others = [one for one in self.nodes if one is not primary]
        primary.kill()
        try:
            eventually(lambda: len([one for one in self.primaries() if one in others]) == 3, 60)
        finally:
            primary.start()

    def hand_over(self, primary: RedisServer) -> None:
        """Have a primary swap roles with its replica."""
        replica = self._follower(primary)
        assert replica is not None
        replica.client().execute_command("CLUSTER", "FAILOVER")
        eventually(lambda: replica in self.primaries(), 30)

    def migrate(self, key: bytes) -> None:
        """Move the slot of a key to another primary, key by key."""
        slot, primaries = key_slot(key), self.primaries()
        source = next(node for node in primaries if RedisNodes.holds(node, slot))
        target = next(node for node in primaries if node is not source)
        here, there = source.client(), target.client()
        ids = [bytes(one.execute_command("CLUSTER", "MYID")).decode() for one in (here, there)]
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        while keys := here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10):
            with contextlib.suppress(RedisError):  # a busy node may briefly consider the cluster down: try again
                here.execute_command("MIGRATE", target.host, target.port, "", 0, 5_000, "KEYS", *keys)
        for client in (there, here, *(node.client() for node in primaries)):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])

    def stop(self) -> None:
        """End all processes."""
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.kill()


class RedisNodes:
    """A small Redis Cluster: three primaries, and one replica of the primary that owns the slot of a given key."""

    def __init__(self, directory: Path, key: bytes, *options: str) -> None:
        """Start and join the nodes; a lost primary is replaced after about a second."""
        wanted = ("cluster-enabled yes", "cluster-node-timeout 1000", "cluster-replica-validity-factor 0", *options)
        self.slot = key_slot(key)
        self.nodes: list[RedisServer] = []
        try:
            for number in range(4):
                self.nodes.append(RedisServer(directory / str(number), *wanted))
            self._join()
        except BaseException:
            self.stop()
            raise

    def _join(self) -> None:
        bounds = (0, 5_461, 10_923, 16_384)
        for number in range(3):
            client = self.nodes[number].client()
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            self.nodes[0].client().execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
        owner = next(number for number in range(3) if bounds[number] <= self.slot < bounds[number + 1])
        eventually(lambda: all(len(self.view(node)) == 4 for node in self.nodes))
        self.nodes[3].client().execute_command("CLUSTER", "REPLICATE", self.id_of(self.nodes[owner]))
        eventually(lambda: all(self.is_healthy(node) for node in self.nodes))
        eventually(lambda: self.nodes[owner].client().info("replication")["connected_slaves"] == 1)

    @property
    def url(self) -> str:
        """The address as ``--store`` takes it."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @staticmethod
    def view(node: RedisServer) -> list[str]:
        """Return the node's view of the cluster, one line per node."""
        text: bytes = node.client().execute_command("CLUSTER", "NODES")
        return text.decode().splitlines()

    @staticmethod
    def is_healthy(node: RedisServer) -> bool:
        """Return whether a node considers the cluster healthy."""
        text: bytes = node.client().execute_command("CLUSTER", "INFO")
        return b"cluster_state:ok" in (text if isinstance(text, bytes) else str(text).encode())

    def id_of(self, node: RedisServer) -> str:
        """Return a node's ID in the cluster."""
        return bytes(node.client().execute_command("CLUSTER", "MYID")).decode()

    def owner(self) -> RedisServer:
        """Return the primary that owns the slot now."""
        for node in self.nodes:
            try:
                if node.client().info("replication")["role"] == "master" and self.holds(node, self.slot):
                    return node
            except RedisError:
                continue
        raise AssertionError("no node owns the slot")

    @staticmethod
    def holds(node: RedisServer, slot: int) -> bool:
        """Return whether a node claims a slot."""
        mine = next(line for line in RedisNodes.view(node) if "myself" in line)
        for part in mine.split()[8:]:
            first, _, last = part.partition("-")
            if first.isdigit() and int(first) <= slot <= int(last or first):
                return True
        return False

    def stop(self) -> None:
        """End all processes."""
        for node in self.nodes:
            node.kill()


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until a condition that depends on other processes holds."""
    ends = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except RedisError:
            pass
        assert time.monotonic() < ends
        time.sleep(0.02)


class ResettingProxy:
    """Forwards bytes to a server and resets a random share of the connections, in either direction."""

    def __init__(self, port: int, share: float, seed: int) -> None:
        self.share, self.resets = share, 0
        self._rng = random.Random(seed)
        self._stalled: set[socket.socket] = set()
        self._proxy = TcpProxy(port, self._forward)

    @property
    def url(self) -> str:
        """The address as ``--store`` takes it."""
        return f"redis://127.0.0.1:{self._proxy.port}"

    def redirect(self, port: int) -> None:
        """Forward new connections to another port. Open connections stay where they are."""
        self._proxy.target = port

    def stall(self) -> None:
        """Drop all data on open connections, like a router that lost their state."""
        self._stalled = set(self._proxy.open)

    def close(self) -> None:
        """End everything."""
        self._proxy.close()

    def _forward(self, one: socket.socket, other: socket.socket, _: bool) -> None:  # noqa: FBT001  # as called
        while data := one.recv(65_536):
            if one in self._stalled:
                continue
            if self._rng.random() < self.share:
                self.resets += 1
                if self._rng.random() < 0.5:
                    other.sendall(data[: len(data) // 2])  # only half of it arrives
                return
            other.sendall(data)
