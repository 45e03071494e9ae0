"""What encryption costs, and what the journal costs: full cycles by 100 through the service, 1 KiB bodies, fsync on.

The two sides of each comparison take turns in one run, so that a disturbance of the machine hits both.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from bench.service import open_service
from bench.table import Table
from tenantq.domain.access import Grant
from tenantq.domain.message import NewMessage
from tenantq.engine.effects import Effects
from tenantq.engine.round import Round
from tenantq.journal.record import JournalEntry
from tenantq.service.call import Call
from tenantq.service.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path

_BATCH = 100
_BODY_BYTES = 1_024
_ENCRYPTION_MAX = 20  # per cent of throughput
_JOURNAL_MAX = 15


@asynccontextmanager
async def _two_tenants(path: Path) -> AsyncIterator[tuple[Service, dict[str, Call]]]:
    """Yield a service with an unencrypted and an encrypted tenant, and a caller of each."""
    async with open_service(path) as (service, admin):
        calls = {}
        for name, enabled in (("plain", False), ("encrypted", True)):
            await service.tenants.put(admin, name, {"encryption": {"enabled": enabled}})
            key = await service.access.create_key(admin, name, "bench", Grant(role="tenant-admin"))
            calls[name] = Call(bearer=key.token, remote="127.0.0.1", request_id="r")
        yield service, calls


async def _cycles(service: Service, call: Call, times: int) -> None:
    messages = [NewMessage(body=os.urandom(_BODY_BYTES)) for _ in range(_BATCH)]
    for _ in range(times):
        await service.messages.add(call, None, "q", messages)
        left = _BATCH
        while left:
            got = await service.messages.poll(call, None, "q", max=left, wait_ms=1_000)
            await service.settlement.ack(call, None, "q", [one.receipt for one in got])
            left -= len(got)


async def _timed(service: Service, call: Call, callers: int, times: int) -> float:
    """Return the messages per second of a number of callers."""
    gc.collect()
    started = time.perf_counter()
    await asyncio.gather(*(_cycles(service, call, times) for _ in range(callers)))
    return callers * times * _BATCH / (time.perf_counter() - started)


@contextmanager
def no_journal() -> Iterator[None]:
    """Make rounds write no journal: no entries, columns, records or hashes."""
    nothing = JournalEntry("nothing", "", "", "")

    def log(effects: Effects, *_: object, **__: object) -> None:
        if not effects.entries:
            effects.entries.append(nothing)

    def add_record(_: Round, previous: bytes, __: bytes) -> tuple[bytes, int]:
        return previous, 0

    def column(_: object) -> int:
        return 0

    with (
        mock.patch.object(Effects, "log", log),
        mock.patch.object(Round, "add_record", add_record),
        mock.patch("tenantq.engine.ops.add.column", column),
        mock.patch("tenantq.engine.delivery.column", column),
        mock.patch("tenantq.engine.ops.settle.column", column),
    ):
        yield


async def _compare(
    table: Table, what: str, most: int, sides: list[Callable[[], Coroutine[Any, Any, float]]], turns: int, callers: int
) -> None:
    """Run two sides in turns, and report what the second loses against the first."""
    for side in sides:
        await side()  # once to warm up
    speeds: list[list[float]] = [[], []]
    for turn in range(turns):
        for index in (0, 1) if turn % 2 else (1, 0):
            speeds[index].append(await sides[index]())
    first, second = (statistics.median(one) for one in speeds)
    loss = statistics.median([100 * (1 - slow / fast) for fast, slow in zip(*speeds, strict=True)])
    table.row(what, callers, f"{first:,.0f}", f"{second:,.0f}", f"{loss:.1f}", most, "yes" if loss <= most else "NO")


async def run(directory: Path, *, quick: bool) -> None:
    table = Table("cost of", "callers", "without msgs/s", "with msgs/s", "loss %", "target at most", "met")
    turns = 5 if quick else 21
    async with _two_tenants(directory / "one") as (service, calls), _two_tenants(directory / "two") as (other, others):
        for callers in (1, 16):
            times = (8 if callers == 1 else 1) if quick else (16 if callers == 1 else 2)

            async def plain(callers: int = callers, times: int = times) -> float:
                return await _timed(service, calls["plain"], callers, times)

            async def encrypted(callers: int = callers, times: int = times) -> float:
                return await _timed(service, calls["encrypted"], callers, times)

            async def unjournaled(callers: int = callers, times: int = times) -> float:
                with no_journal():
                    return await _timed(other, others["plain"], callers, times)

            async def journaled(callers: int = callers, times: int = times) -> float:
                return await _timed(other, others["plain"], callers, times)

            await _compare(table, "encryption", _ENCRYPTION_MAX, [plain, encrypted], turns, callers)
            await _compare(table, "the journal", _JOURNAL_MAX, [unjournaled, journaled], turns, callers)
    table.show()
