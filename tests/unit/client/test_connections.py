"""Connections: kept alive, replaced when stale, bounded, and honest about what they do not know. Over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from tenantq.client import AsyncClient, http_connection
from tenantq.client.connection_pool import IDLE_MS_MAX, ApiRequest, ConnectionPool
from tenantq.client.session import ClientSession
from tenantq.client.settings import Retries
from tenantq.errors import BadAnswer, Closed, ConnectionFailed, TimedOut
from tenantq.runtime.clock import ManualClock
from tests.unit.client.doubles import RoughServer, hang, make_settings, rough_server, say, say_and_close, say_raw, until

GET = ApiRequest("GET", "/x", bytes)


def pool_of(server: RoughServer, **changes: Any) -> ConnectionPool:
    """Return a pool for a rough server, on a clock that stands still."""
    return ConnectionPool(make_settings(server.url, **{"clock": ManualClock(), **changes}))


async def test_a_connection_is_used_again() -> None:
    """One connection serves many requests, one after the other."""
    async with rough_server() as server:
        server.behave = [say()]
        pool = pool_of(server)
        for _ in range(5):
            assert (await pool.send(GET)).status == 200
        assert server.connections == 1
        await pool.close()


async def test_requests_at_the_same_time_use_connections_of_their_own_up_to_the_bound() -> None:
    """More than the bound wait in line for the first that is free."""
    async with rough_server() as server:
        go = asyncio.Event()

        async def slowly(writer: asyncio.StreamWriter) -> None:
            await go.wait()
            say()(writer)

        server.behave = [slowly]
        pool = pool_of(server, connections=3)
        tasks = [asyncio.create_task(pool.send(GET)) for _ in range(10)]
        await until(lambda: len(server.heads) == 3)
        go.set()
        assert [(await task).status for task in tasks] == [200] * 10
        assert server.connections == 3
        await pool.close()


async def test_long_polls_leave_connections_for_everything_else() -> None:
    """A quarter of the places, at least one, is not theirs."""
    async with rough_server() as server:
        server.behave = [hang, hang, hang, say()]
        pool = pool_of(server, connections=4)
        waiting = [asyncio.create_task(pool.send(ApiRequest("POST", "/poll", bytes, wait_ms=1))) for _ in range(5)]
        await until(lambda: len(server.heads) == 3)
        assert (await pool.send(GET)).status == 200
        assert server.connections == 4
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await pool.close()


async def test_a_stale_connection_is_replaced_without_anybody_noticing() -> None:
    """The server closes an idle connection; the next request goes over a new one."""
    async with rough_server() as server:
        server.behave = [say_and_close(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), say()]
        pool = pool_of(server)
        await pool.send(GET)
        await until(lambda: not pool._idle)  # the end of the connection is noticed
        assert (await pool.send(GET)).status == 200
        assert server.connections == 2
        await pool.close()


async def test_a_connection_that_idled_too_long_is_not_trusted() -> None:
    """It is closed before the server would close it."""
    clock = ManualClock()
    async with rough_server() as server:
        server.behave = [say()]
        pool = pool_of(server, clock=clock)
        await pool.send(GET)
        clock.advance(IDLE_MS_MAX)
        await pool.send(GET)
        assert server.connections == 2
        await pool.close()


async def test_connection_close_is_obeyed() -> None:
    """A reply that says close is the connection's last."""
    async with rough_server() as server:
        server.behave = [say(headers="Connection: close\r\n")]
        pool = pool_of(server)
        await pool.send(GET)
        await pool.send(GET)
        assert server.connections == 2
        await pool.close()


async def test_what_must_not_be_repeated_gets_a_fresh_connection() -> None:
    """So that it never meets one which the server is about to close, and the bound holds all the same."""
    async with rough_server() as server:
        server.behave = [say()]
        pool = pool_of(server, connections=1)
        await pool.send(GET)
        await pool.send(ApiRequest("POST", "/purge", bytes, b"{}", repeatable=False))
        assert server.connections == 2
        assert len(pool._idle) == 1
        await pool.close()


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", b"HTTP/1.1 200 OK\r\nX: "],
    ids=["nothing", "half a line", "half a body", "half a header"],
)
async def test_an_answer_that_breaks_off_is_a_typed_error(answer: bytes) -> None:
    """And what was asked for may have happened."""
    async with rough_server() as server:
        server.behave = [say_and_close(answer)]
        pool = pool_of(server)
        with pytest.raises(ConnectionFailed) as caught:
            await pool.send(GET)
        assert caught.value.maybe_done
        await pool.close()


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH\r\n", b"\x00" * 50, b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n"]
)
async def test_an_answer_that_is_not_http_is_a_typed_error(answer: bytes) -> None:
    """Whatever listens there."""
    async with rough_server() as server:
        server.behave = [say_raw(answer)]
        pool = pool_of(server)
        with pytest.raises(BadAnswer, match=r"not HTTP/1\.1") as caught:
            await pool.send(GET)
        assert caught.value.maybe_done
        await pool.close()


async def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server gone mad cannot fill the memory, neither with a body nor with headers."""
    monkeypatch.setattr(http_connection, "REPLY_BYTES_MAX", 1_000)
    async with rough_server() as server:
        server.behave = [say(body=b"x" * 1_001), say(headers=f"A: {'x' * 70_000}\r\n"), say(body=b"x" * 1_000)]
        pool = pool_of(server)
        for _ in range(2):
            with pytest.raises(BadAnswer, match="bytes"):
                await pool.send(GET)
        assert len((await pool.send(GET)).body) == 1_000
        await pool.close()


async def test_a_small_packet_does_not_unpack_into_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is on what comes out."""
    monkeypatch.setattr(http_connection, "REPLY_BYTES_MAX", 1_000)
    packed = gzip.compress(bytes(1_001))
    async with rough_server() as server:
        server.behave = [say(body=packed, headers="Content-Encoding: gzip\r\n")]
        pool = pool_of(server)
        with pytest.raises(BadAnswer, match="limit 1000 bytes"):
            await pool.send(GET)
        await pool.close()


async def test_a_packed_answer_that_is_damaged_is_a_typed_error() -> None:
    """Cut short, or no gzip at all."""
    packed = gzip.compress(b"x" * 500)
    for body in (packed[:-9], b"not gzip"):
        async with rough_server() as server:
            server.behave = [say(body=body, headers="Content-Encoding: gzip\r\n")]
            pool = pool_of(server)
            with pytest.raises(BadAnswer, match="decompress"):
                await pool.send(GET)
            await pool.close()


async def test_an_answer_that_is_too_large_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second poll would find what the first has leased gone, and call the queue empty."""
    monkeypatch.setattr(http_connection, "REPLY_BYTES_MAX", 1_000)
    async with rough_server() as server:
        server.behave = [say(body=b"x" * 1_001), say(body=b'{"messages":[]}')]
        async with AsyncClient(server.url) as client:
            with pytest.raises(BadAnswer, match="smaller max") as caught:
                await client.queue("mail").poll(100)
            assert caught.value.maybe_done
        assert len(server.heads) == 1


async def test_a_packed_answer_is_unpacked_and_asked_for_only_where_it_pays() -> None:
    """Small calls do not mention gzip."""
    async with rough_server() as server:
        server.behave = [say(body=gzip.compress(b'{"a": 1}'), headers="Content-Encoding: gzip\r\n"), say()]
        pool = pool_of(server)
        assert (await pool.send(ApiRequest("GET", "/x", bytes, gzip=True))).body == b'{"a": 1}'
        await pool.send(GET)
        assert "accept-encoding: gzip" in server.heads[0].lower()
        assert "accept-encoding" not in server.heads[1].lower()
        await pool.close()


async def test_chunks_and_interim_answers_are_understood() -> None:
    """As HTTP/1.1 allows them."""
    async with rough_server() as server:
        server.behave = [
            say_raw(
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
            )
        ]
        pool = pool_of(server)
        assert (await pool.send(GET)).body == b"abcde"
        await pool.close()


async def test_an_answer_in_many_pieces_is_put_together() -> None:
    """However the network cuts it."""
    text = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}'

    async def drip(writer: asyncio.StreamWriter) -> None:
        for place in range(len(text)):
            writer.write(text[place : place + 1])
            await writer.drain()
            await asyncio.sleep(0)

    async with rough_server() as server:
        server.behave = [drip]
        pool = pool_of(server)
        assert json.loads((await pool.send(GET)).body) == {"a": 1}
        await pool.close()


async def test_no_answer_in_time_is_a_typed_error_and_the_connection_is_dropped() -> None:
    """Its answer, if it came now, would be taken for another's."""
    clock = ManualClock()
    async with rough_server() as server:
        server.behave = [hang, say()]
        pool = pool_of(server, clock=clock)
        task = asyncio.create_task(pool.send(ApiRequest("GET", "/x", bytes, answer_ms=2_000)))
        await server.arrived.wait()
        clock.advance(1_999)
        await asyncio.sleep(0)
        assert not task.done()
        clock.advance(1)
        with pytest.raises(TimedOut) as caught:
            await task
        assert caught.value.maybe_done
        assert (await pool.send(GET)).status == 200
        assert server.connections == 2
        await pool.close()


async def test_who_waits_too_long_for_a_connection_learns_so() -> None:
    """Nothing was sent, so it is safe to try again."""
    clock = ManualClock()
    async with rough_server() as server:
        server.behave = [hang]
        pool = pool_of(server, clock=clock, connections=1)
        first = asyncio.create_task(pool.send(ApiRequest("GET", "/x", bytes, answer_ms=60_000)))
        await server.arrived.wait()
        second = asyncio.create_task(pool.send(ApiRequest("GET", "/x", bytes, answer_ms=1_000)))
        await asyncio.sleep(0)
        clock.advance(1_000)
        with pytest.raises(TimedOut, match="Increase connections") as caught:
            await second
        assert not caught.value.maybe_done
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await pool.close()


async def test_a_place_in_line_is_passed_on_when_its_owner_is_gone() -> None:
    """Also when its turn had just come."""
    async with rough_server() as server:
        go = asyncio.Event()

        async def slowly(writer: asyncio.StreamWriter) -> None:
            await go.wait()
            say()(writer)

        server.behave = [slowly]
        pool = pool_of(server, connections=1)
        first = asyncio.create_task(pool.send(GET))
        await server.arrived.wait()
        second, third = (asyncio.create_task(pool.send(GET)) for _ in range(2))
        await asyncio.sleep(0)
        first.add_done_callback(lambda _: second.cancel())
        go.set()
        assert (await first).status == 200
        assert (await third).status == 200
        assert second.cancelled()
        assert pool._in_use == 0
        await pool.close()


async def test_nobody_there_is_a_typed_error_that_names_the_address_and_no_secret() -> None:
    """A refused connection was never used for anything."""
    async with rough_server() as server:
        port = server.port
    pool = ConnectionPool(make_settings(f"http://127.0.0.1:{port}"))
    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{port}") as caught:
        await pool.send(GET)
    assert not caught.value.maybe_done
    assert "secret-token" not in str(caught.value)
    await pool.close()


async def test_closing_ends_everything_that_waits() -> None:
    """Those with a connection, and those in line for one."""
    async with rough_server() as server:
        server.behave = [hang]
        pool = pool_of(server, connections=1)
        tasks = [asyncio.create_task(pool.send(GET)) for _ in range(3)]
        await server.arrived.wait()
        await pool.close()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [ConnectionFailed, Closed, Closed]
        with pytest.raises(Closed):
            await pool.send(GET)


async def test_a_cancelled_request_drops_its_connection() -> None:
    """Its answer must not be read as the next one's."""
    async with rough_server() as server:
        server.behave = [hang, say()]
        pool = pool_of(server, connections=1)
        task = asyncio.create_task(pool.send(GET))
        await server.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await pool.send(GET)).status == 200
        assert server.connections == 2
        await pool.close()


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    """A second answer to one request is somebody's mistake, and must not become the next one's."""
    twice = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"
    async with rough_server() as server:
        server.behave = [say_raw(twice + b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb"), say(body=b"c")]
        pool = pool_of(server)
        assert (await pool.send(GET)).body == b"a"
        assert (await pool.send(GET)).body == b"c"
        assert server.connections == 2
        await pool.close()


async def test_a_lost_answer_is_asked_for_again() -> None:
    """The whole way: a broken connection, a 503 with Retry-After, then the answer."""
    busy = b'{"type":"","title":"","status":503,"detail":"busy","code":"unavailable","retry_after_ms":1}'
    async with rough_server() as server:
        server.behave = [say_and_close(b""), say(503, busy, "Retry-After: 1\r\n"), say(body=b"[1]")]
        settings = make_settings(server.url, clock=None, retries=Retries(count=3, base_ms=1, max_ms=50))
        session = ClientSession(settings, ConnectionPool(settings))
        answer = await session.answer(ApiRequest(method="GET", target="/x", decode=bytes))
        assert (answer.value, answer.doubtful) == (b"[1]", True)
        assert len(server.heads) == 3
        await session.close()


async def test_every_request_carries_the_credential_and_nothing_else_of_note() -> None:
    """Host, agent, accept, credential, and the body's type and length."""
    async with rough_server() as server:
        server.behave = [say()]
        pool = ConnectionPool(make_settings(server.url + "/behind", clock=ManualClock()))
        await pool.send(ApiRequest("POST", "/v1/x", bytes, b"[]"))
        lines = server.heads[0].splitlines()
        assert lines[0] == "POST /behind/v1/x HTTP/1.1"
        assert f"Host: 127.0.0.1:{server.port}" in lines
        assert "Authorization: Bearer secret-token" in lines
        assert "Content-Length: 2" in lines
        assert server.bodies[0] == b"[]"
        await pool.close()
