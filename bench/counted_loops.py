"""Concurrent loops that each make a fixed number of calls, so that every run does the same work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tenantq.load.measurement import MeasuredInterval, Measurement
from tenantq.load.stopwatch import Stopwatch, SystemStopwatch

if TYPE_CHECKING:
    from tenantq.load.closed_loop import LoadCall
    from tenantq.load.latencies import Latencies


async def drive_times(
    work: LoadCall, *, loops: int, times: int, latencies: Latencies | None = None, stopwatch: Stopwatch | None = None
) -> Measurement:
    """Call ``times`` times in each loop, and return when all are done. Raises what a call raises.

    ``latencies`` gets the times at the end, because recording costs time as well.
    """
    watch = stopwatch or SystemStopwatch()
    now, took, measurement = watch.now, list[float](), Measurement()
    measurement.latencies = latencies or measurement.latencies

    async def loop(number: int) -> int:
        messages = 0
        started = now()
        for _ in range(times):
            messages += await work(number)
            ended = now()
            took.append(ended - started)
            started = ended
        return messages

    start = now()
    measurement.messages = measurement.messages_total = sum(
        await asyncio.gather(*(loop(number) for number in range(loops)))
    )
    measurement.interval, measurement.begun = MeasuredInterval(start, now()), loops * times
    for seconds in took:
        measurement.latencies.record(seconds)
    return measurement
