"""Closed loops: so many callers at once, each of which calls again as soon as it was answered."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Final

from tenantq.errors import LeaseLost, Limited, TenantqError, Unavailable
from tenantq.load.stopwatch import Stopwatch, SystemStopwatch
from tenantq.load.tally import Span, Tally

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.load.latencies import Latencies

    Work = Callable[[int], Awaitable[int]]
    """One call, for the loop of that number; returns how many messages it did."""

PASSING: Final = (Limited, Unavailable, LeaseLost)
"""Errors that may be gone at the next call. Any other ends the measurement."""
GRACE_S: Final = 2.0
"""How long calls may still take once the measurement was interrupted."""
_PAUSE_S: Final = (0.01, 0.5)  # after a refusal, the least and the most


class PartlyDoneError(Exception):
    """A call did some of its messages, and others were refused or failed."""

    def __init__(self, messages: int, error: TenantqError) -> None:
        super().__init__()
        self.messages = messages
        self.error = error


async def drive_times(
    work: Work,
    *,
    loops: int,
    times: int,
    latencies: Latencies | None = None,
    stopwatch: Stopwatch | None = None,
) -> Tally:
    """Call ``times`` times in each of so many loops, and return when all are done. Raises what a call raises.

    ``latencies`` takes the times, if given; it gets them afterwards, so that little is done beside the calls.
    """
    watch = stopwatch or SystemStopwatch()
    now, took, tally = watch.now, list[float](), Tally(latencies)

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
    tally.messages = tally.messages_total = sum(await asyncio.gather(*(loop(number) for number in range(loops))))
    tally.span, tally.begun = Span(start, now()), loops * times
    for seconds in took:
        tally.latencies.record(seconds)
    return tally


async def drive_seconds(
    work: Work,
    tally: Tally,
    *,
    loops: int,
    warm_up_s: float,
    seconds: float,
    messages_max: float = math.inf,
    stop: asyncio.Event,
    stopwatch: Stopwatch | None = None,
) -> None:
    """Call in so many loops, and count what is done within ``seconds`` after ``warm_up_s``.

    It ends before that when ``messages_max`` were done, ``stop`` is set, or an error comes that will not pass.
    """
    watch = stopwatch or SystemStopwatch()
    start = watch.now() + warm_up_s
    tally.span = Span(start, start + seconds)
    loop_tasks = [asyncio.create_task(_loop(work, number, tally, watch, messages_max)) for number in range(loops)]
    await until_done(loop_tasks, tally, stop, watch)


async def until_done(tasks: list[asyncio.Task[None]], tally: Tally, stop: asyncio.Event, stopwatch: Stopwatch) -> None:
    """Wait for tasks; once ``stop`` is set, only a little longer, and then end them. No task is left when this returns."""
    everything: asyncio.Future[Any] = asyncio.gather(*tasks)
    patience: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([everything, patience], return_when=asyncio.FIRST_COMPLETED)
        if not everything.done():
            tally.stop("interrupted", stopwatch.now())
            patience = asyncio.ensure_future(stopwatch.sleep(GRACE_S))
            await asyncio.wait([everything, patience], return_when=asyncio.FIRST_COMPLETED)
        if everything.done():
            await everything  # raises what is not an error of tenantq's: a bug
    finally:
        patience.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _loop(
    work: Work,
    number: int,
    tally: Tally,
    stopwatch: Stopwatch,
    messages_max: float,
) -> None:
    """Call until the span is over. What is done for each call is little: it is part of what is measured."""
    now, span, record = stopwatch.now, tally.span, tally.latencies.record
    started = now()
    while started < span.end:
        tally.begun += 1
        try:
            messages = await work(number)
        except PartlyDoneError as partly:
            ended = now()
            tally.done(ended - started, partly.messages, counts=span.holds(ended))
            await _rest(partly.error, tally, stopwatch)
            started = now()
        except PASSING as error:
            await _rest(error, tally, stopwatch)
            started = now()
        except TenantqError as error:
            tally.stop("failed", now(), error)
            return
        else:
            ended = now()
            tally.messages_total += messages
            if span.start <= ended < span.end:
                tally.messages += messages
                record(ended - started)
            if tally.messages_total >= messages_max:
                tally.stop("bytes", ended)
            started = ended


async def _rest(error: TenantqError, tally: Tally, stopwatch: Stopwatch) -> None:
    """Note an error that may pass, and pause for as long as the server asks, within bounds."""
    tally.failed(error)
    asked_ms = error.retry_after_ms if isinstance(error, Limited | Unavailable) else 0
    least_s, most_s = _PAUSE_S
    await stopwatch.sleep(min(most_s, max(least_s, asked_ms / 1_000)))
