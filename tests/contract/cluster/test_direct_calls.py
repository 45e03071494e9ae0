"""The SDK learns from replies which server owns a queue, and calls it without a hop."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from tenantq.client.async_client import AsyncClient
from tests.contract.cluster.hosts import SHARDS, TOKEN, tenant_on
from tests.contract.cluster.spreading import spread
from tests.contract.cluster.test_members import pair, until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.contract.cluster.hosts import SharedStore
    from tests.contract.cluster.test_members import Pair

QUEUES = [f"queue{number}" for number in range(8)]


def owner(both: Pair, tenant: str, queue: str) -> int:
    """Return the server that owns a queue."""
    shard = both.servers[0]._context.placements.find(tenant, queue)
    assert shard is not None
    return 0 if shard in both.owned(0) else 1


async def spread_over_both(both: Pair, prefix: str) -> str:
    """Return a tenant with queues on both servers, once these share the shards and know each other's."""
    await until(lambda: len(both.owned(0)) == len(both.owned(1)))
    name = await tenant_on(both.clients[0], [2], prefix)
    await spread(both.clients[0], name, SHARDS)
    for queue in QUEUES:
        made = await both.clients[0].put(f"/v1/tenants/{name}/queues/{queue}", json={})
        assert made.status_code == 201, made.text
    assert {owner(both, name, queue) for queue in QUEUES} == {0, 1}
    return name


async def test_replies_name_the_owner_of_each_queue(shared_store: SharedStore, tmp_path: Path) -> None:
    """Of a tenant that is spread over servers, each reply names the server that has the queue."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "direct")
        name = await spread_over_both(both, "direct")
        async with asyncio.timeout(30):
            while not await all_named(both, name):  # noqa: ASYNC110  # servers learn of each other's shards
                await asyncio.sleep(0.05)


async def all_named(both: Pair, tenant: str) -> bool:
    """Return whether both servers name the owners of all queues."""
    for number, client in enumerate(both.clients):
        for queue in QUEUES:
            has = owner(both, tenant, queue)
            wanted = "" if has == number else f"http://127.0.0.1:{both.servers[has].port}"
            reply = await client.get(f"/v1/tenants/{tenant}/queues/{queue}")
            assert reply.status_code == 200, reply.text
            if reply.headers.get("tenantq-shard", "") != wanted:
                return False
    return True


async def test_client_calls_the_owner_of_each_queue(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it knows the owners, no call of a spread tenant is forwarded from one server to another."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "no-hops")
        name = await spread_over_both(both, "no-hops")
        urls = [f"http://127.0.0.1:{server.port}" for server in both.servers]
        client = AsyncClient(urls, TOKEN)
        stack.push_async_callback(client.close)
        queues = [client.tenant(name).queue(queue) for queue in QUEUES]
        forwarded: list[str] = []
        for server in both.servers:
            links = server._links
            assert links is not None
            send = links._calls.call

            async def noted(link: object, shard: int, path: str, *more: object, _send: object = send) -> object:
                forwarded.append(path)
                return await _send(link, shard, path, *more)  # type: ignore[operator]

            monkeypatch.setattr(links._calls, "call", noted)
        async with asyncio.timeout(30):
            while True:  # servers learn each other's addresses, and the client the owners of queues
                forwarded.clear()
                for queue in queues:
                    await queue.add("message")
                if not [path for path in forwarded if path.startswith("messages.")]:
                    break
