"""Retries: where they are safe, with growing pauses, and never against what the server asked for."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tenantq.client.connection_pool import ApiRequest
from tenantq.client.session import ClientSession
from tenantq.client.settings import NO_RETRIES, Retries
from tenantq.errors import (
    BadAnswer,
    Closed,
    ConnectionFailed,
    Forbidden,
    Invalid,
    QuotaExceeded,
    RateLimited,
    TenantqError,
    TimedOut,
    Unavailable,
)
from tenantq.runtime.clock import ManualClock
from tests.unit.client.doubles import FlyingClock, make_session, problem, reply, until


def broken() -> ConnectionFailed:
    """Return the error of a connection that never came about."""
    return ConnectionFailed("broken")


def lost() -> ConnectionFailed:
    """Return the error of a connection that broke after the request had gone out."""
    error = ConnectionFailed("lost")
    error.maybe_done = True
    return error


def request(*, repeatable: bool = True, patient: bool = True) -> ApiRequest[bytes]:
    """Return a request whose reply is taken as it is."""
    return ApiRequest(method="GET", target="/x", decode=bytes, repeatable=repeatable, patient=patient)


def pauses(session: ClientSession) -> list[int]:
    """Return the pauses a session has made."""
    assert isinstance(session.clock, FlyingClock)
    return session.clock.pauses


async def test_a_call_is_tried_again_with_growing_pauses_until_it_works() -> None:
    """Half of 100, 200 and 400 ms, as the randomness here is always in the middle."""
    session, transport = make_session(broken(), lost(), TimedOut(), reply("done"))
    assert await session.call(request()) == b'"done"'
    assert len(transport.requests) == 4
    assert pauses(session) == [50, 100, 200]


async def test_the_last_error_is_raised_when_the_tries_are_used_up() -> None:
    """And it says whether anything may have been done by any of the tries."""
    session, transport = make_session(lost(), broken())
    with pytest.raises(ConnectionFailed, match="broken") as caught:
        await session.call(request())
    assert caught.value.maybe_done
    assert len(transport.requests) == 4


async def test_what_must_not_happen_twice_is_not_repeated_once_it_may_have_arrived() -> None:
    """A lost answer ends the call; a connection that never came about does not."""
    session, transport = make_session(broken(), lost(), reply("done"))
    with pytest.raises(ConnectionFailed) as caught:
        await session.call(request(repeatable=False))
    assert caught.value.maybe_done
    assert len(transport.requests) == 2
    assert all(not one.repeatable for one in transport.requests)


async def test_a_503_counts_as_maybe_done() -> None:
    """A server whose disk failed cannot say what is on it."""
    session, transport = make_session(problem("unavailable", 503))
    with pytest.raises(Unavailable):
        await session.call(request(repeatable=False))
    assert len(transport.requests) == 1


async def test_retry_after_is_respected() -> None:
    """It is waited for in full, and the jitter comes on top."""
    session, _ = make_session(problem("rate_limited", 429, retry_after_ms=700), reply("done"))
    await session.call(request())
    assert pauses(session) == [750]


async def test_the_retry_after_header_counts_where_the_body_says_nothing() -> None:
    """As from something between the client and the server."""
    session, _ = make_session(
        reply("busy", 503, retry_after="1"), reply("done"), retries=Retries(count=1, max_ms=2_000)
    )
    await session.call(request())
    assert pauses(session) == [1_050]


async def test_a_server_that_asks_for_too_much_patience_is_not_waited_for() -> None:
    """The caller gets the error at once, with what the server said."""
    session, _ = make_session(problem("quota_exceeded", 429, limit=5, current=5, retry_after_ms=60_000))
    with pytest.raises(QuotaExceeded) as caught:
        await session.call(request())
    assert (caught.value.limit, caught.value.current, caught.value.retry_after_ms) == (5, 5, 60_000)
    assert pauses(session) == []


@pytest.mark.parametrize(("code", "status", "kind"), [("forbidden", 403, Forbidden), ("invalid", 422, Invalid)])
async def test_what_will_never_work_is_not_tried_again(code: str, status: int, kind: type[TenantqError]) -> None:
    """A refusal is final."""
    session, transport = make_session(problem(code, status))
    with pytest.raises(kind):
        await session.call(request())
    assert len(transport.requests) == 1


async def test_an_impatient_call_is_not_tried_again_at_a_limit() -> None:
    """Who has sent for many decides for each of them."""
    session, transport = make_session(problem("rate_limited", 429, retry_after_ms=1))
    with pytest.raises(RateLimited):
        await session.call(request(patient=False))
    assert len(transport.requests) == 1


async def test_retries_can_be_turned_off() -> None:
    """NO_RETRIES means one try."""
    session, transport = make_session(broken(), retries=NO_RETRIES)
    with pytest.raises(ConnectionFailed):
        await session.call(request())
    assert len(transport.requests) == 1


async def test_a_retried_wait_is_shortened_by_the_time_that_has_passed() -> None:
    """So a caller waits no longer than it said, however often the connection breaks."""

    def waiting(wait_ms: int) -> ApiRequest[bytes]:
        return ApiRequest(method="GET", target=f"/x?{wait_ms}", decode=bytes, wait_ms=wait_ms, shorten=waiting)

    session, transport = make_session(lost(), lost(), lost(), reply("done"))
    await session.call(waiting(300))
    assert [one.target for one in transport.requests] == ["/x?300", "/x?250", "/x?150", "/x?0"]
    assert [one.wait_ms for one in transport.requests] == [300, 250, 150, 0]


async def test_an_answer_tells_whether_an_earlier_try_may_have_been_done() -> None:
    """Only a request that went out leaves a doubt."""
    session, _ = make_session(lost(), reply("done"))
    assert (await session.answer(request())).doubtful
    session, _ = make_session(broken(), reply("done"))
    assert not (await session.answer(request())).doubtful


async def test_a_closed_client_is_not_tried_again() -> None:
    """Closed is the caller's own doing."""
    session, transport = make_session(reply("done"))
    await session.close()
    with pytest.raises(Closed):
        await session.call(request())
    assert transport.closed
    assert transport.requests == []


async def test_a_call_that_pauses_when_the_client_is_closed_ends_with_closed() -> None:
    """It does not go out again, and tells whether it may have been done."""
    session, transport = make_session(lost(), reply("done"), clock=ManualClock())
    call = asyncio.create_task(session.call(request()))
    await until(lambda: session._sleeping)
    await session.close()
    with pytest.raises(Closed) as caught:
        await call
    assert caught.value.maybe_done
    assert len(transport.requests) == 1


async def test_a_call_whose_connection_is_dropped_by_closing_ends_with_closed() -> None:
    """It was not the network."""
    closing = asyncio.Event()

    async def drop(_: ApiRequest[Any]) -> ConnectionFailed:
        await closing.wait()
        return lost()

    session, _ = make_session(drop)
    call = asyncio.create_task(session.call(request()))
    await asyncio.sleep(0)
    await session.close()
    closing.set()
    with pytest.raises(Closed):
        await call


def test_a_client_is_closed_in_its_own_event_loop() -> None:
    """Elsewhere that is refused in words, as any other call is."""
    session, _ = make_session(reply("done"))
    asyncio.run(session.call(request()))
    with pytest.raises(Invalid, match="another event loop"):
        asyncio.run(session.close())


async def test_an_answer_that_is_not_understood_is_an_error_and_not_repeated() -> None:
    """Asking again would not make it JSON."""

    def decode(_: bytes) -> int:
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "no")

    session, transport = make_session(reply("done"))
    with pytest.raises(BadAnswer, match="cannot decode") as caught:
        await session.call(ApiRequest(method="GET", target="/x", decode=decode))
    assert caught.value.maybe_done
    assert len(transport.requests) == 1


def test_pauses_are_a_random_part_of_a_doubling_window_up_to_its_bound() -> None:
    """Full jitter: anything from nothing to the whole window."""
    retries = Retries(count=40, base_ms=10, max_ms=1_000)
    chance = random.Random(5)
    for retry in range(1, 41):
        window = min(1_000, 10 * 2 ** (retry - 1))
        drawn = [retries.pause_ms(retry, Unavailable(), chance) for _ in range(200)]
        assert all(one is not None and 0 <= one <= window for one in drawn)
        assert len(set(drawn)) > min(5, window // 2)
    assert retries.pause_ms(41, Unavailable(), chance) is None
