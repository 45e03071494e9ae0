"""The constant rate of an open loop, on a manual clock."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.errors import Forbidden, RateLimited
from tenantq.load.measurement import Measurement
from tenantq.load.open_loop import send_steadily
from tests.unit.load.manual_stopwatch import TURN_S, ManualStopwatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@pytest.fixture
def watch() -> ManualStopwatch:
    """Return a stopwatch that advances when nothing else happens."""
    return ManualStopwatch()


async def _send(
    watch: ManualStopwatch, send: Callable[[], Awaitable[None]], *, stop: asyncio.Event | None = None, **options: Any
) -> Measurement:
    measurement = Measurement()
    given: dict[str, Any] = {"per_second": 50, "warm_up_s": 1.0, "seconds": 2.0, **options}
    await watch.run(send_steadily(send, measurement, stop=stop or asyncio.Event(), stopwatch=watch, **given))
    return measurement


async def test_calls_are_sent_when_due_regardless_of_open_calls(watch: ManualStopwatch) -> None:
    """Every call takes a second, and each is sent within a turn of its due time. Warm-up calls are not measured."""
    sent: list[float] = []

    async def send() -> None:
        sent.append(watch.now() - 128)
        await watch.sleep(1.0)

    measurement = await _send(watch, send)
    assert len(sent) == 150
    for number, moment in enumerate(sent):
        assert 0 <= moment - number / 50 <= 2 * TURN_S
    assert (measurement.calls, measurement.messages_total) == (100, 150)
    assert measurement.per_second == 50


async def test_latency_counts_from_the_due_time(watch: ManualStopwatch) -> None:
    """If the server stalls for a second, every call due meanwhile includes the rest of that second."""
    begun: list[float] = []

    async def send() -> None:
        begun.append(watch.now())
        if len(begun) == 1:
            await watch.sleep(1.0)

    measurement = await _send(watch, send, warm_up_s=0.0, seconds=2.0, concurrent_max=1)
    assert measurement.calls == 100
    p50, p75, longest = measurement.latencies.percentiles(50, 75, 100)
    assert p50 is not None
    assert p75 is not None
    assert longest is not None
    assert p50 < 2 * TURN_S  # the other second was normal
    assert 0.48 < p75 < 0.54
    assert 1.0 <= longest < 1.01


async def test_refused_calls_are_counted_and_not_timed(watch: ManualStopwatch) -> None:
    """Quick refusals would improve the latencies."""
    count = 0

    async def send() -> None:
        nonlocal count
        count += 1
        if count % 2:
            raise RateLimited
        await watch.sleep(0.5)

    measurement = await _send(watch, send, warm_up_s=0.0)
    assert (measurement.calls, dict(measurement.refusals)) == (50, {"rate_limited": 50})
    (shortest,) = measurement.latencies.percentiles(1)
    assert shortest is not None
    assert shortest >= 0.5


async def test_a_stop_ends_calls_that_hang(watch: ManualStopwatch) -> None:
    """No task is left behind."""
    stop, ended = asyncio.Event(), 0

    async def send() -> None:
        nonlocal ended
        try:
            await watch.sleep(math.inf)
        finally:
            ended += 1
            stop.set()

    async def stop_later() -> None:
        await watch.sleep(1.5)
        stop.set()

    stopping = asyncio.create_task(stop_later())
    measurement = await _send(watch, send, stop=stop)
    await stopping
    assert measurement.ended == "interrupted"
    assert measurement.calls == 0
    assert ended > 50
    assert len(asyncio.all_tasks()) == 1


async def test_a_permanent_error_ends_the_run(watch: ManualStopwatch) -> None:
    """Nothing more is sent."""
    count = 0

    async def send() -> None:
        nonlocal count
        count += 1
        raise Forbidden("not here")

    measurement = await _send(watch, send)
    assert (measurement.ended, count) == ("failed", 1)
