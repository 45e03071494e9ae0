"""What administrators do with a tenant whose queues are spread over shards: imports, templates, regions, pins."""

from __future__ import annotations

import asyncio
import functools
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tenantq.cluster.tenant_parts import PartQueries
from tenantq.domain.placement import spread_shard
from tenantq.engine.ops.spread import SharedState
from tenantq.engine.tenant_snapshot import TenantSnapshot
from tenantq.errors import Unavailable
from tenantq.service.audit_trail import AuditTrail
from tenantq.service.call import Call
from tenantq.service.export_archive import Archive
from tenantq.service.part_export import PartExport, close_all
from tests.contract.cluster.hosts import TOKEN, client_of, hosting, tenant_on
from tests.contract.cluster.spreading import add_one, spread
from tests.contract.cluster.test_members import SECRET, pair
from tests.contract.cluster.test_tenant_moves import drained, placement
from tests.contract.export_import.archive import files_of, lines

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.contract.cluster.hosts import SharedStore

QUEUES = [f"q{number}" for number in range(6)]


async def exported(client: httpx.AsyncClient, path: str, queue: str) -> list[dict[str, Any]]:
    """Return the lines of a queue's messages as an export has them."""
    reply = await client.get(f"{path}/export", params={"queue": queue})
    assert reply.status_code == 200, reply.text
    return lines(files_of(reply.content), "messages")


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


async def test_whole_export_of_a_spread_tenant_has_everything_once(shared_store: SharedStore, tmp_path: Path) -> None:
    """Every shard adds its queues and journal rows to one archive, which is journaled once."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "exports")
        admin, other = both.clients
        name = await tenant_on(admin, [1], "whole")
        base = f"/v1/tenants/{name}"
        assert len(await spread(admin, name, 4)) == 4
        for queue in QUEUES:
            assert (await admin.put(f"{base}/queues/{queue}", json={"max_attempts": 7})).status_code == 201
            for number in range(3):
                assert await add_one(other, f"{base}/queues/{queue}", f"{queue}-{number}")
        assert sorted(await journaled(admin, base, "create_queue", "queue", 7)) == [*QUEUES, "work"]
        for client in both.clients:
            reply = await client.get(f"{base}/export")
            assert reply.status_code == 200, reply.text
            files = files_of(reply.content)
            assert _bodies(files) == sorted(f"{queue}-{number}" for queue in QUEUES for number in range(3))
            found = sorted((line["name"], line["config"]["max_attempts"]) for line in lines(files, "queues"))
            assert found == [*((queue, 7) for queue in QUEUES), ("work", 5)]
            assert len(lines(files, "tenant")) == 1
            created = [line["queue"] for line in lines(files, "audit") if line["op"] == "create_queue"]
            assert sorted(created) == [*QUEUES, "work"]
        details = await journaled(admin, base, "export", "details", 2)
        assert [one.partition(": ")[2] for one in details] == ["7 queues, 18 messages"] * 2


async def journaled(client: httpx.AsyncClient, path: str, action: str, field: str, count: int) -> list[str]:
    """Return a field of the tenant's journal rows of an action, once there are so many: rows are shown after their sync."""
    found: list[str] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            await asyncio.sleep(0.05)
            reply = await client.get(f"{path}/audit", params={"action": action, "limit": 100})
            found = [row[field] for row in reply.json()["rows"]]
    return found


def _bodies(files: dict[str, bytes]) -> list[str]:
    return sorted(line["body"] for line in lines(files, "messages"))


async def test_whole_export_while_queues_move_is_complete_or_refused(shared_store: SharedStore, tmp_path: Path) -> None:
    """No archive misses a queue or has one twice. One that a handover of a shard cuts off is visibly incomplete."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "moving")
        admin, other = both.clients
        name = await tenant_on(admin, [2], "moving")
        base = f"/v1/tenants/{name}"
        for queue in QUEUES:
            assert await add_one(admin, f"{base}/queues/{queue}", queue)

        async def is_exported() -> bool:
            try:
                reply = await other.get(f"{base}/export")
            except httpx.RemoteProtocolError:  # loads move shards between the servers at any time
                return False
            if reply.status_code == 200:
                assert _bodies(files_of(reply.content)) == QUEUES
                return True
            assert (reply.status_code, reply.json()["code"]) == (503, "unavailable"), reply.text
            return False

        refused = 0
        for shards in (4, 1, 3) * 5:
            if refused and shards == 4:
                break
            changing = asyncio.create_task(spread(admin, name, shards))
            while not changing.done():
                refused += not await is_exported()
            await changing
        assert refused
        async with asyncio.timeout(30):
            while not await is_exported():
                pass


async def test_cancelled_export_of_a_spread_tenant_releases_its_slot_and_all_snapshots(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is cancelled while it waits for the next piece, and closes the export at once."""
    loop, reading = asyncio.get_running_loop(), asyncio.Event()
    closed, close = list[TenantSnapshot](), TenantSnapshot.close

    async def wait_forever(_: AuditTrail, who: str, read: object) -> None:
        loop.call_soon_threadsafe(reading.set)
        await asyncio.Event().wait()

    def count(snapshot: TenantSnapshot) -> None:
        closed.append(snapshot)
        close(snapshot)

    async with (
        hosting(tmp_path, shared_store.url, "cancelled", **SECRET) as server,
        client_of(server) as admin,
    ):
        name = await tenant_on(admin, [1], "cancelled")
        assert await add_one(admin, f"/v1/tenants/{name}/queues/work", "a")
        home, *_ = await spread(admin, name, 3)
        assert server.host is not None
        thread = server.host.thread(home)
        assert thread is not None
        monkeypatch.setattr(AuditTrail, "in_turn", wait_forever)
        monkeypatch.setattr(TenantSnapshot, "close", count)
        export = await thread.call("exports.export", Call(bearer=TOKEN), name)
        slots = thread.service.admission.slots
        assert (slots.reconcile(), slots.in_flight) == (0, 1)  # the task that started the export has ended

        async def read() -> None:
            async with aclosing(export):
                while True:
                    await anext(export)

        reader = asyncio.create_task(read())
        await reading.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert thread.service.admission.slots.in_flight == 0
        assert len(closed) == 3


@pytest.mark.parametrize("error", [Unavailable("its server is gone"), asyncio.CancelledError()])
async def test_all_parts_of_an_export_are_closed_if_one_cannot_be_closed(error: BaseException) -> None:
    """Every part holds a snapshot."""
    closed: list[int] = []

    class Stream:
        """A part whose close fails, if it is the second."""

        def __init__(self, number: int) -> None:
            self.number = number

        def __aiter__(self) -> Stream:
            return self

        async def __anext__(self) -> bytes:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            closed.append(self.number)
            if self.number == 2:
                raise error

    with pytest.raises(type(error)):
        await close_all([PartExport(Stream(number)) for number in (1, 2, 3)])
    assert sorted(closed) == [1, 2, 3]


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_part_of_an_export_that_ends_early_is_unavailable(count: int) -> None:
    """Before its summary, its files or its manifest."""

    async def stream() -> AsyncGenerator[bytes]:
        for piece in (b'{"queues": 1, "messages": 1}', b"a file")[:count]:
            yield piece

    async def read() -> None:
        part = PartExport(stream())
        await part.summary()
        _ = [piece async for piece in part.files(Archive(0))]

    with pytest.raises(Unavailable, match="ended early"):
        await read()


async def test_audits_of_equal_parts_write_nothing(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every opening of a shard with a part has its rights compared; that must not send the settings to all parts again."""
    applied, apply = list[SharedState](), PartQueries.apply

    @functools.wraps(apply)
    async def count(self: PartQueries, shared: SharedState) -> int:
        applied.append(shared)
        return await apply(self, shared)

    monkeypatch.setattr(PartQueries, "apply", count)
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "audits")
        admin = both.clients[0]
        name = await tenant_on(admin, [2], "audited")
        home, *others = await spread(admin, name, 4)
        query = both.servers[0]._context.calls.query
        host = next(server.host for server in both.servers if server.host is not None and home in server.host.owned())
        thread = host.thread(home)
        assert thread is not None
        id = thread.shard.state.catalog.tenants[name].id
        assert await query(home, "rights.audit", id, others[0])
        assert applied
        applied.clear()
        for shard in others:
            assert await query(home, "rights.audit", id, shard)
        assert not applied


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
