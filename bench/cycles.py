"""Adds and full cycles in process, fsync on, 100-byte bodies, compared with the bare cost of the same rows and syncs."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from bench.raw_store import bare_us
from bench.table import Table, percentile
from tenantq.domain.message import NewMessage
from tests.verbs import Shard

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.errors import StoreFailed

_T, _Q = "default", "bench"
_BODY = NewMessage(body=b"x" * 100)


async def add(shard: Shard, batch: int, times: int, waits: list[float]) -> None:
    """Add batches, and record how long each took."""
    messages = [_BODY] * batch
    for _ in range(times):
        started = time.perf_counter()
        await shard.add(_T, _Q, messages)
        waits.append(time.perf_counter() - started)


async def cycle(shard: Shard, batch: int, times: int, waits: list[float]) -> None:
    """Add, poll and ack batches, and record how long each took."""
    messages = [_BODY] * batch
    for _ in range(times):
        started = time.perf_counter()
        await shard.add(_T, _Q, messages)
        left = batch
        while left:
            got = await shard.poll(_T, _Q, max=left, wait_ms=1_000)
            await shard.ack(_T, _Q, [one.receipt for one in got])
            left -= len(got)
        waits.append(time.perf_counter() - started)


def _count_syncs(shard: Shard) -> list[None]:
    """Return a list that grows with every sync."""
    syncs: list[None] = []
    committer = shard.loop._committer
    assert committer is not None
    sync = committer.sync

    def counted() -> StoreFailed | None:
        syncs.append(None)
        return sync()

    committer.sync = counted  # type: ignore[method-assign]
    return syncs


async def run(directory: Path, *, quick: bool) -> None:
    table = Table(
        "operation", "callers", "batch", "messages/s", "us/message", "bare us", "ratio", "msgs/sync", "p50 ms", "p99 ms"
    )
    scale = 10 if quick else 1
    for name, work in (("add", add), ("full cycle", cycle)):
        for callers in (1, 64):
            for batch in (1, 10, 100):
                messages = (
                    {1: 8_000, 10: 40_000, 100: 100_000}[batch] // scale // (4 if callers == 1 and batch == 1 else 1)
                )
                times = max(1, messages // callers // batch)
                path = directory / f"{name}-{callers}-{batch}"
                waits: list[float] = []
                async with Shard(path / "engine") as shard:
                    await work(shard, batch, max(1, times // 10), [])
                    syncs = _count_syncs(shard)
                    before = shard.journal.span[1]
                    started = time.perf_counter()
                    await asyncio.gather(*(work(shard, batch, times, waits) for _ in range(callers)))
                    spent = time.perf_counter() - started
                    batches = shard.journal.span[1] - before
                done = times * callers * batch
                bare = bare_us(path / "bare", messages=done, batches=batches, syncs=len(syncs), cycle=work is cycle)
                cost = spent / done * 1e6
                table.row(
                    name, callers, batch, f"{done / spent:,.0f}", f"{cost:.1f}", f"{bare:.1f}", f"{cost / bare:.2f}",
                    f"{done * (3 if work is cycle else 1) / max(1, len(syncs)):.0f}",
                    f"{percentile(waits, 50) * 1e3:.2f}", f"{percentile(waits, 99) * 1e3:.2f}",
                )  # fmt: skip
    table.show()
