"""Calls that go out together: every caller gets exactly its own answer, whoever its neighbours are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from tenantq.client.batcher import BYTES_MAX, ITEMS_MAX, Batcher
from tenantq.errors import Closed, Forbidden, Invalid, NotFound, RateLimited, TenantqError, TooLarge
from tenantq.runtime.clock import ManualClock
from tests.unit.client.doubles import FlyingClock, make_session, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.client.session import ClientSession


class ConsoleState:
    """A server's side for a lane: takes batches, in so many turns of the loop as told, and keeps a record."""

    def __init__(self, turns: Sequence[int] = (0,)) -> None:
        self.turns = list(turns)
        self.batches: list[list[str]] = []
        self.done: list[str] = []
        self.open = self.most_open = 0

    async def send(self, items: list[str]) -> list[str | TenantqError]:
        """Do what each item is named after; as a whole refuse what holds poison."""
        self.batches.append(list(items))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        for _ in range(self.turns[len(self.batches) % len(self.turns)]):
            await asyncio.sleep(0)
        self.open -= 1
        if any(item.startswith("poison") for item in items):
            raise Invalid("poison" if len(items) > 1 else items[0])
        outcomes: list[str | TenantqError] = []
        for item in items:
            if item.startswith("wrong"):
                outcomes.append(NotFound(item))
            else:
                self.done.append(item)
                outcomes.append(f"did {item}")
        return outcomes


def lane_of(desk: ConsoleState, **changes: int) -> tuple[ClientSession, Batcher[str, str]]:
    """Return a lane that leads to a desk."""
    session, _ = make_session(Closed())
    return session, Batcher(session, desk.send, **changes)


async def turns(count: int) -> None:
    """Let the event loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_callers_of_one_turn_go_together_and_later_ones_with_the_next() -> None:
    """The first goes out at once; while it is out, newcomers gather."""
    desk = ConsoleState([20])
    _, lane = lane_of(desk, requests_max=1)
    first = [lane.put(f"a{n}", 1) for n in range(3)]
    await turns(2)
    assert desk.batches == [["a0", "a1", "a2"]]
    second = [lane.put(f"b{n}", 1) for n in range(5)]
    await turns(5)
    assert len(desk.batches) == 1
    assert await asyncio.gather(*first, *second) == [f"did a{n}" for n in range(3)] + [f"did b{n}" for n in range(5)]
    assert len(desk.batches) == 2


async def test_many_at_once_are_shared_out_among_the_requests_that_may_go() -> None:
    """So that the server has work while the client reads the other half's answers."""
    desk = ConsoleState([5])
    _, lane = lane_of(desk, requests_max=2)
    await asyncio.gather(*(lane.put(f"{n}", 1) for n in range(64)))
    assert [len(batch) for batch in desk.batches] == [32, 32]


async def test_a_request_is_bounded_in_items_and_bytes() -> None:
    """1,000 items, and 8 MiB unless one item alone is larger."""
    desk = ConsoleState()
    _, lane = lane_of(desk)
    await asyncio.gather(*(lane.put(f"{n}", 1) for n in range(2_500)))
    assert max(len(batch) for batch in desk.batches) == ITEMS_MAX
    desk.batches.clear()
    sizes = [BYTES_MAX // 2, BYTES_MAX // 2, 1, BYTES_MAX + 5, 7]
    await asyncio.gather(*(lane.put(f"{n}", size) for n, size in enumerate(sizes)))
    assert desk.batches == [["0", "1"], ["2"], ["3"], ["4"]]


@given(
    kinds=st.lists(st.sampled_from(["good", "good", "good", "wrong", "poison"]), min_size=1, max_size=40),
    starts=st.lists(st.integers(0, 12), min_size=40, max_size=40),
    cancels=st.lists(st.one_of(st.none(), st.none(), st.integers(0, 12)), min_size=40, max_size=40),
    desk_turns=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    requests_max=st.integers(1, 4),
)
@settings(max_examples=150, deadline=None)
def test_everyone_gets_exactly_its_own_answer(
    kinds: list[str], starts: list[int], cancels: list[int | None], desk_turns: list[int], requests_max: int
) -> None:
    """Whatever the interleaving: what is good is done once, what is bad harms nobody else, who leaves leaves nothing behind."""

    async def run() -> None:
        desk = ConsoleState(desk_turns)
        session, lane = lane_of(desk, requests_max=requests_max)

        async def caller(number: int, kind: str) -> str:
            await turns(starts[number])
            return await lane.put(f"{kind}{number}", 1)

        async def disturb(number: int, task: asyncio.Task[str]) -> None:
            turn = cancels[number]
            if turn is not None:
                await turns(starts[number] + turn)
                task.cancel()

        tasks = [asyncio.create_task(caller(number, kind)) for number, kind in enumerate(kinds)]
        await asyncio.gather(*(disturb(number, task) for number, task in enumerate(tasks)))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for number, (kind, outcome) in enumerate(zip(kinds, outcomes, strict=True)):
            name = f"{kind}{number}"
            if isinstance(outcome, asyncio.CancelledError):
                assert cancels[number] is not None
                assert desk.done.count(name) <= 1
            elif kind == "good":
                assert outcome == f"did {name}"
                assert desk.done.count(name) == 1
            else:
                assert isinstance(outcome, NotFound if kind == "wrong" else Invalid)
                assert str(outcome) == name
        await until(lambda: lane.idle)
        assert desk.most_open <= requests_max
        await session.close()

    asyncio.run(run())


async def test_one_rotten_item_costs_its_neighbours_nothing() -> None:
    """999 are done; the searching takes about two requests for each halving."""
    desk = ConsoleState()
    _, lane = lane_of(desk, requests_max=1)
    names = [f"good{n}" for n in range(999)]
    futures = [lane.put(name, 1) for name in [*names[:500], "poison", *names[500:]]]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert sorted(desk.done) == sorted(names)
    assert [type(one) for one in outcomes if not isinstance(one, str)] == [Invalid]
    assert len(desk.batches) <= 25


async def test_what_concerns_the_queue_concerns_everyone() -> None:
    """A refusal that no neighbour caused is not looked into; each gets an error object of its own."""
    calls = 0

    async def send(_: list[str]) -> list[str | TenantqError]:
        nonlocal calls
        calls += 1
        error = Forbidden("not yours", tenant="acme")
        error.add_note("request id: 1")
        raise error

    session, _ = make_session(Closed())
    lane: Batcher[str, str] = Batcher(session, send, requests_max=1)
    outcomes = await asyncio.gather(*(lane.put(f"{n}", 1) for n in range(10)), return_exceptions=True)
    assert calls == 1
    assert {type(one) for one in outcomes} == {Forbidden}
    assert len({id(one) for one in outcomes}) == 10
    assert {getattr(one, "tenant", None) for one in outcomes} == {"acme"}
    assert isinstance(outcomes[0], Forbidden)
    outcomes[0].add_note("of the first alone")
    assert [len(getattr(one, "__notes__", [])) for one in outcomes] == [2] + [1] * 9


class Bucket:
    """A desk behind a token bucket: so many at once, one more each 10 ms."""

    def __init__(self, clock: FlyingClock, burst: int) -> None:
        self.clock, self.burst = clock, burst
        self.tokens = float(burst)
        self.at_ms = clock.monotonic_ms()
        self.done: list[str] = []
        self.requests = 0

    async def send(self, items: list[str]) -> list[str | TenantqError]:
        """Take all or nothing, and say when all would be taken, as the server does."""
        self.requests += 1
        now = self.clock.monotonic_ms()
        self.tokens = min(self.burst, self.tokens + (now - self.at_ms) / 10)
        self.at_ms = now
        if len(items) > self.burst:
            raise TooLarge("can never pass")
        if len(items) > self.tokens:
            wait_ms = int((len(items) - self.tokens) * 10 + 1)
            raise RateLimited(limit=100, current=100, retry_after_ms=wait_ms)
        self.tokens -= len(items)
        self.done += items
        return list(items)


async def test_a_batch_over_the_limit_pauses_as_the_server_asks_and_goes_then() -> None:
    """Nothing of it is tried before. What is more than the limit ever takes at once goes in parts."""
    session, _ = make_session(Closed(), retries=50)
    assert isinstance(session.clock, FlyingClock)
    bucket = Bucket(session.clock, 5)
    lane: Batcher[str, str] = Batcher(session, bucket.send, requests_max=1)
    names = [f"{n}" for n in range(20)]
    assert await asyncio.gather(*(lane.put(name, 1) for name in names)) == names
    assert sorted(bucket.done) == sorted(names)
    assert bucket.requests < 30
    bucket.requests, bucket.tokens = 0, 0
    assert await asyncio.gather(*(lane.put(name, 1) for name in names[:5])) == names[:5]
    assert bucket.requests == 2


async def test_at_a_limit_everyone_is_tried_as_often_as_the_policy_says() -> None:
    """Then it gets the server's error, and nothing of it was done."""
    session, _ = make_session(Closed())
    calls: list[int] = []

    async def send(items: list[str]) -> list[str | TenantqError]:
        calls.append(len(items))
        raise RateLimited(limit=1, current=1, retry_after_ms=10)

    lane: Batcher[str, str] = Batcher(session, send, requests_max=1)
    outcomes = await asyncio.gather(*(lane.put(f"{n}", 1) for n in range(8)), return_exceptions=True)
    assert {type(one) for one in outcomes} == {RateLimited}
    assert calls == [8, 8, 8, 8, 1]
    assert isinstance(session.clock, FlyingClock)
    assert session.clock.pauses == [10 + 50, 10 + 100, 10 + 200]


async def test_the_smallest_item_tells_whether_a_limit_has_any_room() -> None:
    """A bytes-per-second limit may refuse a batch for its size and still have room for a small one."""
    session, _ = make_session(Closed(), retries=0)

    async def send(items: list[str]) -> list[str | TenantqError]:
        if "large" in items:
            raise RateLimited("too many bytes", retry_after_ms=10)
        return list(items)

    lane: Batcher[str, str] = Batcher(session, send, requests_max=1)
    small, large, other = lane.put("small", 10), lane.put("large", 1_000), lane.put("other", 20)
    outcomes = await asyncio.gather(small, large, other, return_exceptions=True)
    assert outcomes[0] == "small"
    assert isinstance(outcomes[1], RateLimited)
    assert outcomes[2] == "other"


async def test_who_takes_back_before_departure_sends_nothing() -> None:
    """A cancelled call that has not gone out never does."""
    desk = ConsoleState()
    _, lane = lane_of(desk)
    gone, kept = lane.put("gone", 1), lane.put("kept", 1)
    gone.cancel()
    assert await kept == "did kept"
    assert desk.batches == [["kept"]]


async def test_closing_answers_everyone() -> None:
    """Those under way, those who have gathered and those who pause learn that the client was closed, in whatever turn that is."""
    for turns_before in range(6):
        session, _ = make_session(Closed(), clock=ManualClock())
        desk = ConsoleState([1_000_000])
        lane: Batcher[str, str] = Batcher(session, desk.send, requests_max=1)
        limited: Batcher[str, str] = Batcher(session, refused)
        futures = [lane.put("under way", 1), limited.put("pauses", 1)]
        await turns(turns_before)
        futures.append(lane.put("gathered", 1))
        await session.close()
        outcomes = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 5)
        assert {type(one) for one in outcomes} == {Closed}
        doubts = [isinstance(one, Closed) and one.maybe_done for one in outcomes]
        assert doubts[1:] == [False, False] or not turns_before
        assert doubts[0] or turns_before < 2


async def refused(_: list[str]) -> list[str | TenantqError]:
    """Refuse a batch for a limit."""
    raise RateLimited(retry_after_ms=10)


async def test_a_mistake_of_our_own_reaches_the_caller_as_an_error() -> None:
    """A server that answers for another number of items must not leave anyone waiting."""
    session, _ = make_session(Closed())

    async def send(_: list[str]) -> list[str | TenantqError]:
        return ["one too few"]

    lane: Batcher[str, str] = Batcher(session, send)
    outcomes = await asyncio.gather(lane.put("a", 1), lane.put("b", 1), return_exceptions=True)
    assert isinstance(outcomes[1], TenantqError)
