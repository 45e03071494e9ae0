"""An open loop: calls at an even pace, whether or not earlier ones are done, each timed from the moment it was due.

A caller that waits for its answer before it calls again stays silent while the server is slow, and measures least just then. Here what is
late in being sent is late in the figures too.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final

from tenantq.errors import TenantqError
from tenantq.load.drive import PASSING, until_done
from tenantq.load.stopwatch import Stopwatch, SystemStopwatch
from tenantq.load.tally import Span, Tally

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

UNDER_WAY_MAX: Final = 1_000
"""Calls that may be under way. What is due beyond it waits, and that counts."""
_SPIN_S: Final = 0.001
"""An event loop sleeps in whole milliseconds. The last one is waited out turn by turn, or every call would be late."""


async def send_steadily(
    send: Callable[[], Awaitable[object]],
    tally: Tally,
    *,
    per_second: float,
    warm_up_s: float,
    seconds: float,
    stop: asyncio.Event,
    under_way_max: int = UNDER_WAY_MAX,
    stopwatch: Stopwatch | None = None,
) -> None:
    """Send ``per_second`` times a second, and count what was due within ``seconds`` after ``warm_up_s``."""
    watch = stopwatch or SystemStopwatch()
    begin = watch.now()
    tally.span = Span(begin + warm_up_s, begin + warm_up_s + seconds)
    under_way: set[asyncio.Task[None]] = set()

    async def one(due: float) -> None:
        tally.begun += 1
        try:
            await send()
        except PASSING as error:
            tally.failed(error)
        except TenantqError as error:
            tally.stop("failed", watch.now(), error)
        else:
            tally.done(watch.now() - due, 1, counts=tally.span.holds(due))

    async def all_of_them() -> None:
        for number in itertools.count():
            due = begin + number / per_second
            while due < tally.span.end and (left := due - watch.now()) > 0:
                await watch.sleep(max(0.0, left - _SPIN_S))
            while len(under_way) >= under_way_max:
                await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            if due >= tally.span.end:
                break
            task = asyncio.create_task(one(due))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        if under_way:
            await asyncio.gather(*under_way)

    try:
        await until_done([asyncio.create_task(all_of_them())], tally, stop, watch)
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
