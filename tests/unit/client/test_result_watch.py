"""Waiting for the results of many messages: each is yielded when it is ready, regardless of the others."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from tenantq.client.result_watch import AT_ONCE, WAIT_SLICE_MS, ResultWatch
from tenantq.client.values import JobResult
from tenantq.errors import Forbidden, NotFound, TenantqError, TimedOut
from tenantq.runtime.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterable


class Results:
    """A server with ready results, pending ones and errors; a wait passes at once on its clock."""

    def __init__(self, done: Iterable[str] = (), errors: dict[str, TenantqError] | None = None) -> None:
        self.clock = ManualClock()
        self.done = set(done)
        self.errors = errors or {}
        self.done_later: dict[str, int] = {}  # ready after this many requests
        self.asked: list[tuple[str, int]] = []
        self.open = self.most_open = 0

    async def ask(self, id: str, wait_ms: int) -> JobResult:
        """Answer for one message."""
        self.asked.append((id, wait_ms))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(0)
            if id in self.errors:
                raise self.errors[id]
            looks = sum(one == id for one, _ in self.asked)
            if id in self.done or looks >= self.done_later.get(id, 1 << 60):
                return JobResult(id, "completed", b"")
            if wait_ms:
                self.clock.advance(wait_ms)
            return JobResult(id, "pending")
        finally:
            self.open -= 1

    async def watch(self, ids: Iterable[str], timeout_ms: int = 60_000) -> tuple[list[str], TenantqError | None]:
        """Return what a watch yields, and what it then raises."""
        got: list[str] = []
        try:
            async for result in ResultWatch(self.ask, self.clock, "mail", ids, timeout_ms).results():
                got.append(result.id)  # noqa: PERF401  # what came before the error counts
        except TenantqError as error:
            return got, error
        return got, None


def names(start: int, end: int) -> list[str]:
    """Return a number of IDs."""
    return [f"{n}" for n in range(start, end)]


@pytest.mark.parametrize("pending", [AT_ONCE, 500])
async def test_ready_results_are_yielded_before_pending_ones(pending: int) -> None:
    """More are pending than fit into one round of requests. Only those time out."""
    results = Results(done=names(pending, pending + 4))
    got, error = await results.watch(names(0, pending + 4), 4_000)
    assert sorted(got) == sorted(results.done)
    assert isinstance(error, TimedOut)
    assert f"{pending} of {pending + 4}" in str(error)
    assert (error.queue, error.id in names(0, pending)) == ("mail", True)
    assert results.most_open <= AT_ONCE


async def test_a_later_result_is_yielded_when_it_is_ready() -> None:
    """Also behind many others, and only once although it was requested twice."""
    results = Results()
    results.done_later = {one: int(one) % 4 + 1 for one in names(0, 100)}
    got, error = await results.watch([*names(0, 100), *names(0, 100)], 600_000)
    assert sorted(got) == sorted(names(0, 100))
    assert error is None


async def test_a_few_results_are_awaited_with_long_polls() -> None:
    """In slices, until the timeout."""
    results = Results()
    results.done_later = {"a": 3}
    assert await results.watch(["a"]) == (["a"], None)
    assert results.asked == [("a", WAIT_SLICE_MS)] * 3


async def test_without_a_timeout_each_result_is_checked_once() -> None:
    """The ready ones are yielded."""
    results = Results(done=["a", "17"])
    got, error = await results.watch(["a", *names(0, 20)], 0)
    assert sorted(got) == ["17", "a"]
    assert isinstance(error, TimedOut)
    assert len(results.asked) == 21


async def test_an_unknown_message_is_raised_after_all_other_results() -> None:
    """It delays no other result."""
    results = Results(done=names(0, 40), errors={"x": NotFound("no such message"), "y": NotFound("nor this")})
    got, error = await results.watch(["x", *names(0, 20), "y", *names(20, 40)])
    assert sorted(got) == sorted(results.done)
    assert isinstance(error, NotFound)


async def test_a_general_error_is_raised_after_the_ready_results() -> None:
    """No task is left running, and no exception is left unretrieved."""
    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    results = Results(done=["a", "b"], errors={"x": Forbidden("no"), "y": Forbidden("no")})
    got, error = await results.watch(["x", "a", "y", "b", "pending"])
    assert sorted(got) == ["a", "b"]
    assert isinstance(error, Forbidden)
    assert results.open == 0
    assert not unseen


async def test_leaving_the_iteration_early_cancels_open_requests() -> None:
    """No task is left running."""
    results = Results(done=["a"])
    watch = ResultWatch(results.ask, results.clock, "mail", ["a", *names(0, 5)], 60_000).results()
    async with contextlib.aclosing(watch) as left:
        async for result in left:
            assert result.id == "a"
            break
    assert results.open == 0
