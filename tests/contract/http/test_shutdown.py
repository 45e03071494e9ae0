"""Closing: gracefully within a time limit, or forced by a second call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.server import Server
from tenantq.settings import ServerSettings
from tests.contract.http.raw_client import ADD, LONG_POLL, RawClient, connections_of, get, post, until_not
from tests.contract.http.real_server import ADMIN

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.http import HttpListener
    from tenantq.runtime.clock import ManualClock
    from tests.contract.http.conftest import Connect
    from tests.contract.http.fake_service import FakeService


async def test_idle_connections_are_closed_at_once(listener: HttpListener, connect: Connect) -> None:
    """Nothing waits for them."""
    client = await connect(listener)
    assert (await client.ask(get("/healthz"))).status == 200
    await listener.close()
    assert await client.rest() == b""
    with pytest.raises(ConnectionRefusedError):
        await connect(listener)


async def test_70_requests_in_flight_are_finished(listener: HttpListener, connect: Connect, fake: FakeService) -> None:
    """The reply says that the connection closes; pipelined requests after it are not started."""
    fake.held = asyncio.Event()
    client = await connect(listener)
    client.send(ADD + ADD)
    await fake.asked.wait()
    closing = asyncio.ensure_future(listener.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    fake.held.set()
    reply = await client.reply()
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    await closing
    assert await client.rest() == b""
    assert len(fake.calls) == 1


async def test_waiting_polls_get_an_empty_reply(listener: HttpListener, connect: Connect, fake: FakeService) -> None:
    """They get it at once, whatever they wait for."""
    poller, waiter = await connect(listener), await connect(listener)
    poller.send(LONG_POLL)
    waiter.send(get("/v1/queues/q/messages/x/result?wait_ms=60000"))
    await until_not(lambda: len(fake.calls) < 2)
    await listener.close()
    reply = await poller.reply()
    assert (reply.status, reply.json(), reply.headers["connection"]) == (200, {"messages": []}, "close")
    reply = await waiter.reply()
    assert (reply.status, reply.json(), reply.headers["connection"]) == (200, {"status": "pending"}, "close")
    assert await poller.rest() == b""


async def test_partly_received_request_may_finish(listener: HttpListener, connect: Connect, fake: FakeService) -> None:
    """A poll in it no longer waits."""
    adder, poller = await connect(listener), await connect(listener)
    adder.send(ADD[:-5])
    poller.send(LONG_POLL[:-5])
    await until_not(lambda: sum(connection._parser.body_bytes > 0 for connection in connections_of(listener)) < 2)
    closing = asyncio.ensure_future(listener.close())
    await asyncio.sleep(0)
    assert (await adder.ask(ADD[-5:])).headers["connection"] == "close"
    assert (await poller.ask(LONG_POLL[-5:])).json() == {"messages": []}
    await closing


async def test_time_to_finish_is_limited(
    listener: HttpListener, connect: Connect, fake: FakeService, clock: ManualClock
) -> None:
    """Then the remaining connections are cut."""
    fake.held = asyncio.Event()
    client = await connect(listener)
    client.send(ADD)
    await fake.asked.wait()
    closing = asyncio.ensure_future(listener.close(grace_ms=5_000))
    await asyncio.sleep(0)
    clock.advance(4_999)
    await asyncio.sleep(0.01)
    assert not closing.done()
    clock.advance(1)
    async with asyncio.timeout(20):
        await closing
    assert await client.rest() == b""
    fake.held.set()


async def test_70_second_close_is_immediate(listener: HttpListener, connect: Connect, fake: FakeService) -> None:
    """Both calls return, and no connection is left."""
    fake.held = asyncio.Event()
    client = await connect(listener)
    client.send(post("/v1/queues/q/messages", '{"messages":[{"body":"x"}]}'))
    await fake.asked.wait()
    first = asyncio.ensure_future(listener.close(grace_ms=1_000_000))
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await listener.close()
        await first
    assert not listener.context.connections
    assert await client.rest() == b""
    fake.held.set()


async def test_closing_a_listener_that_never_started(listener: HttpListener) -> None:
    """Closing is safe at any time, any number of times."""
    await listener.close()
    await listener.close()


async def test_70_stop_is_announced_while_everything_is_still_served(tmp_path: Path, clock: ManualClock) -> None:
    """Load balancers switch before the first connection is refused."""
    settings = ServerSettings(data_dir=str(tmp_path), http="127.0.0.1:0", rpc="off", notice_ms=5_000)
    server = Server(settings, admin_token=ADMIN, clock=clock)
    await server.start()
    client = await RawClient.open(server.port)
    assert (await client.ask(get("/readyz"))).status == 200
    closing = asyncio.ensure_future(server.close())
    reply = await client.ask(get("/readyz"))
    assert (reply.status, reply.json()["status"]) == (503, "closing")
    fresh = await RawClient.open(server.port)
    own = post("/v1/queues/q/messages", '{"messages":[{"body":"x"}]}', f"Authorization: Bearer {ADMIN}")
    assert (await fresh.ask(own)).status == 200
    assert not closing.done()
    clock.advance(5_000)
    async with asyncio.timeout(20):
        await closing
    for one in (client, fresh):
        assert await one.rest() == b""
        await one.close()
