"""Results of many messages: each is told when it is there, however many others are not."""

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
    """A server's side: results that are done, those that are not, and errors; a wait passes at once on its clock."""

    def __init__(self, done: Iterable[str] = (), errors: dict[str, TenantqError] | None = None) -> None:
        self.clock = ManualClock()
        self.done = set(done)
        self.errors = errors or {}
        self.done_later: dict[str, int] = {}  # after so many looks
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
    """Return so many ids."""
    return [f"{n}" for n in range(start, end)]


@pytest.mark.parametrize("pending", [AT_ONCE, 500])
async def test_what_is_done_comes_however_many_before_it_are_not(pending: int) -> None:
    """More are pending than can be asked for at once; then the time is over for those, and for no other."""
    results = Results(done=names(pending, pending + 4))
    got, error = await results.watch(names(0, pending + 4), 4_000)
    assert sorted(got) == sorted(results.done)
    assert isinstance(error, TimedOut)
    assert f"{pending} of {pending + 4}" in str(error)
    assert (error.queue, error.id in names(0, pending)) == ("mail", True)
    assert results.most_open <= AT_ONCE


async def test_a_result_that_comes_later_is_told_then() -> None:
    """Also of one that is behind many in the line; each once, although it was asked for twice."""
    results = Results()
    results.done_later = {one: int(one) % 4 + 1 for one in names(0, 100)}
    got, error = await results.watch([*names(0, 100), *names(0, 100)], 600_000)
    assert sorted(got) == sorted(names(0, 100))
    assert error is None


async def test_few_are_waited_for_at_the_server() -> None:
    """In slices, until the time is over."""
    results = Results()
    results.done_later = {"a": 3}
    assert await results.watch(["a"]) == (["a"], None)
    assert results.asked == [("a", WAIT_SLICE_MS)] * 3


async def test_no_time_is_one_look_at_each() -> None:
    """What is done is told."""
    results = Results(done=["a", "17"])
    got, error = await results.watch(["a", *names(0, 20)], 0)
    assert sorted(got) == ["17", "a"]
    assert isinstance(error, TimedOut)
    assert len(results.asked) == 21


async def test_an_unknown_message_is_raised_when_all_others_have_come() -> None:
    """It keeps nobody else's result back."""
    results = Results(done=names(0, 40), errors={"x": NotFound("no such message"), "y": NotFound("nor this")})
    got, error = await results.watch(["x", *names(0, 20), "y", *names(20, 40)])
    assert sorted(got) == sorted(results.done)
    assert isinstance(error, NotFound)


async def test_what_concerns_all_is_raised_at_once_after_what_has_come() -> None:
    """And nothing is left running, or never looked at."""
    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    results = Results(done=["a", "b"], errors={"x": Forbidden("no"), "y": Forbidden("no")})
    got, error = await results.watch(["x", "a", "y", "b", "pending"])
    assert sorted(got) == ["a", "b"]
    assert isinstance(error, Forbidden)
    assert results.open == 0
    assert not unseen


async def test_whoever_leaves_early_leaves_nothing_running() -> None:
    """The requests that are out are dropped."""
    results = Results(done=["a"])
    watch = ResultWatch(results.ask, results.clock, "mail", ["a", *names(0, 5)], 60_000).results()
    async with contextlib.aclosing(watch) as left:
        async for result in left:
            assert result.id == "a"
            break
    assert results.open == 0
