"""Connections: kept alive, replaced when stale, bounded, and clear about requests of unknown outcome. Over real sockets."""

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
from tests.unit.client.doubles import (
    FaultyServer,
    faulty_server,
    hang,
    make_settings,
    respond,
    respond_and_close,
    respond_raw,
    until,
)

GET = ApiRequest("GET", "/x", bytes)


def pool_to(server: FaultyServer, **changes: Any) -> ConnectionPool:
    """Return a pool for a faulty server, on a clock that does not move."""
    return ConnectionPool(make_settings(server.url, **{"clock": ManualClock(), **changes}))


async def test_a_connection_is_reused() -> None:
    """One connection serves many requests one after the other."""
    async with faulty_server() as server:
        server.behave = [respond()]
        pool = pool_to(server)
        for _ in range(5):
            assert (await pool.send(GET)).status == 200
        assert server.connections == 1
        await pool.close()


async def test_concurrent_requests_use_separate_connections_up_to_the_limit() -> None:
    """Further requests wait in line for the first free connection."""
    async with faulty_server() as server:
        go = asyncio.Event()

        async def slowly(writer: asyncio.StreamWriter) -> None:
            await go.wait()
            respond()(writer)

        server.behave = [slowly]
        pool = pool_to(server, connections=3)
        tasks = [asyncio.create_task(pool.send(GET)) for _ in range(10)]
        await until(lambda: len(server.heads) == 3)
        go.set()
        assert [(await task).status for task in tasks] == [200] * 10
        assert server.connections == 3
        await pool.close()


async def test_long_polls_leave_connections_for_other_requests() -> None:
    """A quarter of the connections, at least one, is not for long polls."""
    async with faulty_server() as server:
        server.behave = [hang, hang, hang, respond()]
        pool = pool_to(server, connections=4)
        waiting = [asyncio.create_task(pool.send(ApiRequest("POST", "/poll", bytes, wait_ms=1))) for _ in range(5)]
        await until(lambda: len(server.heads) == 3)
        assert (await pool.send(GET)).status == 200
        assert server.connections == 4
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await pool.close()


async def test_a_stale_connection_is_replaced_transparently() -> None:
    """The server closes an idle connection, and the next request uses a new one."""
    async with faulty_server() as server:
        server.behave = [respond_and_close(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), respond()]
        pool = pool_to(server)
        await pool.send(GET)
        await until(lambda: not pool._idle)  # the end of the connection is noticed
        assert (await pool.send(GET)).status == 200
        assert server.connections == 2
        await pool.close()


async def test_a_connection_idle_for_too_long_is_not_reused() -> None:
    """It is closed before the server would close it."""
    clock = ManualClock()
    async with faulty_server() as server:
        server.behave = [respond()]
        pool = pool_to(server, clock=clock)
        await pool.send(GET)
        clock.advance(IDLE_MS_MAX)
        await pool.send(GET)
        assert server.connections == 2
        await pool.close()


async def test_connection_close_is_obeyed() -> None:
    """A response with ``Connection: close`` is the last one of its connection."""
    async with faulty_server() as server:
        server.behave = [respond(headers="Connection: close\r\n")]
        pool = pool_to(server)
        await pool.send(GET)
        await pool.send(GET)
        assert server.connections == 2
        await pool.close()


async def test_a_request_that_must_not_be_repeated_gets_a_new_connection() -> None:
    """The server cannot be about to close it, and the connection limit still holds."""
    async with faulty_server() as server:
        server.behave = [respond()]
        pool = pool_to(server, connections=1)
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
async def test_a_truncated_response_is_a_typed_error(answer: bytes) -> None:
    """The request may have been executed."""
    async with faulty_server() as server:
        server.behave = [respond_and_close(answer)]
        pool = pool_to(server)
        with pytest.raises(ConnectionFailed) as caught:
            await pool.send(GET)
        assert caught.value.maybe_done
        await pool.close()


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH\r\n", b"\x00" * 50, b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n"]
)
async def test_a_response_that_is_not_http_is_a_typed_error(answer: bytes) -> None:
    """Any program may be listening on that port."""
    async with faulty_server() as server:
        server.behave = [respond_raw(answer)]
        pool = pool_to(server)
        with pytest.raises(BadAnswer, match=r"not HTTP/1\.1") as caught:
            await pool.send(GET)
        assert caught.value.maybe_done
        await pool.close()


async def test_the_size_of_a_response_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken server cannot fill the memory with a body or with headers."""
    monkeypatch.setattr(http_connection, "REPLY_BYTES_MAX", 1_000)
    async with faulty_server() as server:
        server.behave = [
            respond(body=b"x" * 1_001),
            respond(headers=f"A: {'x' * 70_000}\r\n"),
            respond(body=b"x" * 1_000),
        ]
        pool = pool_to(server)
        for _ in range(2):
            with pytest.raises(BadAnswer, match="bytes"):
                await pool.send(GET)
        assert len((await pool.send(GET)).body) == 1_000
        await pool.close()


async def test_the_decompressed_size_of_a_response_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit applies to the output."""
    monkeypatch.setattr(http_connection, "REPLY_BYTES_MAX", 1_000)
    packed = gzip.compress(bytes(1_001))
    async with faulty_server() as server:
        server.behave = [respond(body=packed, headers="Content-Encoding: gzip\r\n")]
        pool = pool_to(server)
        with pytest.raises(BadAnswer, match="limit 1000 bytes"):
            await pool.send(GET)
        await pool.close()


async def test_a_damaged_gzip_response_is_a_typed_error() -> None:
    """Truncated, or not gzip at all."""
    packed = gzip.compress(b"x" * 500)
    for body in (packed[:-9], b"not gzip"):
        async with faulty_server() as server:
            server.behave = [respond(body=body, headers="Content-Encoding: gzip\r\n")]
            pool = pool_to(server)
            with pytest.raises(BadAnswer, match="decompress"):
                await pool.send(GET)
            await pool.close()


async def test_a_response_that_is_too_large_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second poll would not find the messages that the first one leased, and would report an empty queue."""
    monkeypatch.setattr(http_connection, "REPLY_BYTES_MAX", 1_000)
    async with faulty_server() as server:
        server.behave = [respond(body=b"x" * 1_001), respond(body=b'{"messages":[]}')]
        async with AsyncClient(server.url) as client:
            with pytest.raises(BadAnswer, match="smaller max") as caught:
                await client.queue("mail").poll(100)
            assert caught.value.maybe_done
        assert len(server.heads) == 1


async def test_gzip_responses_are_decompressed_and_requested_only_where_useful() -> None:
    """Small calls do not mention gzip."""
    async with faulty_server() as server:
        server.behave = [respond(body=gzip.compress(b'{"a": 1}'), headers="Content-Encoding: gzip\r\n"), respond()]
        pool = pool_to(server)
        assert (await pool.send(ApiRequest("GET", "/x", bytes, gzip=True))).body == b'{"a": 1}'
        await pool.send(GET)
        assert "accept-encoding: gzip" in server.heads[0].lower()
        assert "accept-encoding" not in server.heads[1].lower()
        await pool.close()


async def test_chunked_and_interim_responses_are_accepted() -> None:
    """As HTTP/1.1 allows."""
    async with faulty_server() as server:
        server.behave = [
            respond_raw(
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
            )
        ]
        pool = pool_to(server)
        assert (await pool.send(GET)).body == b"abcde"
        await pool.close()


async def test_a_response_in_many_pieces_is_reassembled() -> None:
    """For any split."""
    text = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}'

    async def drip(writer: asyncio.StreamWriter) -> None:
        for place in range(len(text)):
            writer.write(text[place : place + 1])
            await writer.drain()
            await asyncio.sleep(0)

    async with faulty_server() as server:
        server.behave = [drip]
        pool = pool_to(server)
        assert json.loads((await pool.send(GET)).body) == {"a": 1}
        await pool.close()


async def test_a_timeout_is_a_typed_error_and_closes_the_connection() -> None:
    """A late response would otherwise be read as that of the next request."""
    clock = ManualClock()
    async with faulty_server() as server:
        server.behave = [hang, respond()]
        pool = pool_to(server, clock=clock)
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


async def test_waiting_too_long_for_a_connection_is_a_typed_error() -> None:
    """Nothing was sent, so a retry is safe."""
    clock = ManualClock()
    async with faulty_server() as server:
        server.behave = [hang]
        pool = pool_to(server, clock=clock, connections=1)
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


async def test_a_cancelled_waiter_passes_its_place_on() -> None:
    """Also if its turn had just come."""
    async with faulty_server() as server:
        go = asyncio.Event()

        async def slowly(writer: asyncio.StreamWriter) -> None:
            await go.wait()
            respond()(writer)

        server.behave = [slowly]
        pool = pool_to(server, connections=1)
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


async def test_a_refused_connection_is_a_typed_error_with_the_address() -> None:
    """It does not contain the token, and the request was not sent."""
    async with faulty_server() as server:
        port = server.port
    pool = ConnectionPool(make_settings(f"http://127.0.0.1:{port}"))
    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{port}") as caught:
        await pool.send(GET)
    assert not caught.value.maybe_done
    assert "secret-token" not in str(caught.value)
    await pool.close()


async def test_closing_ends_all_waiting_requests() -> None:
    """Requests on a connection and requests in line for one."""
    async with faulty_server() as server:
        server.behave = [hang]
        pool = pool_to(server, connections=1)
        tasks = [asyncio.create_task(pool.send(GET)) for _ in range(3)]
        await server.arrived.wait()
        await pool.close()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [ConnectionFailed, Closed, Closed]
        with pytest.raises(Closed):
            await pool.send(GET)


async def test_a_cancelled_request_closes_its_connection() -> None:
    """Its response must not be read as the next one's."""
    async with faulty_server() as server:
        server.behave = [hang, respond()]
        pool = pool_to(server, connections=1)
        task = asyncio.create_task(pool.send(GET))
        await server.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await pool.send(GET)).status == 200
        assert server.connections == 2
        await pool.close()


async def test_unexpected_bytes_close_the_connection() -> None:
    """A second response to one request must not become the next request's."""
    twice = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"
    async with faulty_server() as server:
        server.behave = [respond_raw(twice + b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb"), respond(body=b"c")]
        pool = pool_to(server)
        assert (await pool.send(GET)).body == b"a"
        assert (await pool.send(GET)).body == b"c"
        assert server.connections == 2
        await pool.close()


async def test_a_lost_response_is_retried() -> None:
    """End to end: a broken connection, a 503 with Retry-After, then the answer."""
    busy = b'{"type":"","title":"","status":503,"detail":"busy","code":"unavailable","retry_after_ms":1}'
    async with faulty_server() as server:
        server.behave = [respond_and_close(b""), respond(503, busy, "Retry-After: 1\r\n"), respond(body=b"[1]")]
        settings = make_settings(server.url, clock=None, retries=Retries(count=3, base_ms=1, max_ms=50))
        session = ClientSession(settings, ConnectionPool(settings))
        answer = await session.answer(ApiRequest(method="GET", target="/x", decode=bytes))
        assert (answer.value, answer.doubtful) == (b"[1]", True)
        assert len(server.heads) == 3
        await session.close()


async def test_a_request_has_the_credential_and_the_expected_headers() -> None:
    """Host, agent, accept, credential, and the type and length of the body."""
    async with faulty_server() as server:
        server.behave = [respond()]
        pool = ConnectionPool(make_settings(server.url + "/behind", clock=ManualClock()))
        await pool.send(ApiRequest("POST", "/v1/x", bytes, b"[]"))
        lines = server.heads[0].splitlines()
        assert lines[0] == "POST /behind/v1/x HTTP/1.1"
        assert f"Host: 127.0.0.1:{server.port}" in lines
        assert "Authorization: Bearer secret-token" in lines
        assert "Content-Length: 2" in lines
        assert server.bodies[0] == b"[]"
        await pool.close()
