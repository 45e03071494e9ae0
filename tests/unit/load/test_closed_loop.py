"""Closed loops on a manual clock."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest

from bench.counted_loops import drive_times
from tenantq.errors import Forbidden, QuotaExceeded, RateLimited, Unavailable
from tenantq.load.closed_loop import PartlyDoneError, drive_seconds
from tenantq.load.measurement import Measurement
from tests.unit.load.manual_stopwatch import ManualStopwatch

if TYPE_CHECKING:
    from tenantq.load.closed_loop import LoadCall


@pytest.fixture
def watch() -> ManualStopwatch:
    """Return a stopwatch that advances when nothing else happens."""
    return ManualStopwatch()


async def _drive(
    watch: ManualStopwatch, work: LoadCall, *, stop: asyncio.Event | None = None, **options: Any
) -> Measurement:
    measurement = Measurement()
    given: dict[str, Any] = {"loops": 4, "warm_up_s": 0.5, "seconds": 1.0, **options}
    await watch.run(drive_seconds(work, measurement, stop=stop or asyncio.Event(), stopwatch=watch, **given))
    return measurement


async def test_only_calls_that_end_within_the_interval_are_measured(watch: ManualStopwatch) -> None:
    """Calls during warm-up and calls that end too late are sent, but count in no rate or latency."""

    async def work(_: int) -> int:
        await watch.sleep(0.25)
        return 10

    measurement = await _drive(watch, work)
    assert (measurement.calls, measurement.messages, measurement.messages_total, measurement.begun) == (
        16,
        160,
        240,
        24,
    )
    assert measurement.per_second == 160
    assert measurement.latencies.percentiles(50, 100) == [0.25, 0.25]
    assert measurement.ended == "time"


async def test_each_loop_has_its_number_and_one_call_at_a_time(watch: ManualStopwatch) -> None:
    """As many calls are open as there are loops."""
    under_way: list[int] = []
    most = 0

    async def work(number: int) -> int:
        nonlocal most
        assert number not in under_way
        under_way.append(number)
        most = max(most, len(under_way))
        await watch.sleep(0.1)
        under_way.remove(number)
        return 1

    await _drive(watch, work)
    assert most == 4


async def test_refusals_and_failures_are_counted_and_do_not_end_the_run(watch: ManualStopwatch) -> None:
    """By code, with the first text of each. A refused loop waits as long as the server asks, at most half a second."""
    begun: list[float] = []
    errors = [
        RateLimited("slow down", retry_after_ms=250),
        QuotaExceeded("full", retry_after_ms=3_600_000),
        Unavailable("away"),
    ]

    async def work(_: int) -> int:
        begun.append(watch.now() - 128)
        if len(begun) <= len(errors):
            raise errors[len(begun) - 1]
        await watch.sleep(0.5)
        return 1

    measurement = await _drive(watch, work, loops=1, warm_up_s=0.0, seconds=2.0)
    assert begun == pytest.approx([0.0, 0.25, 0.75, 0.76, 1.26, 1.76])
    assert (dict(measurement.refusals), dict(measurement.errors)) == (
        {"rate_limited": 1, "quota_exceeded": 1},
        {"unavailable": 1},
    )
    assert measurement.texts == {"rate_limited": "slow down", "quota_exceeded": "full", "unavailable": "away"}
    assert measurement.calls == 2


async def test_the_accepted_part_of_a_partly_refused_call_counts(watch: ManualStopwatch) -> None:
    """Its messages count as done, and the call as refused."""

    async def work(_: int) -> int:
        await watch.sleep(0.25)
        raise PartlyDoneError(7, QuotaExceeded("full", retry_after_ms=500))

    measurement = await _drive(watch, work, loops=1, warm_up_s=0.0, seconds=1.0)
    assert (measurement.messages, measurement.calls, dict(measurement.refusals)) == (7, 1, {"quota_exceeded": 2})
    assert measurement.messages_total == 14


async def test_a_permanent_error_ends_the_run(watch: ManualStopwatch) -> None:
    """At once and for all loops; the error is kept."""

    async def work(number: int) -> int:
        await watch.sleep(0.75)
        if number == 2:
            raise Forbidden("not here")
        return 1

    measurement = await _drive(watch, work)
    assert measurement.ended == "failed"
    assert measurement.failure is not None
    assert measurement.failure.message == "not here"
    assert measurement.begun == 6
    assert measurement.interval.seconds == 0.25


async def test_the_run_ends_when_enough_was_added(watch: ManualStopwatch) -> None:
    """The rate is that of the time until then."""

    async def work(_: int) -> int:
        await watch.sleep(0.125)
        return 10

    measurement = await _drive(watch, work, warm_up_s=0.0, seconds=100.0, messages_max=100)
    assert (measurement.ended, measurement.interval.seconds, measurement.messages_total) == ("bytes", 0.375, 130)


async def test_a_stop_ends_the_run_although_calls_hang(watch: ManualStopwatch) -> None:
    """Results so far are kept. Open calls get a little more time and are then cancelled."""
    stop, ended = asyncio.Event(), list[int]()

    async def work(number: int) -> int:
        await watch.sleep(0.25)
        if watch.now() > 129:
            stop.set()
            try:
                await watch.sleep(math.inf)
            finally:
                ended.append(number)
        return 1

    measurement = await _drive(watch, work, stop=stop, seconds=100.0)
    assert (measurement.ended, measurement.calls, sorted(ended)) == ("interrupted", 12, [0, 1, 2, 3])
    assert measurement.per_second == 12 / 0.75


async def test_a_fixed_number_of_calls_per_loop(watch: ManualStopwatch) -> None:
    """Without an interval every call counts, and the rate covers the whole run."""

    async def work(number: int) -> int:
        await watch.sleep(0.25 * (1 + number))
        return 3

    done: list[Measurement] = []

    async def drive() -> None:
        done.append(await drive_times(work, loops=2, times=4, stopwatch=watch))

    await watch.run(drive())
    (measurement,) = done
    assert (measurement.calls, measurement.messages, measurement.interval.seconds, measurement.per_second) == (
        8,
        24,
        2.0,
        12.0,
    )
