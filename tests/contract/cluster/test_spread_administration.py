"""What administrators do with a tenant whose queues are spread over shards: imports, templates, regions, pins."""

from __future__ import annotations

import io
import tarfile
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from tenantq.domain.placement import spread_shard
from tests.contract.cluster.hosts import client_of, hosting, tenant_on
from tests.contract.cluster.spreading import add_one, spread
from tests.contract.cluster.test_members import SECRET, pair
from tests.contract.cluster.test_tenant_moves import drained, placement
from tests.contract.moving.archive import lines

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.contract.cluster.hosts import SharedStore

QUEUES = [f"q{number}" for number in range(6)]


async def exported(client: httpx.AsyncClient, path: str, queue: str) -> list[dict[str, Any]]:
    """Return the lines of a queue's messages as an export has them."""
    reply = await client.get(f"{path}/export", params={"queue": queue})
    assert reply.status_code == 200, reply.text
    with tarfile.open(fileobj=io.BytesIO(reply.content)) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]  # all are files
    return lines(files, "messages")


async def test_exports_are_imported_into_a_spread_tenant_within_its_quotas(
    shared_store: SharedStore, tmp_path: Path
) -> None:
    """Queue by queue, on whichever shard; what was imported is known after the queue has moved."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "imports")
        admin = both.clients[0]
        source, target = await tenant_on(admin, [1], "source"), await tenant_on(admin, [5], "target")
        old, new = f"/v1/tenants/{source}", f"/v1/tenants/{target}"
        for queue in QUEUES:
            for number in range(3):
                assert await add_one(admin, f"{old}/queues/{queue}", f"{queue}-{number}")
            assert (await admin.put(f"{new}/queues/{queue}", json={})).status_code == 201
        await spread(admin, source, 2)
        await spread(admin, target, 3)
        limited = await admin.put(new, json={"quotas": {"backlog": 17}})
        assert limited.status_code == 200, limited.text
        frozen = await admin.post(f"{new}/suspend", json={"mode": "fill", "reason": "it is being imported"})
        assert frozen.status_code == 200, frozen.text
        statuses = []
        for number, queue in enumerate(QUEUES):
            part = {
                "export": "0" * 31 + str(number),
                "part": 1,
                "messages": await exported(admin, old, queue),
                "results": [],
            }
            reply = await both.clients[number % 2].post(f"{new}/queues/{queue}/import", json=part)
            statuses.append(reply.status_code)
        assert statuses == [200] * 5 + [429]
        assert (await admin.get(f"{new}/usage")).json()["quotas"]["backlog"]["used"] == 15
        await spread(admin, target, 1)
        again = {"export": "0" * 32, "part": 1, "messages": [], "results": []}
        assert (await admin.post(f"{new}/queues/q0/import", json=again)).json()["duplicate"] is True
        assert (await admin.post(f"{new}/resume", json={})).status_code == 200
        for queue in QUEUES[:5]:
            assert await drained(admin, f"{new}/queues/{queue}") == [f"{queue}-{number}" for number in range(3)]


async def test_templates_are_applied_to_queues_of_all_shards(shared_store: SharedStore, tmp_path: Path) -> None:
    """Each queue is created or changed on its shard; a repetition changes nothing."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "templates")
        admin = both.clients[0]
        name = await tenant_on(admin, [3], "templates")
        base = f"/v1/tenants/{name}"
        shards = await spread(admin, name, 3)
        assert {spread_shard(name, queue, shards) for queue in QUEUES} != {shards[0]}
        assert (await admin.put(f"{base}/queues/q0", json={})).status_code == 201
        template = {"queues": {queue: {"max_attempts": 7} for queue in QUEUES}, "settings": {"weight": 3}}
        stored = await admin.put(f"{base}/templates/usual", json=template)
        assert stored.status_code in {200, 201}, stored.text

        async def apply(client: httpx.AsyncClient) -> dict[str, str]:
            reply = await client.post(f"{base}/templates/usual/apply", json={})
            assert reply.status_code == 200, reply.text
            return {one["queue"]: one["outcome"] for one in reply.json()["results"]}

        created = {**dict.fromkeys(QUEUES, "created"), "q0": "changed", "": "changed"}
        assert await apply(both.clients[1]) == created
        assert await apply(both.clients[0]) == dict.fromkeys(created, "unchanged")
        for queue in QUEUES:
            assert (await admin.get(f"{base}/queues/{queue}")).json()["config"]["max_attempts"] == 7


async def test_a_spread_tenant_can_be_pinned_to_its_home_only(shared_store: SharedStore, tmp_path: Path) -> None:
    """Another shard, and a shard of its own, are refused with what to do."""
    async with hosting(tmp_path, shared_store.url, "pins", **SECRET) as server, client_of(server) as client:
        name = await tenant_on(client, [3], "pinned")
        path, shards = f"/v1/cluster/tenants/{name}", await spread(client, name, 2)
        pinned = await client.put(path, json={"shard": 3})
        assert pinned.status_code == 200, pinned.text
        found = await placement(client, name)
        assert (found["pinned"], found["shard"], found["shards"], found["moves"]) == (True, 3, shards, [])
        for wrong in ({"shard": shards[1]}, {"dedicated": True}):
            refused = await client.put(path, json=wrong)
            assert refused.status_code == 409, refused.text
            assert "its home is shard 3. Set its spread to 1 first" in refused.json()["detail"]
        assert (await client.put(path, json={"pinned": False})).status_code == 200
        assert (await placement(client, name))["pinned"] is False


async def test_regions_of_a_spread_tenant_must_include_those_of_all_its_parts(
    shared_store: SharedStore, tmp_path: Path
) -> None:
    """A change that a part does not allow changes nothing; others apply at once."""
    settings = {"cluster": {**SECRET["cluster"], "regions": ["eu"]}, "shard": {"durability": "os", "region": "eu"}}
    async with hosting(tmp_path, shared_store.url, "regions", **settings) as server, client_of(server) as client:
        name = await tenant_on(client, [3], "regions")
        await spread(client, name, 3)
        changed = await client.put(f"/v1/tenants/{name}", json={"regions": ["eu", "us"]})
        assert changed.status_code == 200, changed.text
        refused = await client.put(f"/v1/tenants/{name}", json={"regions": ["us"]})
        assert refused.status_code in {409, 422}, refused.text
        assert (await client.get(f"/v1/tenants/{name}")).json()["config"]["regions"] == ["eu", "us"]
        for queue in QUEUES:
            assert await add_one(client, f"/v1/tenants/{name}/queues/{queue}", "x")
        assert len(await spread(client, name, 4)) == 4
