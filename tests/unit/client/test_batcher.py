"""Calls are batched into requests, and every caller gets exactly its own answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from tenantq.client.batcher import BYTES_MAX, ITEMS_MAX, Batcher
from tenantq.errors import Closed, Forbidden, Invalid, NotFound, RateLimited, TenantqError, TooLarge
from tenantq.runtime.clock import ManualClock
from tests.unit.client.doubles import InstantClock, make_session, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.client.session import ClientSession


class RecordingServer:
    """A server for a batcher: accepts batches, takes the given number of loop turns, and records them."""

    def __init__(self, turns: Sequence[int] = (0,)) -> None:
        self.turns = list(turns)
        self.batches: list[list[str]] = []
        self.done: list[str] = []
        self.open = self.most_open = 0

    async def send(self, items: list[str]) -> list[str | TenantqError]:
        """Do what each item's name says; refuse a whole batch that contains poison."""
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


def batcher_to(server: RecordingServer, **changes: int) -> tuple[ClientSession, Batcher[str, str]]:
    """Return a batcher that sends to a server."""
    session, _ = make_session(Closed())
    return session, Batcher(session, server.send, **changes)


async def turns(count: int) -> None:
    """Let the event loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_calls_of_one_turn_share_a_request_and_later_ones_the_next() -> None:
    """The first request is sent at once; calls made meanwhile are collected."""
    server = RecordingServer([20])
    _, batcher = batcher_to(server, requests_max=1)
    first = [batcher.put(f"a{n}", 1) for n in range(3)]
    await turns(2)
    assert server.batches == [["a0", "a1", "a2"]]
    second = [batcher.put(f"b{n}", 1) for n in range(5)]
    await turns(5)
    assert len(server.batches) == 1
    assert await asyncio.gather(*first, *second) == [f"did a{n}" for n in range(3)] + [f"did b{n}" for n in range(5)]
    assert len(server.batches) == 2


async def test_many_calls_are_split_evenly_among_the_allowed_requests() -> None:
    """The server has work while the client reads the other answer."""
    server = RecordingServer([5])
    _, batcher = batcher_to(server, requests_max=2)
    await asyncio.gather(*(batcher.put(f"{n}", 1) for n in range(64)))
    assert [len(batch) for batch in server.batches] == [32, 32]


async def test_a_request_is_bounded_in_items_and_bytes() -> None:
    """1,000 items, and 8 MiB unless one item alone is larger."""
    server = RecordingServer()
    _, batcher = batcher_to(server)
    await asyncio.gather(*(batcher.put(f"{n}", 1) for n in range(2_500)))
    assert max(len(batch) for batch in server.batches) == ITEMS_MAX
    server.batches.clear()
    sizes = [BYTES_MAX // 2, BYTES_MAX // 2, 1, BYTES_MAX + 5, 7]
    await asyncio.gather(*(batcher.put(f"{n}", size) for n, size in enumerate(sizes)))
    assert server.batches == [["0", "1"], ["2"], ["3"], ["4"]]


@given(
    kinds=st.lists(st.sampled_from(["good", "good", "good", "wrong", "poison"]), min_size=1, max_size=40),
    starts=st.lists(st.integers(0, 12), min_size=40, max_size=40),
    cancels=st.lists(st.one_of(st.none(), st.none(), st.integers(0, 12)), min_size=40, max_size=40),
    server_turns=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    requests_max=st.integers(1, 4),
)
@settings(max_examples=150, deadline=None)
def test_every_caller_gets_exactly_its_own_answer(
    kinds: list[str], starts: list[int], cancels: list[int | None], server_turns: list[int], requests_max: int
) -> None:
    """In any interleaving, good items are done once, bad ones affect no other, and cancelled ones leave nothing behind."""

    async def run() -> None:
        server = RecordingServer(server_turns)
        session, batcher = batcher_to(server, requests_max=requests_max)

        async def caller(number: int, kind: str) -> str:
            await turns(starts[number])
            return await batcher.put(f"{kind}{number}", 1)

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
                assert server.done.count(name) <= 1
            elif kind == "good":
                assert outcome == f"did {name}"
                assert server.done.count(name) == 1
            else:
                assert isinstance(outcome, NotFound if kind == "wrong" else Invalid)
                assert str(outcome) == name
        await until(lambda: batcher.idle)
        assert server.most_open <= requests_max
        await session.close()

    asyncio.run(run())


async def test_one_invalid_item_does_not_fail_the_rest_of_its_batch() -> None:
    """999 are done. Finding the invalid one takes about two requests for each halving."""
    server = RecordingServer()
    _, batcher = batcher_to(server, requests_max=1)
    names = [f"good{n}" for n in range(999)]
    futures = [batcher.put(name, 1) for name in [*names[:500], "poison", *names[500:]]]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert sorted(server.done) == sorted(names)
    assert [type(one) for one in outcomes if not isinstance(one, str)] == [Invalid]
    assert len(server.batches) <= 25


async def test_an_error_about_the_queue_reaches_every_caller() -> None:
    """The batch is not split, and each caller gets its own error object."""
    calls = 0

    async def send(_: list[str]) -> list[str | TenantqError]:
        nonlocal calls
        calls += 1
        error = Forbidden("not yours", tenant="acme")
        error.add_note("request id: 1")
        raise error

    session, _ = make_session(Closed())
    batcher: Batcher[str, str] = Batcher(session, send, requests_max=1)
    outcomes = await asyncio.gather(*(batcher.put(f"{n}", 1) for n in range(10)), return_exceptions=True)
    assert calls == 1
    assert {type(one) for one in outcomes} == {Forbidden}
    assert len({id(one) for one in outcomes}) == 10
    assert {getattr(one, "tenant", None) for one in outcomes} == {"acme"}
    assert isinstance(outcomes[0], Forbidden)
    outcomes[0].add_note("of the first alone")
    assert [len(getattr(one, "__notes__", [])) for one in outcomes] == [2] + [1] * 9


class Bucket:
    """A server behind a token bucket: a burst, then one more each 10 ms."""

    def __init__(self, clock: InstantClock, burst: int) -> None:
        self.clock, self.burst = clock, burst
        self.tokens = float(burst)
        self.at_ms = clock.monotonic_ms()
        self.done: list[str] = []
        self.requests = 0

    async def send(self, items: list[str]) -> list[str | TenantqError]:
        """Accept all or nothing, and say when all would be accepted, like the server."""
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


async def test_a_rate_limited_batch_waits_as_long_as_the_server_asks() -> None:
    """Nothing of it is retried earlier. A batch larger than the burst is sent in parts."""
    session, _ = make_session(Closed(), retries=50)
    assert isinstance(session.clock, InstantClock)
    bucket = Bucket(session.clock, 5)
    batcher: Batcher[str, str] = Batcher(session, bucket.send, requests_max=1)
    names = [f"{n}" for n in range(20)]
    assert await asyncio.gather(*(batcher.put(name, 1) for name in names)) == names
    assert sorted(bucket.done) == sorted(names)
    assert bucket.requests < 30
    bucket.requests, bucket.tokens = 0, 0
    assert await asyncio.gather(*(batcher.put(name, 1) for name in names[:5])) == names[:5]
    assert bucket.requests == 2


async def test_rate_limited_items_are_retried_as_often_as_the_policy_says() -> None:
    """Then the callers get the server's error, and none of their items was done."""
    session, _ = make_session(Closed())
    calls: list[int] = []

    async def send(items: list[str]) -> list[str | TenantqError]:
        calls.append(len(items))
        raise RateLimited(limit=1, current=1, retry_after_ms=10)

    batcher: Batcher[str, str] = Batcher(session, send, requests_max=1)
    outcomes = await asyncio.gather(*(batcher.put(f"{n}", 1) for n in range(8)), return_exceptions=True)
    assert {type(one) for one in outcomes} == {RateLimited}
    assert calls == [8, 8, 8, 8, 1]
    assert isinstance(session.clock, InstantClock)
    assert session.clock.pauses == [10 + 50, 10 + 100, 10 + 200]


async def test_the_smallest_item_is_tried_alone_at_a_limit() -> None:
    """A byte limit may refuse a batch for its size and still have room for a small item."""
    session, _ = make_session(Closed(), retries=0)

    async def send(items: list[str]) -> list[str | TenantqError]:
        if "large" in items:
            raise RateLimited("too many bytes", retry_after_ms=10)
        return list(items)

    batcher: Batcher[str, str] = Batcher(session, send, requests_max=1)
    small, large, other = batcher.put("small", 10), batcher.put("large", 1_000), batcher.put("other", 20)
    outcomes = await asyncio.gather(small, large, other, return_exceptions=True)
    assert outcomes[0] == "small"
    assert isinstance(outcomes[1], RateLimited)
    assert outcomes[2] == "other"


async def test_a_call_cancelled_before_its_request_is_not_sent() -> None:
    """The other calls are sent without it."""
    server = RecordingServer()
    _, batcher = batcher_to(server)
    gone, kept = batcher.put("gone", 1), batcher.put("kept", 1)
    gone.cancel()
    assert await kept == "did kept"
    assert server.batches == [["kept"]]


async def test_closing_ends_every_call() -> None:
    """Calls that are sent, collected or paused get Closed, in any turn of the loop."""
    for turns_before in range(6):
        session, _ = make_session(Closed(), clock=ManualClock())
        server = RecordingServer([1_000_000])
        batcher: Batcher[str, str] = Batcher(session, server.send, requests_max=1)
        limited: Batcher[str, str] = Batcher(session, refused)
        futures = [batcher.put("under way", 1), limited.put("pauses", 1)]
        await turns(turns_before)
        futures.append(batcher.put("gathered", 1))
        await session.close()
        outcomes = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 5)
        assert {type(one) for one in outcomes} == {Closed}
        doubts = [isinstance(one, Closed) and one.maybe_done for one in outcomes]
        assert doubts[1:] == [False, False] or not turns_before
        assert doubts[0] or turns_before < 2


async def refused(_: list[str]) -> list[str | TenantqError]:
    """Refuse a batch because of a limit."""
    raise RateLimited(retry_after_ms=10)


async def test_an_answer_with_the_wrong_number_of_items_is_an_error() -> None:
    """It must not leave a caller waiting."""
    session, _ = make_session(Closed())

    async def send(_: list[str]) -> list[str | TenantqError]:
        return ["one too few"]

    batcher: Batcher[str, str] = Batcher(session, send)
    outcomes = await asyncio.gather(batcher.put("a", 1), batcher.put("b", 1), return_exceptions=True)
    assert isinstance(outcomes[1], TenantqError)
