"""The stores that clusters share, Redis without replicas or PostgreSQL, and servers that own their shards."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import msgspec
from redis.crc import key_slot

from tenantq.cluster.settings import ClusterSettings
from tenantq.domain.placement import jump_hash, tenant_key
from tenantq.server.cluster_member import HostServer
from tenantq.settings import OFF, ServerSettings
from tenantq.store.postgres.address import parse_postgres_address
from tenantq.store.postgres.registry import PostgresRegistry
from tenantq.store.postgres.settings import PostgresSettings
from tenantq.store.redis.address import parse_address
from tenantq.store.redis.registry import RedisRegistry
from tenantq.store.redis.settings import RedisSettings
from tests.postgres_servers import PostgresServer
from tests.redis_servers import RedisServer, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

TOKEN = "administrator-of-the-tests"  # noqa: S105  # for these tests only
SHARDS = 8


class SharedStore(Protocol):
    """A store that servers share."""

    @property
    def url(self) -> str:
        """The address as ``--store`` takes it."""

    def clear(self) -> None:
        """Delete everything."""


class TwoPrimaries:
    """Two Redis primaries that share the slots. One can be stopped while the other serves."""

    def __init__(self, directory: Path) -> None:
        options = ("cluster-enabled yes", "cluster-node-timeout 60000", "cluster-require-full-coverage no")
        self.nodes = [RedisServer(directory / str(number), "appendonly no", *options) for number in range(2)]
        for number, node in enumerate(self.nodes):
            node.client().execute_command("CLUSTER", "ADDSLOTSRANGE", number * 8_192, number * 8_192 + 8_191)
            node.client().execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        self.nodes[0].client().execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[1].port)
        eventually(lambda: all(b"cluster_slots_assigned:16384" in self._info(node) for node in self.nodes))
        eventually(lambda: all(b"cluster_state:ok" in self._info(node) for node in self.nodes))

    @staticmethod
    def _info(node: RedisServer) -> bytes:
        found = node.client().execute_command("CLUSTER", "INFO")
        return found if isinstance(found, bytes) else str(found).encode()

    @property
    def url(self) -> str:
        """The address as ``--store`` takes it."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def clear(self) -> None:
        """Delete everything."""
        for node in self.nodes:
            node.clear()

    def shards_on(self, node: int, name: str) -> list[int]:
        """Return the shards of a cluster that live on a primary."""
        return [shard for shard in range(SHARDS) if key_slot(f"t:{{{name}:{shard}}}:s".encode()) // 8_192 == node]

    @contextlib.contextmanager
    def hanging(self, node: int) -> Iterator[None]:
        """Pause a primary for the length of the block."""
        self.nodes[node].signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.nodes[node].signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop both."""
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.kill()


def registry_of(store: SharedStore, name: str) -> RedisRegistry | PostgresRegistry:
    """Return the rows of a cluster."""
    if isinstance(store, PostgresServer):
        address, settings = parse_postgres_address(store.url), PostgresSettings(name=schema_of(name))
        return PostgresRegistry(address, settings, "os")
    return RedisRegistry(parse_address(store.url), RedisSettings(name=name), "os")


def schema_of(name: str) -> str:
    """Return a name as PostgreSQL accepts it."""
    return name.replace("-", "_")


def host_settings(directory: Path, store: str, name: str, **options: Any) -> ServerSettings:
    """Return the settings of a server of a cluster."""
    given: dict[str, Any] = {
        "data_dir": str(directory),
        "http": "127.0.0.1:0",
        "rpc": OFF,
        "store": store,
        "redis": RedisSettings(name=name, lease_ms=3_000),
        "postgres": PostgresSettings(name=schema_of(name), lease_ms=3_000),
        "cluster": ClusterSettings(shards=SHARDS),
        "shard": {"durability": "os"},
        **options,
    }
    return msgspec.convert({key: msgspec.to_builtins(value) for key, value in given.items()}, type=ServerSettings)


@contextlib.asynccontextmanager
async def hosting(directory: Path, store: str, name: str, **options: Any) -> AsyncIterator[HostServer]:
    """Run a server in this process."""
    async with HostServer(host_settings(directory, store, name, **options), admin_token=TOKEN) as server:
        yield server


def client_of(server: HostServer, token: str = TOKEN) -> httpx.AsyncClient:
    """Return a client of a server."""
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{server.port}", headers={"Authorization": f"Bearer {token}"}, timeout=30
    )


async def tenant_on(client: httpx.AsyncClient, shards: list[int], prefix: str = "tenant") -> str:
    """Create a tenant with a queue on one of these shards, and return its name."""
    for number in range(1_000):
        name = f"{prefix}-{number}"
        if jump_hash(tenant_key(name), SHARDS) in shards:
            break
    made = await client.put(f"/v1/tenants/{name}", json={})
    assert made.status_code == 201, made.text
    await client.put(f"/v1/tenants/{name}/queues/work", json={})
    return name
