"""A server or tenant that does not fit the cluster is refused with one clear error, and leaves nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from redis.crc import key_slot

from tenantq.errors import Invalid, StoreFormat
from tenantq.server.cluster_member import HostServer
from tests.contract.cluster.hosts import TOKEN, client_of, host_settings, hosting
from tests.contract.cluster.test_members import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.cluster.hosts import TwoPrimaries

REGIONAL: dict[str, Any] = {
    "cluster": {"shards": 4, "regions": ("eu", "us")},
    "shard": {"durability": "os", "region": "eu"},
}


def rows_of(primaries: TwoPrimaries, name: str) -> dict[bytes, bytes]:
    """Return all keys of a cluster with their contents."""
    found: dict[bytes, bytes] = {}
    for node in primaries.nodes:
        client = node.client()
        found |= {key: client.dump(key) for key in client.scan_iter(f"t:{{{name}*")}
    return found


def contents_of(directory: Path) -> dict[Path, bytes]:
    """Return the contents of all files except locks."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "lock"}


async def refused(directory: Path, primaries: TwoPrimaries, name: str, **options: Any) -> str:
    """Start a server that must not start, and return the error. The store and its files stay unchanged."""
    files, rows = contents_of(directory), rows_of(primaries, name)
    with pytest.raises((Invalid, StoreFormat)) as error:
        await HostServer(host_settings(directory, primaries.url, name, **options), admin_token=TOKEN).start()
    assert rows_of(primaries, name) == rows
    assert contents_of(directory) == files
    return error.value.message


async def test_server_does_not_join_another_cluster(primaries: TwoPrimaries, tmp_path: Path) -> None:
    """Covers two clusters with one name, the name of another cluster, and an emptied store."""
    async with hosting(tmp_path / "one", primaries.url, "ours") as server:
        ours = server.cluster.id
    async with hosting(tmp_path / "two", primaries.url, "theirs") as server:
        theirs = server.cluster.id
    message = await refused(tmp_path / "one", primaries, "theirs")
    assert f"belongs to cluster {ours}, but the store has cluster {theirs} with redis.name 'theirs'" in message
    assert "the store has no cluster with redis.name 'gone'" in await refused(tmp_path / "one", primaries, "gone")
    primaries.nodes[key_slot(b"ours") // 8_192].client().delete("t:{ours}:cluster")
    assert "the store has no cluster with redis.name 'ours'" in await refused(tmp_path / "one", primaries, "ours")


async def test_server_must_be_in_a_region_of_its_cluster(primaries: TwoPrimaries, tmp_path: Path) -> None:
    """A server that could not own any shard does not create a cluster."""
    elsewhere = {**REGIONAL, "shard": {"durability": "os", "region": "mars"}}
    wanted = "shard.region: must be one of the cluster's regions"
    assert await refused(tmp_path, primaries, "lands", **elsewhere) == f"{wanted} (mars; allowed: eu, us)."
    async with hosting(tmp_path / "one", primaries.url, "lands", **REGIONAL):
        pass
    assert await refused(tmp_path / "two", primaries, "lands") == f"{wanted} (not set; allowed: eu, us)."


async def test_server_announces_a_reachable_address(primaries: TwoPrimaries, tmp_path: Path) -> None:
    """This applies to servers that listen on all addresses too; its link needs its own address."""
    everywhere: dict[str, Any] = {"cluster": {"shards": 4, "peer": "0.0.0.0:0"}}
    message = await refused(tmp_path, primaries, "reached", **everywhere)
    assert message == "cluster.peer: must be an address that other servers can reach, not 0.0.0.0:0."
    async with hosting(tmp_path, primaries.url, "reached", http="0.0.0.0:0", rpc="0.0.0.0:0") as server:
        (member,) = server.front.status.joined().view.members.values()
        assert member.url == f"http://127.0.0.1:{server.port}"
        assert member.rpc == f"127.0.0.1:{server.rpc_port}"


async def test_tenant_that_cannot_be_created_is_not_placed(primaries: TwoPrimaries, tmp_path: Path) -> None:
    """It is refused and journaled, and can be created elsewhere later."""
    directory = "t:{refusals}:directory"
    rows = primaries.nodes[key_slot(b"refusals") // 8_192].client()
    async with hosting(tmp_path / "eu", primaries.url, "refusals", **REGIONAL) as server, client_of(server) as client:

        async def put(tenant: str, **settings: Any) -> tuple[int, str]:
            reply = await client.put(f"/v1/tenants/{tenant}", json=settings)
            return reply.status_code, reply.json().get("detail", "")

        assert await put("acme", regions=["us"]) == (
            409,
            "regions: no server of region us is running. Start one first.",
        )
        assert await put("acme", regions=["mars"]) == (
            422,
            "regions: no shard is in mars. The cluster has shards in these regions: eu, us.",
        )
        assert (await put("acme", weight=-1))[0] == 422
        assert (await put("acme", regions=5))[0] == 422
        assert (await put("A_B"))[0] == 422
        assert not rows.exists(directory)
        for number in range(20):  # no tenant is placed where no server runs
            assert (await put(f"free-{number}", regions=["us", "eu"] if number % 2 else []))[0] == 201
        theirs = {**REGIONAL, "shard": {"durability": "os", "region": "us"}}
        async with hosting(tmp_path / "us", primaries.url, "refusals", **theirs) as other:
            await until(lambda: other.front.status.joined().view.owner_of(1) is not None)
            await until(lambda: server.front.status.joined().view.owner_of(3) is not None)
            assert await put("acme", regions=["us"]) == (201, "")
            noted = (await client.get("/v1/audit", params={"action": "put_tenant", "result": "ERROR"})).json()["rows"]
            assert {row["error_code"] for row in noted} == {"conflict", "invalid"}
