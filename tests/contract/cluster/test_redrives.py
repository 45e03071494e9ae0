"""A redrive continues where its dead-letter queue is: at the next owner of the shard, and on the shard to which it moves."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.cluster.moving_units import MovingGroup
from tenantq.cluster.row_transfer import RowTransfer
from tenantq.domain.placement import unit_name
from tenantq.engine.catalog import QUEUE_ROW
from tenantq.engine.redrive_registry import REDRIVE_ROW
from tenantq.engine.tenant_rows import RowChange
from tests.administration import put_queue
from tests.contract.cluster.hosts import SHARDS, client_of, hosting, tenant_on
from tests.contract.cluster.spreading import spread
from tests.contract.cluster.test_members import SECRET, pair, until
from tests.contract.cluster.test_tenant_moves import drained, pin, wait_until_placed
from tests.shards import T

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    from tests.conftest import OpenShard
    from tests.contract.cluster.hosts import SharedStore

BODIES = [str(number) for number in range(60)]
RATE = 20  # the redrive takes three seconds


async def bury(client: httpx.AsyncClient, path: str) -> None:
    """Fill a queue, and turn all its messages into dead letters."""
    await client.put(path, json={"max_attempts": 1})
    await client.post(f"{path}/messages", json={"messages": [{"body": body} for body in BODIES]})
    got = (await client.post(f"{path}/poll", json={"max": 100})).json()["messages"]
    await client.post(f"{path}/nack", json={"receipts": [one["receipt"] for one in got]})


async def begin(client: httpx.AsyncClient, path: str) -> str:
    """Start a redrive, and return its ID once it has moved something."""
    started = await client.post(f"{path}/redrive", json={"rate": RATE})
    assert started.status_code in {200, 202}, started.text
    task: str = started.json()["task"]
    await progress_until(client, path, task, lambda found: bool(found["moved"]))
    return task


async def progress(client: httpx.AsyncClient, path: str, task: str) -> dict[str, Any]:
    """Return how far a redrive is."""
    reply = await client.get(f"{path}/redrive/{task}")
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def progress_until(
    client: httpx.AsyncClient, path: str, task: str, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Wait until something holds for a redrive, and return how far it is."""
    async with asyncio.timeout(30):
        while True:
            found = await progress(client, path, task)
            if holds(found):
                return found
            await asyncio.sleep(0.05)


async def end(client: httpx.AsyncClient, path: str, task: str) -> dict[str, Any]:
    """Wait until a redrive has ended."""
    return await progress_until(client, path, task, lambda found: found["state"] != "running")


async def assert_moved_once(client: httpx.AsyncClient, path: str, task: str) -> None:
    """Check that a redrive ends with all its messages in their queue."""
    ended = await end(client, path, task)
    assert (ended["state"], ended["moved"], ended["skipped"]) == ("done", len(BODIES), 0)
    assert await drained(client, path) == BODIES
    assert await drained(client, f"{path}-dlq") == []


async def test_names_of_queues_are_copied_before_other_rows(open_shard: OpenShard) -> None:
    """By them, an aborted copy is deleted."""
    shard, name, sent = await open_shard(), unit_name(T, "work"), list[bytes]()
    for queue in ("work", "work-dlq"):
        await put_queue(shard, T, queue)

    async def send(changes: list[RowChange], row: bytes, ids: list[str]) -> int:
        sent.extend(change.key for change in changes)
        return len(changes)

    group = MovingGroup(shard, shard.tenant(T), name)
    capture = group.capture()
    capture.note(RowChange("meta", REDRIVE_ROW + shard.state.queue(T, "work-dlq").prefix + b"id", b"new"))
    await RowTransfer(shard, name, 0, send, lambda _: None).copy(capture, group.ranges())
    assert [key.startswith(QUEUE_ROW) for key in sent] == [True, True, *[False] * (len(sent) - 2)]
    assert any(key.startswith(REDRIVE_ROW) for key in sent)


@pytest.mark.parametrize("leaving", [0, 1])
async def test_redrive_continues_at_the_next_owner_of_its_shard(
    shared_store: SharedStore, tmp_path: Path, leaving: int
) -> None:
    """The other server continues it, and shows it under its ID."""
    async with AsyncExitStack() as stack:
        both = await pair(stack, tmp_path, shared_store, f"redrive-{leaving}", grace_ms=30_000)
        client = both.clients[1 - leaving]
        path = f"/v1/tenants/{await tenant_on(client, both.owned(leaving), 'redriven')}/queues/work"
        await bury(client, path)
        task = await begin(client, path)
        await both.servers[leaving].close()
        await until(lambda: len(both.owned(1 - leaving)) == SHARDS)
        handed_over = await progress(client, path, task)
        assert handed_over["state"] == "running"
        await assert_moved_once(client, path, task)


async def test_redrive_moves_with_its_tenant(shared_store: SharedStore, tmp_path: Path) -> None:
    """It continues on the other shard. An ended one, and one that nobody continued yet, can be read there too."""
    async with hosting(tmp_path, shared_store.url, "redriven", **SECRET) as server, client_of(server) as client:
        name = await tenant_on(client, [1], "mover")
        path = f"/v1/tenants/{name}/queues/work"
        await bury(client, path)
        ended = (await client.post(f"{path}/redrive", json={"dry_run": True})).json()["task"]
        await end(client, path, ended)
        task = await begin(client, path)
        await pin(client, name, 5)
        assert await wait_until_placed(client, name) == 5
        assert (await progress(client, path, task))["state"] == "running"
        assert (await progress(client, path, ended))["moved"] == len(BODIES)
        await assert_moved_once(client, path, task)
        assert server.host is not None
        left, came = (server.host.thread(shard) for shard in (1, 5))
        assert left is not None
        assert came is not None
        assert left.shard.state.redrives.get(task) is None
        assert came.shard.state.redrives.get(task) is not None
        await pin(client, name, 1)
        assert await wait_until_placed(client, name) == 1
        assert (await progress(client, path, task))["state"] == "done"


async def test_redrives_of_a_spread_tenant_move_with_their_queues(shared_store: SharedStore, tmp_path: Path) -> None:
    """Each continues on the shard that its queue moves to, and comes back with it."""
    async with hosting(tmp_path, shared_store.url, "redrives", **SECRET) as server, client_of(server) as client:
        name = await tenant_on(client, [2], "spreader")
        paths = [f"/v1/tenants/{name}/queues/mail{number}" for number in range(4)]
        for path in paths:
            await bury(client, path)
        tasks = [await begin(client, path) for path in paths]
        await spread(client, name, 4)
        for path, task in zip(paths, tasks, strict=True):
            await assert_moved_once(client, path, task)
        await spread(client, name, 1)
        for path, task in zip(paths, tasks, strict=True):
            assert (await progress(client, path, task))["state"] == "done"
