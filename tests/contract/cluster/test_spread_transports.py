"""Amazon SQS and Cap'n Proto to queues of a spread tenant, through a server that owns few of its shards."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from tenantq.domain.placement import spread_shard
from tenantq.rpc.kj_loop import kj_loop
from tests.contract.cluster.hosts import TOKEN, tenant_on
from tests.contract.cluster.spreading import spread
from tests.contract.cluster.test_members import pair
from tests.contract.rpc.client import RpcClient
from tests.contract.shards.test_rpc import work_with_queue
from tests.contract.sqs.sqs_server import client_of as sqs_client_of

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.contract.cluster.hosts import SharedStore


SYNCED = {"durability": "os", "sync_every_ms": 1}
"""Traces show what is synced."""


async def spread_away(admin: httpx.AsyncClient, queue: str, prefix: str) -> str:
    """Return a tenant whose queue of this name is not at home."""
    for number in range(10):
        name = await tenant_on(admin, [number % 8], f"{prefix}{number}")
        shards = await spread(admin, name, 4)
        if spread_shard(name, queue, shards) != shards[0]:
            return name
    raise AssertionError("the hash puts the queue at home every time")


async def test_sqs_reaches_queues_of_all_shards(shared_store: SharedStore, tmp_path: Path) -> None:
    """Queues are created, listed, used and deleted through any server."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "sqs")
        admin = both.clients[0]
        name = await spread_away(admin, "work0", "sqs")
        made = (await admin.post(f"/v1/tenants/{name}/keys", json={"name": "k", "role": "tenant-admin"})).json()
        clients = [
            sqs_client_of(f"http://127.0.0.1:{server.port}", made["key_id"], made["secret"]) for server in both.servers
        ]

        def use(number: int) -> None:
            first, second = clients[number % 2], clients[(number + 1) % 2]
            url = first.create_queue(QueueName=f"work{number}")["QueueUrl"]
            first.send_message(QueueUrl=url, MessageBody=f"m{number}")
            path = second.get_queue_url(QueueName=f"work{number}")["QueueUrl"]
            (got,) = second.receive_message(QueueUrl=path, WaitTimeSeconds=5)["Messages"]
            assert got["Body"] == f"m{number}"
            second.delete_message(QueueUrl=path, ReceiptHandle=got["ReceiptHandle"])

        for number in range(6):
            await asyncio.to_thread(use, number)
        listed = await asyncio.to_thread(clients[1].list_queues, QueueNamePrefix="work")
        names = {url.rpartition("/")[2] for url in listed["QueueUrls"]}
        assert names == {"work", *(f"work{number}" for number in range(6))}


async def test_rpc_reaches_a_queue_away_from_home(shared_store: SharedStore, tmp_path: Path) -> None:
    """Every call about a queue works."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, "rpc", rpc="127.0.0.1:0", shard=SYNCED)
        name = await spread_away(both.clients[0], "mail", "rpc")
        await stack.enter_async_context(kj_loop())
        for server in both.servers:
            port: Any = server.rpc_port
            client = await RpcClient.open(port)
            await client.login(TOKEN)
            await work_with_queue(client, name)
            client.close()
