"""A server or tenant that does not fit the cluster is refused with one clear error, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
from redis.crc import key_slot

from tenantq.domain.cluster_view import Member
from tenantq.errors import Invalid, StoreFormat, Unavailable
from tenantq.gates.key_maker import KeyMaker
from tenantq.journal.signing import SigningKey
from tenantq.server import cluster_member
from tenantq.server.cluster_member import HostServer
from tenantq.store import cluster_rows
from tests.contract.cluster.hosts import TOKEN, TwoPrimaries, client_of, host_settings, hosting, registry_of
from tests.contract.cluster.test_members import until
from tests.postgres_servers import PostgresServer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.cluster.hosts import SharedStore

REGIONAL: dict[str, Any] = {
    "cluster": {"shards": 4, "regions": ("eu", "us")},
    "shard": {"durability": "os", "region": "eu"},
}


def rows_of(store: SharedStore, name: str) -> dict[Any, Any]:
    """Return all rows of a cluster."""
    found: dict[Any, Any] = {}
    if isinstance(store, PostgresServer):
        tables = store.execute(f"SELECT tablename FROM pg_tables WHERE schemaname = '{name}'")  # noqa: S608  # of this file
        return {table: store.execute(f'SELECT * FROM {name}."{table}"') for (table,) in tables}  # noqa: S608
    assert isinstance(store, TwoPrimaries)
    for node in store.nodes:
        client = node.client()
        found |= {key: client.dump(key) for key in client.scan_iter(f"t:{{{name}*")}
    return found


def contents_of(directory: Path) -> dict[Path, bytes]:
    """Return the contents of all files except locks."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "lock"}


async def refused(directory: Path, shared_store: SharedStore, name: str, **options: Any) -> str:
    """Start a server that must not start, and return the error. The store and its files stay unchanged."""
    files, rows = contents_of(directory), rows_of(shared_store, name)
    with pytest.raises((Invalid, StoreFormat, Unavailable)) as error:
        await HostServer(host_settings(directory, shared_store.url, name, **options), admin_token=TOKEN).start()
    assert rows_of(shared_store, name) == rows
    assert contents_of(directory) == files
    return error.value.message


async def test_server_does_not_join_another_cluster(shared_store: SharedStore, tmp_path: Path) -> None:
    """Covers two clusters with one name, the name of another cluster, and an emptied store."""
    kind = "postgres" if isinstance(shared_store, PostgresServer) else "redis"
    async with hosting(tmp_path / "one", shared_store.url, "ours") as server:
        ours = server.cluster.id
    async with hosting(tmp_path / "two", shared_store.url, "theirs") as server:
        theirs = server.cluster.id
    message = await refused(tmp_path / "one", shared_store, "theirs")
    assert f"belongs to cluster {ours}, but the store has cluster {theirs} with {kind}.name 'theirs'" in message
    assert f"the store has no cluster with {kind}.name 'gone'" in await refused(tmp_path / "one", shared_store, "gone")
    if isinstance(shared_store, PostgresServer):
        shared_store.execute("DELETE FROM ours.cluster")
    else:
        assert isinstance(shared_store, TwoPrimaries)
        shared_store.nodes[key_slot(b"ours") // 8_192].client().delete("t:{ours}:cluster")
    assert f"the store has no cluster with {kind}.name 'ours'" in await refused(tmp_path / "one", shared_store, "ours")


async def test_server_must_be_in_a_region_of_its_cluster(shared_store: SharedStore, tmp_path: Path) -> None:
    """A server that could not own any shard does not create a cluster."""
    elsewhere = {**REGIONAL, "shard": {"durability": "os", "region": "mars"}}
    wanted = "shard.region: must be one of the cluster's regions"
    assert await refused(tmp_path, shared_store, "lands", **elsewhere) == f"{wanted} (mars; allowed: eu, us)."
    async with hosting(tmp_path / "one", shared_store.url, "lands", **REGIONAL):
        pass
    assert await refused(tmp_path / "two", shared_store, "lands") == f"{wanted} (not set; allowed: eu, us)."


async def test_server_announces_a_reachable_address(shared_store: SharedStore, tmp_path: Path) -> None:
    """This applies to servers that listen on all addresses too; its link needs its own address."""
    everywhere: dict[str, Any] = {"cluster": {"shards": 4, "peer": "0.0.0.0:0"}}
    message = await refused(tmp_path, shared_store, "reached", **everywhere)
    assert message == "cluster.peer: must be an address that other servers can reach, not 0.0.0.0:0."
    async with hosting(tmp_path, shared_store.url, "reached", http="0.0.0.0:0", rpc="0.0.0.0:0") as server:
        (member,) = server.frontend.status.joined().view.members.values()
        assert member.url == f"http://127.0.0.1:{server.port}"
        assert member.rpc == f"127.0.0.1:{server.rpc_port}"


async def test_data_of_an_embedded_store_stays_as_it_is(shared_store: SharedStore, tmp_path: Path) -> None:
    """The keys of a cluster would make its API keys and its journal invalid."""
    async with hosting(tmp_path / "one", shared_store.url, "embedded"):
        pass
    embedded = tmp_path / "two"
    embedded.mkdir()
    (embedded / "format").write_text("any\n")
    KeyMaker.load_or_make(embedded)
    SigningKey.load_or_make(embedded)
    message = await refused(embedded, shared_store, "embedded")
    assert message.startswith(f"{embedded} contains an embedded store. Use another data directory for the store")
    assert not (embedded / "member").exists()


async def test_refused_server_gets_no_keys_of_the_cluster(shared_store: SharedStore, tmp_path: Path) -> None:
    """Its settings are checked first."""
    async with hosting(tmp_path / "one", shared_store.url, "keys", cluster={"shards": 4}):
        pass
    message = await refused(tmp_path / "two", shared_store, "keys", cluster={"shards": 2})
    assert "cluster.shards: cannot be reduced (2, the cluster 'keys' has 4)" in message


async def test_start_without_a_peer_address_does_not_change_the_cluster(
    shared_store: SharedStore, tmp_path: Path
) -> None:
    """A cluster is neither created nor gets more shards."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        peer = f"127.0.0.1:{taken.getsockname()[1]}"
        wanted = (
            f"cluster.peer: cannot listen on {peer}: another process listens there; stop it, or choose another port"
        )
        message = await refused(tmp_path / "one", shared_store, "taken", cluster={"shards": 8, "peer": peer})
        assert message == f"{wanted} with the setting cluster.peer"
        async with hosting(tmp_path / "one", shared_store.url, "taken", cluster={"shards": 4}):
            pass
        assert await refused(tmp_path / "one", shared_store, "taken", cluster={"shards": 8, "peer": peer}) == message


async def test_peer_address_is_by_default_the_one_towards_the_store(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers on several machines reach each other without a setting if they reach the store."""
    routed: list[tuple[str, int]] = []

    def towards(hosts: tuple[tuple[str, int], ...]) -> str:
        routed.extend(hosts)
        return "127.0.0.7"

    monkeypatch.setattr(cluster_member, "address_towards", towards)
    async with hosting(tmp_path, shared_store.url, "routed", http="0.0.0.0:0") as server:
        (member,) = server.frontend.status.joined().view.members.values()
        assert member.peer_address.startswith("127.0.0.7:")
        assert not member.peer_address.endswith(":0")
        assert member.url == f"http://127.0.0.7:{server.port}"
    assert routed[0][0] in shared_store.url


async def test_servers_on_two_machines_need_addresses_of_the_network(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server does not join if it, or a live member on another machine, has a loopback address."""

    def on(machine: str) -> None:
        monkeypatch.setattr(cluster_member, "machine_id", lambda: machine, raising=False)

    on("one")
    async with hosting(tmp_path / "one", shared_store.url, "machines", grace_ms=0) as server:
        (member,) = server.frontend.status.joined().view.members.values()
        on("two")
        message = await refused_among_members(tmp_path / "two", shared_store, "machines")
        wanted = f"cluster.peer: member {member.id} runs on another machine and cannot reach this server at 127.0.0.1:"
        assert message.startswith(wanted)
        assert message.endswith(". Set an address that other servers can reach.")
        monkeypatch.setattr(cluster_rows, "is_loopback", lambda host: host == "127.0.0.1", raising=False)
        elsewhere = {"shards": 8, "peer": "127.0.0.2:0"}
        assert await refused_among_members(tmp_path / "two", shared_store, "machines", cluster=elsewhere) == (
            f"cluster.peer: this server cannot reach member {member.id} at {member.peer_address} on another machine."
            " Set cluster.peer there and restart it, or wait a minute if it was killed."
        )
        assert list(server.frontend.status.joined().view.members) == [member.id]
    async with hosting(tmp_path / "two", shared_store.url, "machines"):
        pass


async def refused_among_members(directory: Path, store: SharedStore, name: str, **options: Any) -> str:
    """Start a server that must not start while others write heartbeats, and return the error."""
    with pytest.raises(Invalid) as error:
        async with hosting(directory, store.url, name, **options):
            pass
    assert not contents_of(directory)
    return error.value.message


async def test_loopback_addresses_of_dead_members_do_not_matter(shared_store: SharedStore, tmp_path: Path) -> None:
    """The rows of killed servers remain until another one joins."""
    async with hosting(tmp_path / "one", shared_store.url, "graves", grace_ms=0):
        registry = registry_of(shared_store, "graves")
        await asyncio.to_thread(registry.create, None, ())
        killed = Member(id="killed", peer_address="127.0.0.1:1", machine="another")
        await asyncio.to_thread(registry.heartbeat, killed, 1)
        registry.close()
    async with hosting(tmp_path / "one", shared_store.url, "graves") as server:
        assert server.membership is not None


async def test_tenant_that_cannot_be_created_is_not_placed(shared_store: SharedStore, tmp_path: Path) -> None:
    """It is refused and journaled, and can be created elsewhere later."""
    async with (
        hosting(tmp_path / "eu", shared_store.url, "refusals", **REGIONAL) as server,
        client_of(server) as client,
    ):

        async def put(tenant: str, **settings: Any) -> tuple[int, str]:
            reply = await client.put(f"/v1/tenants/{tenant}", json=settings)
            return reply.status_code, reply.json().get("detail", "")

        assert await put("acme", regions=["us"]) == (
            409,
            "regions: no server of region us is running. Start one first.",
        )
        assert await put("acme", regions=["mars"]) == (
            422,
            "regions: no shard is in mars. There are shards in these regions: eu, us.",
        )
        assert (await put("acme", weight=-1))[0] == 422
        assert (await put("acme", regions=5))[0] == 422
        assert (await put("A_B"))[0] == 422
        registry = registry_of(shared_store, "refusals")
        _, placed = await asyncio.to_thread(registry.placements)
        registry.close()
        assert placed == {}
        for number in range(20):  # no tenant is placed where no server runs
            assert (await put(f"free-{number}", regions=["us", "eu"] if number % 2 else []))[0] == 201
        theirs = {**REGIONAL, "shard": {"durability": "os", "region": "us"}}
        async with hosting(tmp_path / "us", shared_store.url, "refusals", **theirs) as other:
            await until(lambda: other.frontend.status.joined().view.owner_of(1) is not None)
            await until(lambda: server.frontend.status.joined().view.owner_of(3) is not None)
            assert await put("acme", regions=["us"]) == (201, "")
            noted = (await client.get("/v1/audit", params={"action": "put_tenant", "result": "ERROR"})).json()["rows"]
            assert {row["error_code"] for row in noted} == {"conflict", "invalid"}


async def test_error_names_the_region_of_a_shard_without_servers(shared_store: SharedStore, tmp_path: Path) -> None:
    """Shard 0, which authorizes new tenants, is in a region that no server serves."""
    theirs = {**REGIONAL, "shard": {"durability": "os", "region": "us"}}
    async with hosting(tmp_path, shared_store.url, "halved", **theirs) as server, client_of(server) as client:
        server._context.calls.hold_ms = 100
        reply = await client.put("/v1/tenants/acme", json={"regions": ["us"]})
        assert (reply.status_code, reply.json()["code"]) == (503, "unavailable")
        wanted = "no server of region eu is running, and shard 0 is in that region. Start one first."
        assert reply.json()["detail"] == wanted
