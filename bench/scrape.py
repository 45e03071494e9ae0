"""What a scrape of the metrics costs with many active queues: its duration, and how long it blocks the event loop."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING

from bench.service import open_service
from bench.table import Table
from tenantq.domain.message import NewMessage
from tenantq.service.call import Call
from tenantq.service.service import Service

if TYPE_CHECKING:
    from pathlib import Path

_TENANTS = 100
_SCRAPES = 10


async def run(directory: Path, *, quick: bool) -> None:
    """Scrape a shard whose queues are all active between two scrapes."""
    queues = 1_000 if quick else 10_000
    async with open_service(directory / "scrape") as (service, admin):
        names = [(f"tenant-{at % _TENANTS}", f"queue-{at // _TENANTS}") for at in range(queues)]
        for at in range(_TENANTS):
            await service.tenants.put(admin, f"tenant-{at}", {"quotas": {"backlog": 10**9}})
        table = Table("scrape", "queues", "KiB", "ms", "longest block of the loop, ms", "its CPU, ms")
        gc.set_threshold(10_000)  # like a server; also below
        for number in range(_SCRAPES + 1):
            for start in range(0, queues, 64):
                await asyncio.gather(*(_work(service, admin, *one) for one in names[start : start + 64]))
            if number == 0:
                gc.collect()
                gc.freeze()
                continue
            size, took_s, hold_s, cpu_s = await _scrape(service, admin)
            table.row(number, queues, size // 1_024, f"{took_s * 1e3:.0f}", f"{hold_s * 1e3:.1f}", f"{cpu_s * 1e3:.1f}")
        table.show()
        print("target: at most 250 ms in total and 5 ms at a time")


async def _work(service: Service, call: Call, tenant: str, queue: str) -> None:
    await service.messages.add(call, tenant, queue, [NewMessage(body=b"x"), NewMessage(body=b"x")])
    got = await service.messages.poll(call, tenant, queue, max=1)
    await service.settlement.ack(call, tenant, queue, [one.receipt for one in got])


async def _scrape(service: Service, call: Call) -> tuple[int, float, float, float]:
    """Return the size of the metrics, the duration of the scrape, and its longest turn in wall and CPU time."""
    longest_s, last = 0.0, time.perf_counter()
    longest_cpu_s, last_cpu = 0.0, time.thread_time()

    async def watch() -> None:
        nonlocal longest_s, last, longest_cpu_s, last_cpu
        while True:
            await asyncio.sleep(0)
            now, cpu = time.perf_counter(), time.thread_time()
            longest_s, last = max(longest_s, now - last), now
            longest_cpu_s, last_cpu = max(longest_cpu_s, cpu - last_cpu), cpu

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    started = time.perf_counter()
    text = await service.status.metrics(call)
    took_s = time.perf_counter() - started
    watching.cancel()
    return len(text), took_s, longest_s, longest_cpu_s
