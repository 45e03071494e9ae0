"""Reads return only synced data: no crash can undo what they returned."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tenantq.domain.message import Result
from tenantq.errors import StoreFailed
from tenantq.runtime.clock import ManualClock
from tenantq.store.interface import Store
from tests.administration import put_queue
from tests.shards import Q, T, message, sync_on_thread, wait_until_idle
from tests.verbs import Shard


class Syncs:
    """Lets syncs continue one by one."""

    def __init__(self, patch: pytest.MonkeyPatch, shard: Shard) -> None:
        self._patch = patch
        self._kind = type(shard.state.store)
        self._passes = threading.Semaphore(0)
        self._real = self._kind.sync
        self._loop = asyncio.get_running_loop()
        self._begun = asyncio.Semaphore(0)

    def hold(self) -> None:
        """Block every sync from now on."""

        def held(store: Store) -> None:
            self._loop.call_soon_threadsafe(self._begun.release)
            self._passes.acquire()
            self._real(store)

        self._patch.setattr(self._kind, "sync", held)

    async def begun(self) -> None:
        """Wait until one more sync has started."""
        await asyncio.wait_for(self._begun.acquire(), 30)

    def let(self, count: int = 1) -> None:
        """Let this many syncs continue."""
        for _ in range(count):
            self._passes.release()


@pytest.fixture
async def syncs(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Syncs]:
    """Return the gate of the shard's syncs, and open it at the end."""
    gate = Syncs(monkeypatch, shard)
    sync_on_thread(shard)
    yield gate
    gate.let(1_000)


async def turns(count: int = 20) -> None:
    """Run a few turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


READS: dict[str, Callable[[Shard, bytes], Awaitable[Any]]] = {
    "peek": lambda shard, _: shard.reads.peek(T, Q),
    "get": lambda shard, raw: shard.reads.get(T, Q, raw),
    "result": lambda shard, raw: shard.reads.result(T, Q, raw),
    "trace": lambda shard, raw: shard.reads.trace(T, Q, raw),
}


@pytest.mark.parametrize("read", READS)
async def test_read_waits_for_the_sync_of_the_add_it_would_return(shard: Shard, syncs: Syncs, read: str) -> None:
    """The sync of an earlier round does not suffice."""
    await put_queue(shard, T, Q)
    syncs.hold()
    first = asyncio.create_task(shard.add(T, Q, [message("1")]))
    await syncs.begun()
    many = [message(str(number)) for number in range(64)]  # enough that their round does not wait for that sync
    second = asyncio.create_task(shard.add(T, Q, many))
    await turns()
    assert shard.state.journal.seq == shard.state.journal.synced_seq + 2  # both are written, and none is synced
    reading = asyncio.create_task(_awaited(READS[read](shard, shard.state.ids.last)))
    await turns()
    syncs.let()
    await first
    await syncs.begun()  # the second sync
    await turns()
    assert (reading.done(), second.done()) == (False, False)
    syncs.let()
    await second
    await reading


async def _awaited(reading: Awaitable[Any]) -> Any:
    return await reading


async def test_result_whose_sync_failed_is_not_returned(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its waiter gets StoreFailed, like the caller of the ack."""

    def broken(_: Store) -> None:
        raise StoreFailed("the sync failed")

    (added,) = await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    waiting = asyncio.create_task(shard.reads.result(T, Q, added.id, wait_ms=60_000))
    await wait_until_idle(shard)
    monkeypatch.setattr(type(shard.state.store), "sync", broken)
    with pytest.raises(StoreFailed):
        await shard.ack(T, Q, [got.receipt], results=[Result("completed", b"r")])
    with pytest.raises(StoreFailed):
        await waiting


async def test_result_is_not_returned_before_its_sync_when_the_wait_ends(
    shard: Shard, clock: ManualClock, syncs: Syncs
) -> None:
    """The wait ends between the write and the sync of the ack."""
    (added,) = await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    waiting = asyncio.create_task(shard.reads.result(T, Q, added.id, wait_ms=1_000))
    await wait_until_idle(shard)
    syncs.hold()
    acking = asyncio.create_task(shard.ack(T, Q, [got.receipt], results=[Result("completed", b"r")]))
    await syncs.begun()
    clock.advance(1_000)
    await turns()
    assert (waiting.done(), acking.done()) == (False, False)
    syncs.let()
    await acking
    assert await waiting == Result("completed", b"r")
