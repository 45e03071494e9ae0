"""Closed loops on a clock that the test holds."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.errors import Forbidden, QuotaExceeded, RateLimited, Unavailable
from tenantq.load.closed_loop import PartlyDoneError, drive_seconds, drive_times
from tenantq.load.measurement import Measurement
from tests.unit.load.manual_stopwatch import ManualStopwatch

if TYPE_CHECKING:
    from tenantq.load.closed_loop import LoadCall


@pytest.fixture
def watch() -> ManualStopwatch:
    """Time that passes when nothing else happens."""
    return ManualStopwatch()


async def _drive(
    watch: ManualStopwatch, work: LoadCall, *, stop: asyncio.Event | None = None, **options: Any
) -> Measurement:
    measurement = Measurement()
    given: dict[str, Any] = {"loops": 4, "warm_up_s": 0.5, "seconds": 1.0, **options}
    await watch.run(drive_seconds(work, measurement, stop=stop or asyncio.Event(), stopwatch=watch, **given))
    return measurement


async def test_only_what_ends_within_the_span_is_measured(watch: ManualStopwatch) -> None:
    """Calls of the warming up and those that end too late are sent, and are in no rate or time."""

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
    """So many calls are under way as there are loops, never more."""
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


async def test_refusals_and_failures_are_counted_apart_and_do_not_end_it(watch: ManualStopwatch) -> None:
    """By code, with the first text of each; a refused loop pauses as long as it is told, at most half a second."""
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


async def test_what_was_done_of_a_call_that_was_refused_in_part_counts(watch: ManualStopwatch) -> None:
    """Its messages as done, the call as refused too."""

    async def work(_: int) -> int:
        await watch.sleep(0.25)
        raise PartlyDoneError(7, QuotaExceeded("full", retry_after_ms=500))

    measurement = await _drive(watch, work, loops=1, warm_up_s=0.0, seconds=1.0)
    assert (measurement.messages, measurement.calls, dict(measurement.refusals)) == (7, 1, {"quota_exceeded": 2})
    assert measurement.messages_total == 14


async def test_an_error_that_will_not_pass_ends_it(watch: ManualStopwatch) -> None:
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


async def test_it_ends_when_enough_was_added(watch: ManualStopwatch) -> None:
    """The rate is that of the time until then."""

    async def work(_: int) -> int:
        await watch.sleep(0.125)
        return 10

    measurement = await _drive(watch, work, warm_up_s=0.0, seconds=100.0, messages_max=100)
    assert (measurement.ended, measurement.interval.seconds, measurement.messages_total) == ("bytes", 0.375, 130)


async def test_a_stop_ends_it_although_calls_hang(watch: ManualStopwatch) -> None:
    """What was measured until then stays; a call gets a little more time, and is then ended."""
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


async def test_so_many_times_each(watch: ManualStopwatch) -> None:
    """Without an interval every call counts, and the rate is that of the whole."""

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
