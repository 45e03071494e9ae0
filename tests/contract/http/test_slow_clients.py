"""Slow clients are disconnected, each after its own time limit, and others are not affected."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.domain.message import Delivery
from tenantq.http.request_parser import BODY
from tenantq.runtime.listener import TICK_MS
from tests.contract.http.raw_client import ADD, LONG_POLL, RawClient, connections_of, get, post, until_not

if TYPE_CHECKING:
    from tenantq.http import HttpListener
    from tenantq.http.connection import HttpConnection
    from tenantq.runtime.clock import ManualClock
    from tests.contract.http.conftest import Connect, Serve
    from tests.contract.http.fake_service import FakeService


async def stage_reached(listener: HttpListener, stage: str) -> None:
    """Wait until the parser of the only connection is at ``stage``."""
    await until_not(lambda: [connection._parser.stage.name for connection in connections_of(listener)] != [stage])


async def body_received(connection: HttpConnection, body_bytes: int) -> None:
    """Wait until this much of a body, or all of it, has been read."""
    parser = connection._parser
    await until_not(lambda: parser.stage is BODY and parser.body_bytes < body_bytes)


async def still_open(client: RawClient) -> bool:
    """Return whether the server has sent nothing and kept the connection open."""
    try:
        async with asyncio.timeout(0.02):
            await client.reader.read(1)
    except TimeoutError:
        return True
    return False


async def test_unfinished_headers_time_out(listener: HttpListener, connect: Connect, clock: ManualClock) -> None:
    """The time counts from the first byte, even if more arrive now and then."""
    client = await connect(listener)
    client.send(b"GET /healthz HTTP/1.1\r\nHost: a\r\n")
    await stage_reached(listener, "HEAD")
    for _ in range(9):
        clock.advance(1_000)
        client.send(b"X: y\r\n")
        await asyncio.sleep(0.001)
    assert await still_open(client)
    clock.advance(1_000 + TICK_MS)
    reply = await client.reply()
    assert (reply.status, reply.json()["code"], reply.headers["connection"]) == (408, "unavailable", "close")
    assert await client.rest() == b""
    assert listener.context.metrics.cut_total["head"] == 1


async def test_body_without_progress_times_out(listener: HttpListener, connect: Connect, clock: ManualClock) -> None:
    """A trickle of single bytes is not progress."""
    client = await connect(listener)
    client.send(post("/v1/queues/q/messages", " " * 5_000)[:-4_990])
    await stage_reached(listener, "BODY")
    for _ in range(29):
        clock.advance(1_000)
        client.send(b" ")
        await asyncio.sleep(0.001)
    assert await still_open(client)
    clock.advance(1_000 + TICK_MS)
    assert (await client.reply()).status == 408
    assert await client.rest() == b""
    assert (listener.context.metrics.cut_total["body"], listener.context.buffered_bytes) == (1, 0)


async def test_slow_body_with_progress_does_not_time_out(
    listener: HttpListener, connect: Connect, clock: ManualClock
) -> None:
    """Two kilobytes per window suffice."""
    client = await connect(listener)
    body = '{"messages":[{"body":"' + "x" * 20_000 + '"}]}'
    request = post("/v1/queues/q/messages", body)
    client.send(request[:-20_000])
    await stage_reached(listener, "BODY")
    (connection,) = connections_of(listener)
    for at in range(len(request) - 20_000, len(request), 2_000):
        client.send(request[at : at + 2_000])
        await body_received(connection, at + 2_000 - request.index(b"{"))
        clock.advance(29_000)
    assert (await client.reply()).status == 200


async def test_idle_connections_are_closed(listener: HttpListener, connect: Connect, clock: ManualClock) -> None:
    """They are closed silently, before the first request and after the last."""
    fresh, used = await connect(listener), await connect(listener)
    assert (await used.ask(get("/healthz"))).status == 200
    clock.advance(74_000)
    assert await still_open(fresh)
    assert await still_open(used)
    clock.advance(1_000 + TICK_MS)
    assert await fresh.rest() == b""
    assert await used.rest() == b""
    assert listener.context.metrics.cut_total["idle"] == 2


async def test_request_restarts_the_idle_time(listener: HttpListener, connect: Connect, clock: ManualClock) -> None:
    """A connection in use is not idle."""
    client = await connect(listener)
    for _ in range(3):
        assert (await client.ask(get("/healthz"))).status == 200
        clock.advance(70_000)
    assert (await client.ask(get("/healthz"))).status == 200


async def test_waiting_poll_is_not_idle(
    listener: HttpListener, connect: Connect, clock: ManualClock, fake: FakeService
) -> None:
    """It may wait for any time."""
    client = await connect(listener)
    client.send(LONG_POLL)
    await fake.asked.wait()
    clock.advance(280_000)
    assert await still_open(client)
    assert fake.given_up == 0


async def test_client_that_does_not_read_is_disconnected(
    serve: Serve, connect: Connect, clock: ManualClock, fake: FakeService
) -> None:
    """Its replies are buffered up to a limit, then no further request is started, then it is disconnected."""
    listener = await serve(write_buffer_bytes=10_000, pipeline_max=2)
    fake.ready = [Delivery(bytes(16), "r", b"x" * 1_000_000, 1, 0, {}, None, 1, 2, "default", "q")]
    client = await connect(listener)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # StreamWriter's transport can read
    client.send(post("/v1/queues/q/poll", "{}") * 100)
    (connection,) = connections_of(listener)
    await until_not(lambda: connection._writable is None)
    await asyncio.sleep(0.05)
    begun = len(fake.calls)
    assert begun < 40
    assert connection._transport.get_write_buffer_size() < 2_500_000
    clock.advance(20_000)
    assert listener.context.connections
    assert len(fake.calls) == begun
    clock.advance(10_000 + 2 * TICK_MS)
    await until_not(lambda: listener.context.connections)
    assert listener.context.metrics.cut_total["write"] == 1


async def test_total_unsent_reply_bytes_are_limited(serve: Serve, connect: Connect, fake: FakeService) -> None:
    """Above the limit, the client with the most unsent bytes is disconnected first; others are served."""
    listener = await serve(unsent_bytes_max=30_000_000)
    fake.ready = [Delivery(bytes(16), "r", b"x" * 9_000_000, 1, 0, {}, None, 1, 2, "default", "q")]
    for _ in range(12):
        client = await connect(listener)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # StreamWriter's transport can read
        client.send(post("/v1/queues/q/poll", "{}"))
    await until_not(lambda: len(fake.calls) < 12)
    assert sum(connection.unsent_bytes() for connection in listener.context.connections) <= 30_000_000
    assert listener.context.metrics.cut_total["write"] >= 1
    assert (await (await connect(listener)).ask(get("/healthz"))).status == 200


async def test_client_that_reads_slowly_is_served(
    serve: Serve, connect: Connect, clock: ManualClock, fake: FakeService
) -> None:
    """It must read something now and then."""
    listener = await serve(write_buffer_bytes=10_000)
    fake.ready = [Delivery(bytes(16), "r", b"x" * 9_000_000, 1, 0, {}, None, 1, 2, "default", "q")]
    client = await connect(listener)
    client.send(post("/v1/queues/q/poll", "{}"))
    await fake.asked.wait()
    got = 0
    while got < 9_000_000:
        async with asyncio.timeout(20):
            part = await client.reader.read(900_000)
        assert part, "cut off"
        got += len(part)
        await asyncio.sleep(0.005)
        clock.advance(1_000)
    assert listener.context.metrics.cut_total["write"] == 0


async def test_refused_client_has_limited_time_to_read_the_error(
    listener: HttpListener, connect: Connect, clock: ManualClock
) -> None:
    """It may keep sending, but not forever."""
    client = await connect(listener)
    client.send(b"nonsense\r\n\r\n")
    assert (await client.reply()).status == 400
    client.send(b"more" * 1_000)
    await asyncio.sleep(0.01)
    assert len(listener.context.connections) == 1
    clock.advance(2_000 + TICK_MS)
    await until_not(lambda: listener.context.connections)


@pytest.mark.parametrize("slow", [b"G", b"GET / HTTP/1.1\r\n", ADD[:-1]])
async def test_slow_connections_do_not_block_others(listener: HttpListener, connect: Connect, slow: bytes) -> None:
    """Two hundred slow connections do not delay a fast one."""
    for _ in range(200):
        (await connect(listener)).send(slow)
    client = await connect(listener)
    assert (await client.ask(ADD)).status == 200
