"""Requests that arrive together are started in turns of their callers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tenantq.gates.turns import EACH_CALLER, EACH_TURN, SHARED_LATELY_S, Turns

if TYPE_CHECKING:
    import pytest


async def test_callers_take_turns() -> None:
    """A caller with many requests does not start all of them before the others; each caller's own stay in order."""
    loop = asyncio.get_running_loop()
    turns, begun = Turns(loop), list[str]()

    async def serve(name: str, wake: asyncio.Future[None]) -> None:
        await wake
        begun.append(name)

    names = ("flood 0", "flood 1", "flood 2", "quiet 0", "none 0", "quiet 1")
    wakes: dict[str, asyncio.Future[None]] = {name: loop.create_future() for name in names}
    tasks = [asyncio.create_task(serve(name, wake)) for name, wake in wakes.items()]
    await asyncio.sleep(0)
    for name, wake in wakes.items():
        caller = name.partition(" ")[0]
        turns.enter(None if caller == "none" else caller, wake)
    assert begun == []
    await asyncio.gather(*tasks)
    assert begun == ["flood 0", "quiet 0", "none 0", "flood 1", "quiet 1", "flood 2"]


async def test_while_several_callers_wait_only_some_requests_start_per_loop_turn() -> None:
    """Started requests get to run before the rest."""
    loop = asyncio.get_running_loop()
    turns = Turns(loop)
    flood = [loop.create_future() for _ in range(3 * EACH_TURN)]
    quiet: asyncio.Future[None] = loop.create_future()
    for wake in flood:
        turns.enter("flood", wake)
    turns.enter("quiet", quiet)
    await asyncio.sleep(0)
    assert quiet.done()
    assert sum(wake.done() for wake in flood) == EACH_CALLER
    await asyncio.sleep(0)
    assert sum(wake.done() for wake in flood) == 2 * EACH_CALLER


async def test_many_callers_together_fill_a_turn() -> None:
    """Each gets its share."""
    loop = asyncio.get_running_loop()
    turns = Turns(loop)
    of_callers = [[loop.create_future() for _ in range(EACH_CALLER)] for _ in range(EACH_TURN // 2)]
    for caller, wakes in enumerate(of_callers):
        for wake in wakes:
            turns.enter(f"{caller}", wake)
    await asyncio.sleep(0)
    assert [sum(wake.done() for wake in wakes) for wakes in of_callers] == [2] * (EACH_TURN // 2)


async def test_a_caller_that_has_been_alone_for_a_while_is_not_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns stay short for a while after another caller's request, and then become as long as needed."""
    loop = asyncio.get_running_loop()
    turns, now = Turns(loop), [100.0]
    monkeypatch.setattr(loop, "time", lambda: now[0])

    async def begun_at_once() -> int:
        flood = [loop.create_future() for _ in range(3 * EACH_TURN)]
        for wake in flood:
            turns.enter("flood", wake)
        await asyncio.sleep(0)
        count = sum(wake.done() for wake in flood)
        await asyncio.gather(*flood)
        return count

    turns.enter("quiet", loop.create_future())
    assert await begun_at_once() == EACH_CALLER
    assert await begun_at_once() == EACH_CALLER
    now[0] += SHARED_LATELY_S
    assert await begun_at_once() == 3 * EACH_TURN


async def test_closed_connections_take_no_turn() -> None:
    """A wake-up that was resolved or cancelled meanwhile is skipped."""
    loop = asyncio.get_running_loop()
    turns = Turns(loop)
    gone = [loop.create_future() for _ in range(2 * EACH_TURN)]
    last: asyncio.Future[None] = loop.create_future()
    for wake in gone:
        turns.enter("flood", wake)
        wake.cancel()
    turns.enter("flood", last)
    turns.enter("quiet", loop.create_future())
    await asyncio.sleep(0)
    assert last.done()
