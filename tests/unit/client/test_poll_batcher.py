"""Polls are batched into requests: each caller keeps its own wait and limit, and no leased message is lost."""

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


class MessageSource:
    """A server for a poll batcher: messages are numbers, delivered once, and polls wait on the clock."""

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
        """Deliver up to ``max``; if there are none, wait for the first or for the end of the wait."""
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


def batcher_on(clock: ManualClock, **changes: int) -> tuple[ClientSession, MessageSource, PollBatcher[int]]:
    """Return a batcher that polls a source."""
    session = ClientSession(make_settings(clock=clock), ScriptedTransport(Closed()))
    source = MessageSource(clock)
    return session, source, PollBatcher(session, source.ask, source.release, **changes)


async def turns(count: int = 6) -> None:
    """Let the event loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_polls_of_one_turn_share_a_request_and_its_messages(clock: ManualClock) -> None:
    """Polls for 5, 3 and 1 get 3, 2 and 1 of 6 messages, in the order of the queue."""
    _, source, batcher = batcher_on(clock)
    source.fill(6)
    hands = await asyncio.gather(*(batcher.poll(max, 0) for max in (5, 3, 1)))
    assert source.asked == [(9, 0)]
    assert hands == [[0, 3, 5], [1, 4], [2]]


async def test_a_caller_without_a_message_waits_for_its_remaining_time(clock: ManualClock) -> None:
    """With one message for three callers, two stay, and their next request waits for the remaining time."""
    _, source, batcher = batcher_on(clock)
    tasks = [asyncio.create_task(batcher.poll(1, 1_000)) for _ in range(3)]
    await turns()
    clock.advance(400)
    source.fill(1)
    await turns()
    assert [task.done() for task in tasks] == [True, False, False]
    assert source.asked == [(3, 1_000), (2, 600)]
    clock.advance(600)
    await turns()
    assert [task.result() for task in tasks] == [[0], [], []]


async def test_no_caller_waits_longer_than_its_own_wait(clock: ManualClock) -> None:
    """Neither for another caller's longer wait nor behind open requests."""
    _, _, batcher = batcher_on(clock, requests_max=1)
    long = asyncio.create_task(batcher.poll(1, 10_000))
    await turns()
    short = asyncio.create_task(batcher.poll(1, 100))
    await turns()
    clock.advance(100)
    await turns()
    assert short.result() == []
    assert not long.done()
    clock.advance(9_900)
    await turns()
    assert long.result() == []


async def test_a_shorter_wait_ends_only_its_own_poll(clock: ManualClock) -> None:
    """The request lasts as long as the shortest wait; the other callers poll again."""
    _, source, batcher = batcher_on(clock)
    long, short = asyncio.create_task(batcher.poll(1, 10_000)), asyncio.create_task(batcher.poll(1, 100))
    await turns()
    clock.advance(100)
    await turns()
    assert short.result() == []
    assert source.asked == [(2, 100), (1, 9_900)]
    source.fill(1)
    await turns()
    assert long.result() == [0]


async def test_messages_for_a_cancelled_caller_go_to_a_waiting_one(clock: ManualClock) -> None:
    """They are released only if no caller waits."""
    _, source, batcher = batcher_on(clock, requests_max=1)
    gone, stays = asyncio.create_task(batcher.poll(3, 1_000)), asyncio.create_task(batcher.poll(1, 1_000))
    await turns()
    gone.cancel()
    waiting = asyncio.create_task(batcher.poll(1, 1_000))
    await turns()
    source.fill(4)
    await turns()
    assert gone.cancelled()
    assert (stays.result(), waiting.result()) == ([0], [1])
    assert source.released == [2, 3]


async def test_cancelling_the_last_caller_ends_the_request(clock: ManualClock) -> None:
    """After that the server holds no poll that could take messages of others."""
    _, source, batcher = batcher_on(clock)
    first, second = (asyncio.create_task(batcher.poll(1, 60_000)) for _ in range(2))
    await turns()
    first.cancel()
    await turns()
    assert source.open == 1
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert source.open == 0
    assert batcher.idle
    source.fill(1)
    assert await batcher.poll(1, 0) == [0]


async def test_messages_shared_out_to_a_caller_cancelled_meanwhile_are_released(clock: ManualClock) -> None:
    """At once, because the answer has already arrived."""
    _, source, batcher = batcher_on(clock)
    source.fill(2)
    task = asyncio.create_task(batcher.poll(2, 0))
    await until(lambda: source.leased)
    share_out = batcher._share_out

    def share_out_and_cancel(*arguments: object) -> None:
        share_out(*arguments)  # type: ignore[arg-type]  # handed on as it came
        task.cancel()

    batcher._share_out = share_out_and_cancel  # type: ignore[method-assign,assignment]  # the moment between sharing out and the waking
    await turns()
    assert task.cancelled()
    assert source.released == [0, 1]


async def test_an_error_reaches_every_caller(clock: ManualClock) -> None:
    """Each gets its own error object."""
    session, _, _ = batcher_on(clock)

    async def ask(_: int, __: int, ___: object) -> list[int]:
        raise Unavailable("try later")

    async def release(_: object) -> None:
        pytest.fail("there is nothing to release")

    batcher: PollBatcher[int] = PollBatcher(session, ask, release)
    outcomes = await asyncio.gather(batcher.poll(1, 0), batcher.poll(1, 0), return_exceptions=True)
    assert [type(one) for one in outcomes] == [Unavailable, Unavailable]
    assert outcomes[0] is not outcomes[1]


async def test_a_request_asks_for_no_more_than_the_server_allows(clock: ManualClock) -> None:
    """Further polls are sent with the next request."""
    _, source, batcher = batcher_on(clock)
    await asyncio.gather(*(batcher.poll(400, 0) for _ in range(5)))
    assert [max for max, _ in source.asked] == [800, 800, 400]
    assert all(max <= limits.BATCH_MESSAGES_MAX for max, _ in source.asked)


async def test_closing_ends_waiting_polls(clock: ManualClock) -> None:
    """With Closed."""
    session, _, batcher = batcher_on(clock, requests_max=1)
    tasks = [asyncio.create_task(batcher.poll(1, 1_000))]
    await turns()
    tasks.append(asyncio.create_task(batcher.poll(1, 1_000)))
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
    """In any interleaving of polls, arrivals, cancellations and time."""

    async def run() -> None:
        clock = ManualClock()
        session, source, batcher = batcher_on(clock, requests_max=requests_max)
        polls: list[tuple[asyncio.Task[list[int]], int, int]] = []
        cancelled: set[int] = set()
        for what, amount, wait_ms in steps:
            if what == "poll":
                task = asyncio.create_task(batcher.poll(amount, wait_ms))
                polls.append((task, amount, clock.monotonic_ms() + wait_ms))
            elif what == "fill":
                source.fill(amount)
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
        assert sorted(got + source.released) == sorted(source.leased), "a leased message is with nobody"
        assert source.most_open <= requests_max
        assert batcher.idle
        await session.close()

    asyncio.run(run())
