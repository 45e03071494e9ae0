"""An open loop: calls at a constant rate, whether or not earlier ones are done, each timed from the time it was due.

A closed loop sends less while the server is slow, and so hides the slowness. Here a delay in sending counts as latency.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Final

from tenantq.errors import TenantqError
from tenantq.load.closed_loop import TEMPORARY, wait_for_tasks
from tenantq.load.measurement import MeasuredInterval, Measurement
from tenantq.load.stopwatch import Stopwatch, SystemStopwatch

CONCURRENT_MAX: Final = 1_000
"""Maximum of concurrent calls. Further calls wait, and the wait counts as latency."""
_SPIN_S: Final = 0.001
"""The event loop sleeps in whole milliseconds. The last one is spent turn by turn, so that calls are not late."""


async def send_steadily(
    send: Callable[[], Awaitable[object]],
    measurement: Measurement,
    *,
    per_second: float,
    warm_up_s: float,
    seconds: float,
    stop: asyncio.Event,
    concurrent_max: int = CONCURRENT_MAX,
    stopwatch: Stopwatch | None = None,
) -> None:
    """Send ``per_second`` calls per second, and count those due within ``seconds`` after ``warm_up_s``."""
    watch = stopwatch or SystemStopwatch()
    begin = watch.now()
    measurement.interval = MeasuredInterval(begin + warm_up_s, begin + warm_up_s + seconds)
    running: set[asyncio.Task[None]] = set()

    async def send_one(due: float) -> None:
        measurement.begun += 1
        try:
            await send()
        except TEMPORARY as error:
            measurement.failed(error)
        except TenantqError as error:
            measurement.stop("failed", watch.now(), error)
        else:
            measurement.done(watch.now() - due, 1, counts=measurement.interval.holds(due))

    async def send_all() -> None:
        for number in itertools.count():
            due = begin + number / per_second
            while due < measurement.interval.end and (left := due - watch.now()) > 0:
                await watch.sleep(max(0.0, left - _SPIN_S))
            while len(running) >= concurrent_max:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if due >= measurement.interval.end:
                break
            task = asyncio.create_task(send_one(due))
            running.add(task)
            task.add_done_callback(running.discard)
        if running:
            await asyncio.gather(*running)

    try:
        await wait_for_tasks([asyncio.create_task(send_all())], measurement, stop, watch)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
