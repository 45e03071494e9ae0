"""Where syncs run: on the event loop while the disk is fast and nothing else waits, otherwise on a thread."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from tenantq.domain.message import NewMessage
from tenantq.engine.committer import PROBATION, QUICK_MS
from tenantq.runtime.clock import ManualClock
from tests.verbs import Shard

if TYPE_CHECKING:
    from pathlib import Path

MESSAGE = NewMessage(body=b"x")


class Disk:
    """Records which thread syncs, and makes a sync take a configured time on the shard's clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.takes_ms = 0
        self.here: list[bool] = []

    def __call__(self, point: str) -> None:
        if point == "before_sync":
            self.here.append(threading.current_thread() is threading.main_thread())
            self.clock._monotonic_ms += self.takes_ms  # no timer is due so soon, and none may run on this thread


async def test_fast_disk_is_synced_on_the_event_loop(tmp_path: Path) -> None:
    """With one caller after the other, nobody waits, so no thread is woken."""
    disk = Disk()
    async with Shard(tmp_path, clock=disk.clock, probe=disk) as shard:
        disk.here.clear()
        for _ in range(5):
            await shard.add("default", "q", [MESSAGE])
    assert disk.here == [True] * 5


async def test_slow_sync_moves_the_next_ones_to_the_thread(tmp_path: Path) -> None:
    """The event loop waits for one slow sync, and for none until the thread has seen many fast ones in a row."""
    disk = Disk()
    async with Shard(tmp_path, clock=disk.clock, probe=disk) as shard:
        disk.here.clear()
        disk.takes_ms = QUICK_MS + 1
        for _ in range(4):
            await shard.add("default", "q", [MESSAGE])
        assert disk.here == [True, False, False, False]
        disk.takes_ms = QUICK_MS
        for _ in range(PROBATION):
            await shard.add("default", "q", [MESSAGE])
        assert disk.here[4:] == [False] * PROBATION
        await shard.add("default", "q", [MESSAGE])
        assert disk.here[-1]


async def test_round_with_large_bodies_is_synced_on_the_thread(tmp_path: Path) -> None:
    """Even a fast disk needs milliseconds for a megabyte, in which the event loop serves others."""
    disk = Disk()
    async with Shard(tmp_path, clock=disk.clock, probe=disk) as shard:
        disk.here.clear()
        for size in (1, 1 << 20, 1):
            await shard.add("default", "q", [NewMessage(body=bytes(size))])
    assert disk.here == [True, False, True]


async def test_thread_syncs_while_much_work_waits(tmp_path: Path) -> None:
    """The next round runs during the sync of the last, so that neither waits for the other."""
    disk = Disk()
    async with Shard(tmp_path, clock=disk.clock, probe=disk) as shard:
        await shard.add("default", "q", [MESSAGE])
        disk.here.clear()
        batch = [NewMessage(body=bytes(1_000))] * 100
        added = await asyncio.gather(*(shard.add("default", "q", batch) for _ in range(40)))
        assert sum(len(one) for one in added) == 4_000
        assert False in disk.here
        assert shard.reads.stats("default", "q").ready == 4_001
