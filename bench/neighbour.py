"""The noisy neighbour: what a flood of one tenant costs another, over HTTP.

A victim adds 50 messages a second: alone, while another tenant floods a second server on the same machine (control), and while it floods
the victim's own server (shared). The isolation index is the shared p99 over the control's: what the neighbour costs beyond the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from typing import TYPE_CHECKING

from bench.processes import TOKEN, tenantq
from bench.table import Table, percentile
from tenantq.client import AsyncClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_FLOOD = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {token}"
wrk.body = '{{"messages":[{{"body":"{body}"}}]}}'
"""
_CONNECTIONS = 128
_PER_SECOND = 50


async def run(directory: Path, *, quick: bool) -> None:
    if shutil.which("wrk") is None:
        print("wrk is not installed: the flood cannot be made")
        return
    seconds = 4 if quick else 15
    table = Table("victim", "flood adds/s", "p50 ms", "p99 ms", "index")
    with tenantq(directory / "one") as mine, tenantq(directory / "two") as other:
        victim, flooder = await tenants(mine)
        _, other_flooder = await tenants(other)
        await measure(mine, victim, seconds=1)
        alone = await measure(mine, victim, seconds=seconds)
        _row(table, "alone", "", alone, "")
        control, shared = list[tuple[list[float], list[float]]](), list[tuple[list[float], list[float]]]()
        for round in range(3):  # in turns, so that a slow phase of the machine affects both
            for url, token, into in ((other, other_flooder, control), (mine, flooder, shared)):
                async with _flood(directory / f"{round}.lua", url, token, seconds + 2) as rate:
                    into.append((await measure(mine, victim, seconds=seconds), rate))
        index = [percentile(hit[0], 99) / percentile(free[0], 99) for free, hit in zip(control, shared, strict=True)]
        for (waits, rate), name in ((control[-1], "control"), (shared[-1], "shared")):
            _row(table, name, f"{rate[0]:,.0f}", waits, f"{sorted(index)[1]:.2f}" if name == "shared" else "")
    table.show()
    print(f"isolation index, three turns: {', '.join(f'{one:.2f}' for one in index)} (target: at most 1.5)")


async def tenants(url: str) -> tuple[str, str]:
    async with AsyncClient(url, token=TOKEN) as admin:
        tokens = []
        for name in ("victim", "flooder"):
            await admin.tenant(name).configure()
            tokens.append((await admin.tenant(name).create_key("bench", role="producer")).token)
    return tokens[0], tokens[1]


async def measure(url: str, token: str, *, seconds: int) -> list[float]:
    """Add at an even pace, whether or not earlier adds are done; return how long each took, in seconds.

    From when it is sent, as every index so far; ``tenantq bench`` counts from when it is due, which has the machine's own delays in it.
    """
    waits: list[float] = []
    async with AsyncClient(url, token=token, retries=0, coalesce=False) as client:
        queue = client.queue("quiet")
        await queue.add("warm")

        async def add() -> None:
            started = time.perf_counter()
            await queue.add("x" * 100)
            waits.append(time.perf_counter() - started)

        async with asyncio.TaskGroup() as group:
            for _ in range(seconds * _PER_SECOND):
                group.create_task(add())
                await asyncio.sleep(1 / _PER_SECOND)
    return waits


@contextlib.asynccontextmanager
async def _flood(script: Path, url: str, token: str, seconds: int) -> AsyncIterator[list[float]]:
    """Flood a server while the block runs; the list then has the rate."""
    script.write_text(_FLOOD.format(token=token, body="x" * 100))  # noqa: ASYNC240  # before anything is measured
    rate = [0.0]
    process = await asyncio.create_subprocess_exec(
        "wrk", "-t1", f"-c{_CONNECTIONS}", f"-d{seconds}s", "-s", str(script), f"{url}/v1/queues/loud/messages",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    await asyncio.sleep(1)
    try:
        yield rate
    finally:
        said, _ = await process.communicate()
        for line in said.decode().splitlines():
            if line.startswith("Requests/sec:"):
                rate[0] = float(line.split()[1])


def _row(table: Table, name: str, rate: str, waits: list[float], index: str) -> None:
    table.row(name, rate, f"{percentile(waits, 50) * 1e3:.2f}", f"{percentile(waits, 99) * 1e3:.2f}", index)
