"""A failover to a replica that lacks commits: the quotas of a spread tenant are exact again afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.domain.placement import spread_shard
from tests.contract.cluster.hosts import client_of, hosting, tenant_on
from tests.contract.cluster.spreading import add_one, spread
from tests.contract.cluster.test_members import SECRET, until
from tests.contract.cluster.test_spread_deletion import shards_with
from tests.contract.cluster.test_tenant_moves import drained

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tenantq.server.cluster_member import HostServer
    from tests.contract.cluster.hosts import TwoPrimaries

LIMIT = 120


def replica_of(primaries: TwoPrimaries, cluster: str, shard: int) -> dict[bytes, bytes]:
    """Return the rows of a shard, as a replica has them that gets no more."""
    node = _node_of(primaries, cluster, shard)
    keys: list[bytes] = node.keys(f"t:{{{cluster}:{shard}}}:*")
    return {key: node.dump(key) for key in keys}


def promote(primaries: TwoPrimaries, cluster: str, shard: int, replica: dict[bytes, bytes]) -> None:
    """Have a shard be as its replica is, without the commits since."""
    node = _node_of(primaries, cluster, shard)
    for key in node.keys(f"t:{{{cluster}:{shard}}}:*"):
        node.delete(key)
    for key, value in replica.items():
        node.restore(key, 0, value)


def _node_of(primaries: TwoPrimaries, cluster: str, shard: int):  # type: ignore[no-untyped-def]  # a client
    return primaries.nodes[0 if shard in primaries.shards_on(0, cluster) else 1].client()


def rights(server: HostServer, tenant: str) -> int:
    """Return the rights of the backlog that all parts together hold."""
    assert server.host is not None
    tenants = [one.shard.state.catalog.tenants.get(tenant) for one in server.host.threads()]
    return sum(one.part.rights["backlog"] for one in tenants if one is not None and one.part is not None)


async def fill(client: httpx.AsyncClient, base: str, queues: list[str]) -> None:
    """Add messages until the quota refuses them on all shards."""
    refused = 0
    for number in range(3 * LIMIT):
        refused = 0 if await add_one(client, f"{base}/queues/{queues[number % len(queues)]}", "x") else refused + 1
        if refused == len(queues):
            return


@pytest.mark.parametrize("loses", ["home", "part"])
@pytest.mark.parametrize("asks", ["home", "part"])
async def test_rights_are_exact_after_commits_were_lost(
    primaries: TwoPrimaries, tmp_path: Path, loses: str, asks: str
) -> None:
    """Whether the shard that has sent rights forgets it, or the one that has received them."""
    name = f"lossy-{loses}-{asks}"
    async with hosting(tmp_path, primaries.url, name, **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [2], "lossy")
        base = f"/v1/tenants/{tenant}"
        home, other = await spread(client, tenant, 2)
        assert (await client.put(base, json={"quotas": {"backlog": LIMIT}})).status_code == 200
        names = {
            one: next(f"q{at}" for at in range(99) if spread_shard(tenant, f"q{at}", (home, other)) == one)
            for one in (home, other)
        }
        first, second = (other, home) if asks == "home" else (home, other)
        for number in range(LIMIT):  # so that rights have to go from one to the other
            assert await add_one(client, f"{base}/queues/{names[first]}", str(number))
        assert len(await drained(client, f"{base}/queues/{names[first]}")) == LIMIT
    lost = home if loses == "home" else other
    replica = await asyncio.to_thread(replica_of, primaries, name, lost)
    async with hosting(tmp_path, primaries.url, name, **SECRET) as server, client_of(server) as client:
        for number in range(LIMIT // 2):
            assert await add_one(client, f"{base}/queues/{names[second]}", str(number))
    await asyncio.to_thread(promote, primaries, name, lost, replica)
    async with hosting(tmp_path, primaries.url, name, **SECRET) as server, client_of(server) as client:
        await until(lambda: rights(server, tenant) == LIMIT)
        await fill(client, base, [*names.values()])
        assert (await client.get(f"{base}/usage")).json()["quotas"]["backlog"]["used"] == LIMIT
        assert rights(server, tenant) == LIMIT
        assert (await client.put(base, json={"quotas": {"backlog": LIMIT + 2}})).status_code == 200
        await fill(client, base, [*names.values()])
        assert (await client.get(f"{base}/usage")).json()["quotas"]["backlog"]["used"] == LIMIT + 2


@pytest.mark.parametrize("event", ["created", "deleted"])
async def test_a_part_whose_beginning_or_end_was_lost_is_created_or_deleted_again(
    primaries: TwoPrimaries, tmp_path: Path, event: str
) -> None:
    """The directory and home decide which parts a tenant has."""
    name, before, after = f"lossy-{event}", *((1, 2) if event == "created" else (2, 1))
    async with hosting(tmp_path, primaries.url, name, **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [4], "lossy")
        base = f"/v1/tenants/{tenant}"
        assert (await client.put(base, json={"quotas": {"backlog": LIMIT}})).status_code == 200
        other = (await spread(client, tenant, 2))[1]
        await spread(client, tenant, before)
    replica = await asyncio.to_thread(replica_of, primaries, name, other)
    async with hosting(tmp_path, primaries.url, name, **SECRET) as server, client_of(server) as client:
        assert len(await spread(client, tenant, after)) == after
    await asyncio.to_thread(promote, primaries, name, other, replica)
    async with hosting(tmp_path, primaries.url, name, **SECRET) as server, client_of(server) as client:
        await until(lambda: len(shards_with(server, tenant)) == after)
        await fill(client, base, [f"q{number}" for number in range(4)])
        assert (await client.get(f"{base}/usage")).json()["quotas"]["backlog"]["used"] == LIMIT
