"""What a worker holds: no more than its capacity, shared fairly by its queues, and nothing it cannot work on."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from tenantq.client import AsyncMessage, AsyncQueue
from tenantq.worker import Retry, Worker
from tenantq.worker.capacity import WorkerCapacity
from tests.unit.worker.conftest import soon

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tenantq.client import Client
    from tenantq.testing import FakeServer

    Make = Callable[..., Worker]


def in_flight(client: Client, *queues: str) -> list[int]:
    """Return how many messages of each queue are leased."""
    return [client.queue(queue).stats().in_flight for queue in queues]


async def test_queues_share_the_capacity(
    make_worker: Make, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of idle queues that arrive at full capacity are released at once, use no attempt, and run in their turn."""
    worker = make_worker(concurrency=1, prefetch=0)
    names = ("a", "b", "c")
    go = asyncio.Event()
    seen: list[tuple[str, int]] = []

    async def handle(message) -> None:  # type: ignore[no-untyped-def]  # it takes the message
        seen.append((message.queue, message.attempt))
        await go.wait()

    client = server.client()
    for name in names:
        client.queue(name).configure()
        worker.task(name)(handle)
    waits: list[str] = []
    poll = AsyncQueue.poll

    async def noted(queue: AsyncQueue, max: int, *, wait_ms: int, lease_ms: int) -> list[AsyncMessage]:
        waits.extend([queue.name] if wait_ms else [])
        return await poll(queue, max, wait_ms=wait_ms, lease_ms=lease_ms)

    monkeypatch.setattr(AsyncQueue, "poll", noted)
    serving = asyncio.create_task(worker.serve())
    await soon(lambda: sorted(waits) == ["a", "b", "c"])
    for name in names:
        client.queue(name).add_many(["x"] * 3)
    await soon(lambda: len(seen) == 1)
    await soon(lambda: sorted(in_flight(client, *names)) == [0, 0, 1])
    go.set()
    await soon(lambda: len(seen) == 9)
    assert sorted(seen) == [(name, 1) for name in names for _ in range(3)]
    assert [sorted(name for name, _ in seen[start : start + 3]) for start in (1, 4)] == [["a", "b", "c"]] * 2
    worker.stop()
    assert await serving


async def test_an_empty_queue_takes_no_capacity_from_the_others(make_worker: Make, server: FakeServer) -> None:
    """However long its polls wait."""
    worker = make_worker(concurrency=2, prefetch=0)
    together = asyncio.Barrier(2)
    done = 0

    @worker.task("busy")
    async def busy(number: int) -> None:
        nonlocal done
        await together.wait()
        done += 1

    worker.task("idle")(lambda _: None)
    async with server.async_client() as client:
        await client.queue("idle").configure()
        await client.queue("busy").add_many(range(20))
        serving = asyncio.create_task(worker.serve())
        await soon(lambda: done == 20)
        worker.stop()
        assert await serving


async def test_capacity_is_granted_in_turn_and_after_reservations() -> None:
    """A reservation ends with its poll."""
    capacity = WorkerCapacity(2, 0)
    first = await capacity.ask(1, reserve=True)
    assert first.count == 2
    second = asyncio.create_task(capacity.ask(1, reserve=False))
    third = asyncio.create_task(capacity.ask(2, reserve=True))
    await asyncio.sleep(0)
    assert not second.done()
    first.end()
    first.end()
    assert (await second).count == 2
    assert (await third).count == 1


async def test_a_reservation_expires_during_a_long_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate limit may pause the client; the other queues continue."""
    monkeypatch.setattr("tenantq.worker.capacity.RESERVED_S", 0.01)
    capacity = WorkerCapacity(1, 0)
    slow = await capacity.ask(1, reserve=True)
    async with asyncio.timeout(10):
        assert (await capacity.ask(1, reserve=False)).count == 1
    slow.end()
    assert (await capacity.ask(1, reserve=False)).count == 1


def test_no_poll_asks_for_more_than_the_servers_maximum(make_worker: Make, client: Client) -> None:
    """Regardless of the concurrency."""
    worker = make_worker(concurrency=600)
    done: list[int] = []

    @worker.task("quick")
    async def quick(number: int) -> None:
        done.append(number)

    client.queue("quick").add_many(range(10))
    worker.run(burst=True)
    assert sorted(done) == list(range(10))


def test_a_burst_processes_messages_added_by_its_handlers(make_worker: Make, client: Client) -> None:
    """Also in queues that were empty or missing at the start."""
    worker = make_worker()
    done: list[str] = []

    @worker.task("third")
    async def third(body: str) -> None:
        done.append(body)

    @worker.task("second")
    def second(body: str) -> None:
        third.add(body)

    @worker.task("first")
    async def first(body: str) -> None:
        await second.add_async(body)

    client.queue("first").add_many(["x", "y"])
    client.queue("second").configure()
    assert worker.run(burst=True)
    assert sorted(done) == ["x", "y"]


async def test_a_worker_with_no_free_slot_holds_no_messages(
    make_worker: Make, server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Other workers can have its prefetched messages. It continues when a thread ends, and is not finished until then."""
    worker = make_worker(concurrency=1, prefetch=2, drain_ms=0)
    go = threading.Event()
    seen: list[str] = []

    @worker.task("slow", timeout_ms=50, retry=Retry(base_ms=600_000))
    def slow(body: str) -> None:
        seen.append(body)
        if body.startswith("stuck"):
            go.wait(30)

    client = server.client()
    queue = client.queue("slow")
    queue.add("stuck")
    queue.add_many(["a", "b"])
    serving = asyncio.create_task(worker.serve())
    await soon(lambda: "all slots are occupied" in caplog.text)
    await soon(lambda: (queue.stats().ready, queue.stats().in_flight) == (2, 0))
    queue.add("c")
    assert [message.attempt for message in queue.poll(1)] == [1]
    assert seen == ["stuck"]
    go.set()
    await soon(lambda: len(seen) == 3)
    go.clear()
    queue.add("stuck again")
    with caplog.at_level(logging.INFO, logger="tenantq.worker"):
        await soon(lambda: "stuck again" in seen and caplog.text.count("all slots are occupied") == 2)
        worker.stop()
        assert not await serving
    assert caplog.records[-1].__dict__["unfinished"] == 1
    go.set()
