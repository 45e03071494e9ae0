"""Polls that go out together: each caller's wait and share are its own, and no message is left with nobody."""

from __future__ import annotations

import asyncio
import builtins

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantq.client.poll_batcher import PollBatcher
from tenantq.client.session import ClientSession
from tenantq.domain import limits
from tenantq.errors import Closed, Unavailable
from tenantq.runtime.clock import ManualClock
from tests.unit.client.doubles import ScriptedTransport, make_settings, until


class Well:
    """A server's side for a poll lane: messages are numbers, handed out once, waited for on the clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.ready: list[int] = []
        self.leased: list[int] = []
        self.released: list[int] = []
        self.asked: list[tuple[int, int]] = []
        self.open = self.most_open = 0
        self._changed: list[asyncio.Future[None]] = []

    def fill(self, count: int) -> None:
        """Let messages arrive."""
        start = len(self.leased) + len(self.ready)
        self.ready += range(start, start + count)
        self._wake()

    def _wake(self) -> None:
        for future in self._changed:
            if not future.done():
                future.set_result(None)
        self._changed.clear()

    async def ask(self, max: int, wait_ms: int, stop: asyncio.Future[None]) -> list[int]:
        """Hand out up to ``max``; with none there wait for the first, or for the end of the wait."""
        self.asked.append((max, wait_ms))
        self.open += 1
        self.most_open = builtins.max(self.most_open, self.open)
        end = self.clock.monotonic_ms() + wait_ms
        stop.add_done_callback(lambda _: self._wake())
        while not self.ready and self.clock.monotonic_ms() < end and not stop.done():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._changed.append(future)
            timer = self.clock.call_later(end - self.clock.monotonic_ms(), self._wake)
            await future
            timer.cancel()
        got, self.ready = self.ready[:max], self.ready[max:]
        self.leased += got
        await asyncio.sleep(0)
        self.open -= 1
        return got

    async def release(self, messages: object) -> None:
        """Take messages back."""
        assert isinstance(messages, list)
        self.released += messages


def lane_on(clock: ManualClock, **changes: int) -> tuple[ClientSession, Well, PollBatcher[int]]:
    """Return a lane that leads to a well."""
    session = ClientSession(make_settings(clock=clock), ScriptedTransport(Closed()))
    well = Well(clock)
    return session, well, PollBatcher(session, well.ask, well.release, **changes)


async def turns(count: int = 6) -> None:
    """Let the event loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_polls_of_one_turn_are_one_request_dealt_in_turns(clock: ManualClock) -> None:
    """Demands of 5, 3 and 1 with 6 messages get 3, 2 and 1, in the order of the queue."""
    _, well, lane = lane_on(clock)
    well.fill(6)
    hands = await asyncio.gather(*(lane.poll(max, 0) for max in (5, 3, 1)))
    assert well.asked == [(9, 0)]
    assert hands == [[0, 3, 5], [1, 4], [2]]


async def test_who_gets_nothing_goes_on_waiting_for_the_rest_of_its_time(clock: ManualClock) -> None:
    """One message for three callers: two stay, and their next request waits for what is left."""
    _, well, lane = lane_on(clock)
    tasks = [asyncio.create_task(lane.poll(1, 1_000)) for _ in range(3)]
    await turns()
    clock.advance(400)
    well.fill(1)
    await turns()
    assert [task.done() for task in tasks] == [True, False, False]
    assert well.asked == [(3, 1_000), (2, 600)]
    clock.advance(600)
    await turns()
    assert [task.result() for task in tasks] == [[0], [], []]


async def test_nobody_waits_longer_than_it_said(clock: ManualClock) -> None:
    """Neither for a neighbour's longer wait, nor behind requests that are out."""
    _, _, lane = lane_on(clock, requests_max=1)
    long = asyncio.create_task(lane.poll(1, 10_000))
    await turns()
    short = asyncio.create_task(lane.poll(1, 100))
    await turns()
    clock.advance(100)
    await turns()
    assert short.result() == []
    assert not long.done()
    clock.advance(9_900)
    await turns()
    assert long.result() == []


async def test_a_shorter_wait_in_one_request_ends_only_its_own(clock: ManualClock) -> None:
    """The request is as long as the shortest; the others ask again."""
    _, well, lane = lane_on(clock)
    long, short = asyncio.create_task(lane.poll(1, 10_000)), asyncio.create_task(lane.poll(1, 100))
    await turns()
    clock.advance(100)
    await turns()
    assert short.result() == []
    assert well.asked == [(2, 100), (1, 9_900)]
    well.fill(1)
    await turns()
    assert long.result() == [0]


async def test_what_came_for_a_caller_that_left_goes_to_one_who_waits(clock: ManualClock) -> None:
    """And only where nobody waits is it released."""
    _, well, lane = lane_on(clock, requests_max=1)
    gone, stays = asyncio.create_task(lane.poll(3, 1_000)), asyncio.create_task(lane.poll(1, 1_000))
    await turns()
    gone.cancel()
    waiting = asyncio.create_task(lane.poll(1, 1_000))
    await turns()
    well.fill(4)
    await turns()
    assert gone.cancelled()
    assert (stays.result(), waiting.result()) == ([0], [1])
    assert well.released == [2, 3]


async def test_the_last_caller_that_leaves_ends_the_request(clock: ManualClock) -> None:
    """When its cancellation is through, nothing of it is left at the server to take others' messages."""
    _, well, lane = lane_on(clock)
    first, second = (asyncio.create_task(lane.poll(1, 60_000)) for _ in range(2))
    await turns()
    first.cancel()
    await turns()
    assert well.open == 1
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert well.open == 0
    assert lane.idle
    well.fill(1)
    assert await lane.poll(1, 0) == [0]


async def test_a_caller_cancelled_while_its_messages_are_dealt_releases_them(clock: ManualClock) -> None:
    """The answer is there, the caller is not: what it would have got goes back at once."""
    _, well, lane = lane_on(clock)
    well.fill(2)
    task = asyncio.create_task(lane.poll(2, 0))
    await until(lambda: well.leased)
    deal = lane._share_out

    def deal_and_cancel(*arguments: object) -> None:
        deal(*arguments)  # type: ignore[arg-type]  # handed on as it came
        task.cancel()

    lane._share_out = deal_and_cancel  # type: ignore[method-assign,assignment]  # the moment between the deal and the waking
    await turns()
    assert task.cancelled()
    assert well.released == [0, 1]


async def test_an_error_reaches_every_caller(clock: ManualClock) -> None:
    """Each gets its own."""
    session, _, _ = lane_on(clock)

    async def ask(_: int, __: int, ___: object) -> list[int]:
        raise Unavailable("try later")

    async def release(_: object) -> None:
        pytest.fail("there is nothing to release")

    lane: PollBatcher[int] = PollBatcher(session, ask, release)
    outcomes = await asyncio.gather(lane.poll(1, 0), lane.poll(1, 0), return_exceptions=True)
    assert [type(one) for one in outcomes] == [Unavailable, Unavailable]
    assert outcomes[0] is not outcomes[1]


async def test_a_request_asks_for_no_more_than_the_server_allows(clock: ManualClock) -> None:
    """The others go with the next."""
    _, well, lane = lane_on(clock)
    await asyncio.gather(*(lane.poll(400, 0) for _ in range(5)))
    assert [max for max, _ in well.asked] == [800, 800, 400]
    assert all(max <= limits.BATCH_MESSAGES_MAX for max, _ in well.asked)


async def test_closing_answers_those_who_wait(clock: ManualClock) -> None:
    """With Closed."""
    session, _, lane = lane_on(clock, requests_max=1)
    tasks = [asyncio.create_task(lane.poll(1, 1_000))]
    await turns()
    tasks.append(asyncio.create_task(lane.poll(1, 1_000)))
    await turns()
    await session.close()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in outcomes] == [Closed, Closed]


STEPS = st.one_of(
    st.tuples(st.just("poll"), st.integers(1, 4), st.sampled_from([5, 50, 500])),
    st.tuples(st.just("fill"), st.integers(1, 5), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("pass"), st.integers(1, 120), st.just(0)),
    st.tuples(st.just("turn"), st.integers(1, 4), st.just(0)),
)


@given(steps=st.lists(STEPS, max_size=40), requests_max=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_every_message_ends_with_one_caller_or_is_released(
    steps: list[tuple[str, int, int]], requests_max: int
) -> None:
    """Whatever the interleaving of polls, arrivals, cancellations and time."""

    async def run() -> None:
        clock = ManualClock()
        session, well, lane = lane_on(clock, requests_max=requests_max)
        polls: list[tuple[asyncio.Task[list[int]], int, int]] = []
        cancelled: set[int] = set()
        for what, amount, wait_ms in steps:
            if what == "poll":
                task = asyncio.create_task(lane.poll(amount, wait_ms))
                polls.append((task, amount, clock.monotonic_ms() + wait_ms))
            elif what == "fill":
                well.fill(amount)
            elif what == "cancel" and polls:
                polls[amount % len(polls)][0].cancel()
                cancelled.add(amount % len(polls))
            elif what == "pass":
                await turns(2)
                clock.advance(amount)
                await turns()
                late = [until for task, _, until in polls if not task.done() and until <= clock.monotonic_ms()]
                assert not late, "somebody waits longer than it said"
            else:
                await turns(amount)
        await turns()
        clock.advance(1_000)
        await turns(30)
        got: list[int] = []
        for number, (task, most, _) in enumerate(polls):
            assert task.done()
            if task.cancelled():
                assert number in cancelled
            else:
                assert len(task.result()) <= most
                got += task.result()
        assert len(got) == len(set(got)), "a message went to two callers"
        assert sorted(got + well.released) == sorted(well.leased), "a leased message is with nobody"
        assert well.most_open <= requests_max
        assert lane.idle
        await session.close()

    asyncio.run(run())
