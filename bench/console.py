"""What a console costs its server: the calls of its refreshes, at its interval, with many tenants and queues."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from bench.processes import TOKEN, serving
from bench.table import Table
from tenantq.client import AsyncClient
from tenantq.console.app import REFRESH_MS, SECURITY_EVERY
from tenantq.console.reader import ConsoleReader
from tenantq.console.security_rows import FILTERS
from tenantq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from bench.processes import RunningServer

_SHOWN = "tenant-0"


async def run(directory: Path, *, quick: bool) -> None:
    """Show a tenant with a tenth of all queues to an administrator of all tenants."""
    tenants, queues, refreshes = (100, 1_000, 5) if quick else (1_000, 10_000, 15)
    with serving(directory / "console") as server:
        async with AsyncClient(server.url, token=TOKEN) as client:
            in_line = asyncio.Semaphore(64)

            async def prepare(number: int) -> None:
                tenant = _SHOWN if number < queues // 10 else f"tenant-{number % tenants}"
                async with in_line:
                    await client.tenant(tenant).queue(f"queue-{number}").add("x")

            for number in range(tenants):
                await client.tenant(f"tenant-{number}").configure(quotas={"backlog": 1_000_000})
            await asyncio.gather(*(prepare(number) for number in range(queues)))
            table = Table("server", "seconds", "CPU seconds", "% of a core")
            for name, work in (("idle", _nothing), ("watched", _refresh)):
                await asyncio.sleep(REFRESH_MS / 1_000)
                await _measured(server, table, name, work(client, refreshes))
        table.show()
    print(f"{tenants:,} tenants, {queues:,} queues, a refresh every {REFRESH_MS} ms. Target: less than 5 % of a core")


async def _measured(server: RunningServer, table: Table, name: str, work: Coroutine[Any, Any, None]) -> None:
    started, cpu_s = time.perf_counter(), server.cpu_s()
    await work
    took_s, used_s = time.perf_counter() - started, server.cpu_s() - cpu_s
    table.row(name, f"{took_s:.1f}", f"{used_s:.2f}", f"{used_s / took_s * 100:.1f}")


async def _nothing(_: AsyncClient, refreshes: int) -> None:
    await asyncio.sleep(refreshes * REFRESH_MS / 1_000)


async def _refresh(client: AsyncClient, refreshes: int) -> None:
    """Make the calls of the console application."""
    reader = ConsoleReader(client, SystemClock())
    for turn in range(refreshes):
        ends = time.perf_counter() + REFRESH_MS / 1_000
        due = turn % SECURITY_EVERY == 0
        await reader.read(_SHOWN, relist=due)
        if due:
            await reader.security(_SHOWN, FILTERS[0])
        await asyncio.sleep(max(0.0, ends - time.perf_counter()))
