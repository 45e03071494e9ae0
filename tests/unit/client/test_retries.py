"""Retries happen only where they are safe, with growing pauses, and never earlier than the server asks."""

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
from tests.unit.client.doubles import InstantClock, make_session, problem, reply, until


def broken() -> ConnectionFailed:
    """Return the error of a connection that was never established."""
    return ConnectionFailed("broken")


def lost() -> ConnectionFailed:
    """Return the error of a connection that broke after the request was sent."""
    error = ConnectionFailed("lost")
    error.maybe_done = True
    return error


def request(*, repeatable: bool = True, patient: bool = True) -> ApiRequest[bytes]:
    """Return a request whose reply is not decoded."""
    return ApiRequest(method="GET", target="/x", decode=bytes, repeatable=repeatable, patient=patient)


def delays(session: ClientSession) -> list[int]:
    """Return the pauses that a session made."""
    assert isinstance(session.clock, InstantClock)
    return session.clock.pauses


async def test_a_call_is_retried_with_growing_pauses_until_it_succeeds() -> None:
    """The pauses are half of 100, 200 and 400 ms, because the randomness is fixed at its midpoint."""
    session, transport = make_session(broken(), lost(), TimedOut(), reply("done"))
    assert await session.call(request()) == b'"done"'
    assert len(transport.requests) == 4
    assert delays(session) == [50, 100, 200]


async def test_the_last_error_is_raised_after_all_attempts() -> None:
    """It says whether any of the attempts may have been executed."""
    session, transport = make_session(lost(), broken())
    with pytest.raises(ConnectionFailed, match="broken") as caught:
        await session.call(request())
    assert caught.value.maybe_done
    assert len(transport.requests) == 4


async def test_a_request_that_must_not_be_repeated_is_not_retried_after_it_was_sent() -> None:
    """A lost answer ends the call; a connection that was never established does not."""
    session, transport = make_session(broken(), lost(), reply("done"))
    with pytest.raises(ConnectionFailed) as caught:
        await session.call(request(repeatable=False))
    assert caught.value.maybe_done
    assert len(transport.requests) == 2
    assert all(not one.repeatable for one in transport.requests)


async def test_a_503_counts_as_maybe_done() -> None:
    """A server whose disk failed cannot say what was written."""
    session, transport = make_session(problem("unavailable", 503))
    with pytest.raises(Unavailable):
        await session.call(request(repeatable=False))
    assert len(transport.requests) == 1


async def test_retry_after_is_respected() -> None:
    """The client waits at least that long and adds the jitter."""
    session, _ = make_session(problem("rate_limited", 429, retry_after_ms=700), reply("done"))
    await session.call(request())
    assert delays(session) == [750]


async def test_the_retry_after_header_is_used_if_the_body_has_no_time() -> None:
    """A proxy may send the response."""
    session, _ = make_session(
        reply("busy", 503, retry_after="1"), reply("done"), retries=Retries(count=1, max_ms=2_000)
    )
    await session.call(request())
    assert delays(session) == [1_050]


async def test_a_retry_after_beyond_the_limit_is_not_awaited() -> None:
    """The caller gets the error at once, with the time that the server asked for."""
    session, _ = make_session(problem("quota_exceeded", 429, limit=5, current=5, retry_after_ms=60_000))
    with pytest.raises(QuotaExceeded) as caught:
        await session.call(request())
    assert (caught.value.limit, caught.value.current, caught.value.retry_after_ms) == (5, 5, 60_000)
    assert delays(session) == []


@pytest.mark.parametrize(("code", "status", "kind"), [("forbidden", 403, Forbidden), ("invalid", 422, Invalid)])
async def test_permanent_errors_are_not_retried(code: str, status: int, kind: type[TenantqError]) -> None:
    """A refusal is final."""
    session, transport = make_session(problem(code, status))
    with pytest.raises(kind):
        await session.call(request())
    assert len(transport.requests) == 1


async def test_a_call_of_a_batch_is_not_retried_at_a_limit() -> None:
    """The batcher decides for each of its items."""
    session, transport = make_session(problem("rate_limited", 429, retry_after_ms=1))
    with pytest.raises(RateLimited):
        await session.call(request(patient=False))
    assert len(transport.requests) == 1


async def test_retries_can_be_turned_off() -> None:
    """NO_RETRIES means one attempt."""
    session, transport = make_session(broken(), retries=NO_RETRIES)
    with pytest.raises(ConnectionFailed):
        await session.call(request())
    assert len(transport.requests) == 1


async def test_a_retried_wait_is_shortened_by_the_elapsed_time() -> None:
    """A caller waits no longer than it asked for, also if connections break."""

    def waiting(wait_ms: int) -> ApiRequest[bytes]:
        return ApiRequest(method="GET", target=f"/x?{wait_ms}", decode=bytes, wait_ms=wait_ms, shorten=waiting)

    session, transport = make_session(lost(), lost(), lost(), reply("done"))
    await session.call(waiting(300))
    assert [one.target for one in transport.requests] == ["/x?300", "/x?250", "/x?150", "/x?0"]
    assert [one.wait_ms for one in transport.requests] == [300, 250, 150, 0]


async def test_an_answer_says_whether_an_earlier_attempt_may_have_been_executed() -> None:
    """Only a request that was sent can have been executed."""
    session, _ = make_session(lost(), reply("done"))
    assert (await session.answer(request())).doubtful
    session, _ = make_session(broken(), reply("done"))
    assert not (await session.answer(request())).doubtful


async def test_closed_is_not_retried() -> None:
    """The caller itself closed the client."""
    session, transport = make_session(reply("done"))
    await session.close()
    with pytest.raises(Closed):
        await session.call(request())
    assert transport.closed
    assert transport.requests == []


async def test_closing_ends_a_call_that_waits_to_retry() -> None:
    """It is not sent again, and the error says whether it may have been executed."""
    session, transport = make_session(lost(), reply("done"), clock=ManualClock())
    call = asyncio.create_task(session.call(request()))
    await until(lambda: session._sleeping)
    await session.close()
    with pytest.raises(Closed) as caught:
        await call
    assert caught.value.maybe_done
    assert len(transport.requests) == 1


async def test_closing_ends_a_call_on_an_open_connection() -> None:
    """It gets Closed rather than a network error."""
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
    """Another event loop gets a clear error, as for any other call."""
    session, _ = make_session(reply("done"))
    asyncio.run(session.call(request()))
    with pytest.raises(Invalid, match="another event loop"):
        asyncio.run(session.close())


async def test_an_undecodable_answer_is_an_error_and_not_retried() -> None:
    """A retry would not make it valid JSON."""

    def decode(_: bytes) -> int:
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "no")

    session, transport = make_session(reply("done"))
    with pytest.raises(BadAnswer, match="cannot decode") as caught:
        await session.call(ApiRequest(method="GET", target="/x", decode=decode))
    assert caught.value.maybe_done
    assert len(transport.requests) == 1


def test_pauses_use_full_jitter_in_a_doubling_window() -> None:
    """Anything from zero to the whole window, which has a maximum."""
    retries = Retries(count=40, base_ms=10, max_ms=1_000)
    chance = random.Random(5)
    for retry in range(1, 41):
        window = min(1_000, 10 * 2 ** (retry - 1))
        drawn = [retries.pause_ms(retry, Unavailable(), chance) for _ in range(200)]
        assert all(one is not None and 0 <= one <= window for one in drawn)
        assert len(set(drawn)) > min(5, window // 2)
    assert retries.pause_ms(41, Unavailable(), chance) is None
