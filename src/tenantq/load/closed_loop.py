"""Closed loops: concurrent callers, each of which calls again after its answer."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tenantq.errors import LeaseLost, Limited, TenantqError, Unavailable
from tenantq.load.measurement import MeasuredInterval, Measurement
from tenantq.load.stopwatch import Stopwatch, SystemStopwatch

LoadCall = Callable[[int], Awaitable[int]]
"""One call by the loop with this number. Returns the number of messages."""

TEMPORARY: Final = (Limited, Unavailable, LeaseLost)
"""Errors that the next call may not get. Other errors end the measurement."""
GRACE_S: Final = 2.0
"""Time for running calls to finish after an interrupt."""
_PAUSE_S: Final = (0.01, 0.5)  # after a refusal: minimum and maximum


class PartlyDoneError(Exception):
    """A call succeeded for some messages, and failed for others."""

    def __init__(self, messages: int, error: TenantqError) -> None:
        super().__init__()
        self.messages = messages
        self.error = error


async def drive_seconds(
    work: LoadCall,
    measurement: Measurement,
    *,
    loops: int,
    warm_up_s: float,
    seconds: float,
    messages_max: float = math.inf,
    stop: asyncio.Event,
    stopwatch: Stopwatch | None = None,
) -> None:
    """Call in all loops, and count the calls within ``seconds`` after ``warm_up_s``.

    Ends early after ``messages_max`` messages, when ``stop`` is set, or after an error that is not temporary.
    """
    watch = stopwatch or SystemStopwatch()
    start = watch.now() + warm_up_s
    measurement.interval = MeasuredInterval(start, start + seconds)
    loop_tasks = [asyncio.create_task(_loop(work, number, measurement, watch, messages_max)) for number in range(loops)]
    await wait_for_tasks(loop_tasks, measurement, stop, watch)


async def wait_for_tasks(
    tasks: list[asyncio.Task[None]], measurement: Measurement, stop: asyncio.Event, stopwatch: Stopwatch
) -> None:
    """Wait for tasks. After ``stop`` is set, cancel them when the grace period ends. No task is left when this returns."""
    everything: asyncio.Future[Any] = asyncio.gather(*tasks)
    patience: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([everything, patience], return_when=asyncio.FIRST_COMPLETED)
        if not everything.done():
            measurement.stop("interrupted", stopwatch.now())
            patience = asyncio.ensure_future(stopwatch.sleep(GRACE_S))
            await asyncio.wait([everything, patience], return_when=asyncio.FIRST_COMPLETED)
        if everything.done():
            await everything  # raises bugs
    finally:
        patience.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _loop(
    work: LoadCall, number: int, measurement: Measurement, stopwatch: Stopwatch, messages_max: float
) -> None:
    """Call until the interval ends. Work per call is kept small, because it is measured as well."""
    now, interval, record = stopwatch.now, measurement.interval, measurement.latencies.record
    started = now()
    while started < interval.end:
        measurement.begun += 1
        try:
            messages = await work(number)
        except PartlyDoneError as partly:
            ended = now()
            measurement.done(ended - started, partly.messages, counts=interval.holds(ended))
            await _rest(partly.error, measurement, stopwatch)
            started = now()
        except TEMPORARY as error:
            await _rest(error, measurement, stopwatch)
            started = now()
        except TenantqError as error:
            measurement.stop("failed", now(), error)
            return
        else:
            ended = now()
            measurement.messages_total += messages
            if interval.start <= ended < interval.end:
                measurement.messages += messages
                record(ended - started)
            if measurement.messages_total >= messages_max:
                measurement.stop("bytes", ended)
            started = ended


async def _rest(error: TenantqError, measurement: Measurement, stopwatch: Stopwatch) -> None:
    """Count a temporary error, and pause as long as the server asks, within limits."""
    measurement.failed(error)
    asked_ms = error.retry_after_ms if isinstance(error, Limited | Unavailable) else 0
    least_s, most_s = _PAUSE_S
    await stopwatch.sleep(min(most_s, max(least_s, asked_ms / 1_000)))
