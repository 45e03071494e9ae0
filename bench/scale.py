"""Size: a million messages in one queue, a hundred thousand queues in ten thousand tenants."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from bench.table import Table
from tenantq.domain.message import LOCAL, NewMessage
from tenantq.engine.ops.lifecycle import PutQueue, PutTenant
from tests.verbs import Shard

_T, _Q = "default", "big"
_BATCH = [NewMessage(body=b"x" * 100)] * 1_000


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def fill(path: Path, messages: int) -> None:
    async with Shard(path) as shard:
        for _ in range(messages // len(_BATCH)):
            await shard.add(_T, _Q, _BATCH)


async def drain_rate(shard: Shard, messages: int) -> float:
    """Poll and ack in hundreds, adding as many first so that the depth stays the same; return messages per second."""
    spent = 0.0
    for _ in range(messages // 100):
        await shard.add(_T, _Q, _BATCH[:100])
        started = time.perf_counter()
        got = await shard.poll(_T, _Q, max=100)
        await shard.ack(_T, _Q, [one.receipt for one in got])
        spent += time.perf_counter() - started
    return messages / spent


async def _reopen(path: Path, sample: int) -> None:
    """Open, serve once and measure, in a separate process."""
    started = time.perf_counter()
    async with Shard(path) as shard:
        opened = time.perf_counter()
        (first,) = await shard.poll(_T, _Q)
        served = time.perf_counter()
        await shard.release(_T, _Q, [first.receipt])
        rate = await drain_rate(shard, sample)
        depth = shard.reads.stats(_T, _Q).ready
        print(
            opened - started,
            served - started,
            rate,
            depth,
            resident_mb(),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        )


def _in_own_process(path: Path, sample: int) -> list[float]:
    code = f"import asyncio, pathlib; from bench.scale import _reopen; asyncio.run(_reopen(pathlib.Path({str(path)!r}), {sample}))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return [float(word) for word in output.split()]


async def run(directory: Path, *, quick: bool) -> None:
    table = Table("messages", "open s", "first delivery s", "poll+ack /s", "resident MB", "peak MB")
    sample = 5_000 if quick else 20_000
    rates: dict[int, list[float]] = {}
    sizes = (1_000, 100_000 if quick else 1_000_000)
    for messages in sizes:
        await fill(directory / f"big-{messages}", messages)
    for _ in range(1 if quick else 3):
        for messages in sizes:
            opened, served, rate, _, resident, peak = _in_own_process(directory / f"big-{messages}", sample)
            rates.setdefault(messages, []).append(rate)
            table.row(
                f"{messages:,}", f"{opened:.2f}", f"{served:.2f}", f"{rate:,.0f}", f"{resident:.0f}", f"{peak:.0f}"
            )
    table.show()
    small, large = (max(rates[size]) for size in sizes)
    print(
        f"poll+ack at {sizes[1]:,} compared with {sizes[0]:,} messages: {large / small:.2f} (at least 0.90), best of {len(rates[sizes[0]])}"
    )
    await _many_queues(directory / "many", tenants=1_000 if quick else 10_000)


async def _many_queues(path: Path, *, tenants: int) -> None:
    async with Shard(path) as shard:
        started = time.perf_counter()
        for start in range(0, tenants, 500):
            names = [f"tenant-{i}" for i in range(start, min(start + 500, tenants))]
            await asyncio.gather(*(shard.submit(PutTenant(shard.state.platform, LOCAL, name, {})) for name in names))
            await asyncio.gather(
                *(shard.submit(PutQueue(shard.tenant(name), LOCAL, f"queue-{q}")) for name in names for q in range(10))
            )
        made = time.perf_counter() - started
    code = (
        "import asyncio, pathlib, time; from bench.scale import resident_mb; from tests.verbs import Shard\n"
        "async def main():\n"
        "    before, started = resident_mb(), time.perf_counter()\n"
        f"    async with Shard(pathlib.Path({str(path)!r})) as shard:\n"
        "        opened, cpu = time.perf_counter() - started, time.process_time()\n"
        "        await asyncio.sleep(3)\n"
        "        print(opened, resident_mb() - before, (time.process_time() - cpu) / 3 * 100)\n"
        "asyncio.run(main())\n"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    opened, resident, cpu = (float(word) for word in output.split())
    print(
        f"{tenants * 10:,} queues in {tenants:,} tenants: created in {made:.1f} s, opened in {opened:.2f} s, {resident:.0f} MB, "
        f"idle {cpu:.2f} % of a core"
    )
