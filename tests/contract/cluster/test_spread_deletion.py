"""A tenant that is deleted while it is spread over shards, or while its spread changes, leaves nothing on any shard."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.cluster.shard_calls import CallsFromShard
from tenantq.cluster.tenant_directory import TenantDirectory
from tenantq.service.erasure import Erasures
from tests.contract.cluster.hosts import client_of, hosting, tenant_on
from tests.contract.cluster.spreading import add_one, added_status, spread
from tests.contract.cluster.test_members import SECRET, until

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tenantq.server.cluster_member import HostServer
    from tests.contract.cluster.hosts import SharedStore


def shards_with(server: HostServer, tenant: str) -> list[int]:
    """Return the shards of a server that have a tenant, or a part of it."""
    assert server.host is not None
    found = {one.number: one.shard.state.catalog.tenants for one in server.host.threads()}
    return sorted(number for number, tenants in found.items() if tenant in tenants)


async def delete(client: httpx.AsyncClient, tenant: str) -> httpx.Response:
    """Delete a tenant."""
    body = {"confirm": tenant, "reason": "the contract has ended"}
    return await client.request("DELETE", f"/v1/tenants/{tenant}", json=body)


async def check_new_tenant(server: HostServer, client: httpx.AsyncClient, tenant: str) -> None:
    """Create a tenant of the same name, which must work as any other."""
    made = await client.put(f"/v1/tenants/{tenant}", json={})
    assert made.status_code == 201, made.text
    for number in range(6):
        assert await add_one(client, f"/v1/tenants/{tenant}/queues/q{number}", "new")
    assert len((await client.get(f"/v1/tenants/{tenant}/queues")).json()["queues"]) == 6
    assert len(shards_with(server, tenant)) == 1


async def test_a_request_for_a_part_that_arrives_after_the_deletion_is_refused(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion ends the change of the spread, and a late message of the change creates nothing."""
    query = CallsFromShard.query
    loop, held, released, late = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def delays(self: CallsFromShard, owner: int, path: str, /, *arguments: Any, **options: Any) -> Any:
        if path != "parts.prepare":
            return await query(self, owner, path, *arguments, **options)
        loop.call_soon_threadsafe(held.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(released.wait(), loop))
        try:
            return await query(self, owner, path, *arguments, **options)
        finally:
            loop.call_soon_threadsafe(late.set)

    async with hosting(tmp_path, shared_store.url, "late-part", **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [2], "late")
        monkeypatch.setattr(CallsFromShard, "query", delays)
        reply = await client.put(f"/v1/cluster/tenants/{tenant}", json={"spread": 3})
        assert reply.status_code == 200, reply.text
        await asyncio.wait_for(held.wait(), 30)
        deleted = await delete(client, tenant)
        assert deleted.status_code == 200, deleted.text
        released.set()
        await asyncio.wait_for(late.wait(), 30)
        monkeypatch.undo()
        assert shards_with(server, tenant) == []
        await check_new_tenant(server, client, tenant)


@pytest.mark.parametrize("step", ["parts.drop", "home", "directory"])
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
async def test_next_owner_completes_a_killed_deletion(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, *, is_done: bool
) -> None:
    """The server is killed around any step of a deletion; after a restart nothing is left, and the name is free."""
    name = f"deleted-{step.rpartition('.')[2]}-{is_done}".lower()
    loop, reached = asyncio.get_running_loop(), asyncio.Event()

    def stopping(method: Any) -> Any:
        async def stops(*arguments: Any, **options: Any) -> Any:
            if method is CallsFromShard_query and arguments[2] != step:
                return await method(*arguments, **options)
            if is_done:
                await method(*arguments, **options)
            loop.call_soon_threadsafe(reached.set)
            return await asyncio.Event().wait()

        return stops

    CallsFromShard_query = CallsFromShard.query  # noqa: N806  # a method
    targets = {"parts.drop": (CallsFromShard, "query"), "home": (Erasures, "_delete_parts"), "directory": (TenantDirectory, "announce")}  # fmt: skip
    owner, attribute = targets[step]
    killed = hosting(tmp_path, shared_store.url, name, grace_ms=0, **SECRET)  # it does not wait for the deletion
    async with killed as server, client_of(server) as client:
        tenant = await tenant_on(client, [2], "gone")
        await spread(client, tenant, 3)
        for number in range(6):
            assert await add_one(client, f"/v1/tenants/{tenant}/queues/q{number}", "old")
        monkeypatch.setattr(owner, attribute, stopping(getattr(owner, attribute)))
        deleting = asyncio.ensure_future(delete(client, tenant))
        await asyncio.wait_for(reached.wait(), 30)
        deleting.cancel()
    monkeypatch.undo()
    async with hosting(tmp_path, shared_store.url, name, **SECRET) as server, client_of(server) as client:
        await until(lambda: shards_with(server, tenant) == [])
        assert await added_status(client, f"/v1/tenants/{tenant}/queues/q1") == 404
        await check_new_tenant(server, client, tenant)
