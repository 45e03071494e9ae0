"""Opening and closing: no caller is left waiting, the sync marker is correct, and the directory is always released."""

import asyncio
import random
import threading
from pathlib import Path

import pytest

from tenantq.engine.settings import ShardSettings
from tenantq.errors import StoreFailed
from tenantq.runtime.clock import ManualClock
from tenantq.store.interface import Store
from tenantq.store.rocks import RocksStore
from tests.administration import put_queue
from tests.conftest import OpenShard
from tests.shards import Q, T, examined, message, stored_beat, sync_on_thread
from tests.verbs import Shard


class Gate:
    """Blocks every sync until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch, shard: Shard) -> None:
        sync_on_thread(shard)
        self._opened = threading.Event()
        real = type(shard.state.store).sync

        def held(store: Store) -> None:
            self._opened.wait(30)
            real(store)

        patch.setattr(type(shard.state.store), "sync", held)

    def open(self) -> None:
        """Let all syncs continue."""
        self._opened.set()


def failing(*_: object) -> None:
    """Fail like a disk."""
    raise StoreFailed("the disk is gone")


async def turns(count: int = 20) -> None:
    """Run a few turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_close_answers_queued_polls(shard: Shard) -> None:
    """They get an empty reply at once, not after their whole wait."""
    await put_queue(shard, T, Q)
    polls = [
        asyncio.create_task(shard.poll(T, Q, wait_ms=300_000)),
        asyncio.create_task(shard.fleet_poll(Q, wait_ms=300_000)),
    ]
    await asyncio.sleep(0)
    await shard.close()
    await turns()
    assert [poll.done() and poll.result() for poll in polls] == [[], []]


async def test_clean_close_with_durability_os_syncs_queued_work(
    open_shard: OpenShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync marker is marked clean only for synced records."""
    shard = await open_shard(settings=ShardSettings(durability="os", round_cost_alone=1))
    synced: list[int] = []
    real = type(shard.state.store).sync

    def noted(store: Store) -> None:
        at = shard.state.journal.seq
        real(store)
        synced.append(at)

    monkeypatch.setattr(type(shard.state.store), "sync", noted)
    await put_queue(shard, T, Q)
    adds = [asyncio.create_task(shard.add(T, Q, [message()])) for _ in range(30)]
    await asyncio.sleep(0)
    await shard.close()
    assert [reply.error for (reply,) in await asyncio.gather(*adds)] == [None] * 30
    last = shard.journal.span[1]
    beat = stored_beat(shard)
    assert beat is not None
    assert last == 32
    assert (beat.seq, beat.clean) == (last, True)
    assert synced[-1] == last
    assert shard.state.journal.synced_seq == last
    shard = await open_shard()
    assert shard.reads.stats(T, Q).ready == 30


async def test_cancelled_close_still_closes(open_shard: OpenShard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory does not stay locked."""
    shard = await open_shard()
    with monkeypatch.context() as patch:
        gate = Gate(patch, shard)
        adding = asyncio.create_task(shard.add(T, Q, [message()]))
        await turns()
        closing = asyncio.create_task(shard.close())
        await turns()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert not adding.done()
        gate.open()
        await shard.close()
    (reply,) = await adding
    assert reply.error is None
    shard = await open_shard()
    assert shard.reads.stats(T, Q).ready == 1


async def test_a_second_close_waits_for_the_first(open_shard: OpenShard, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any close returns, the directory can be opened."""
    shard = await open_shard()
    with monkeypatch.context() as patch:
        gate = Gate(patch, shard)
        adding = asyncio.create_task(shard.add(T, Q, [message()]))
        await turns()
        first = asyncio.create_task(shard.close())
        second = asyncio.create_task(shard.close())
        await turns()
        assert (first.done(), second.done()) == (False, False)
        gate.open()
        await second
        await (await open_shard()).close()
        await first
    await adding


@pytest.mark.rocksdb_only("it makes its shard by itself")
async def test_failed_open_releases_the_directory(
    tmp_path: Path, open_shard: OpenShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt finds it free, and no thread is left."""
    threads = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(RocksStore, "write", failing)
        failed = Shard(tmp_path / "data", clock=ManualClock(), randomness=random.Random(7))
        with pytest.raises(StoreFailed, match="the disk is gone"):
            await failed.open()
    assert threading.active_count() <= threads
    shard = await open_shard()
    await shard.add(T, Q, [message()])
    assert shard.reads.stats(T, Q).ready == 1
    await failed.close()
    assert shard.failure is None


async def test_failed_trim_stops_the_shard(
    open_shard: OpenShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is confirmed after it, and the journal has no gap."""
    shard = await open_shard()
    for _ in range(2):
        await shard.add(T, Q, [message()])
    with monkeypatch.context() as patch:
        patch.setattr(type(shard.state.store), "write", failing)
        with pytest.raises(StoreFailed, match="the disk is gone"):
            await shard.journal.trim(1)
    assert shard.failure is not None
    assert shard.loop.stopped.is_set()
    with pytest.raises(StoreFailed):
        await shard.add(T, Q, [message()])
    await shard.close()
    assert examined(shard).findings == []
    shard = await open_shard()
    assert shard.journal.span == (1, 3)
    assert shard.reads.stats(T, Q).ready == 2
    await shard.journal.trim(1)
    await shard.add(T, Q, [message()])
    await shard.close()
    assert examined(shard).findings == []
