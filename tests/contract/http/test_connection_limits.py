"""Limits on connections: silent ones without a credential are evicted, and no address or credential takes all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from tenantq.http import HttpListener, HttpSettings, TlsFiles
from tests.contract.http.certificates import Authority
from tests.contract.http.raw_client import LONG_POLL, RawClient, get, post, until_not
from tests.contract.http.test_tls import trusting

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock
    from tenantq.service.service import Service
    from tests.contract.http.conftest import Connect, Serve
    from tests.contract.http.fake_service import FakeService


def _add(token: str) -> bytes:
    return post("/v1/queues/work/messages", '{"messages":[{"body":"x"}]}', f"Authorization: Bearer {token}")


def _files(directory: Path) -> TlsFiles:
    return TlsFiles(certificate=str(directory / "localhost.crt"), key=str(directory / "localhost.key"))


async def test_silent_connections_without_a_credential_are_evicted(serve: Serve, connect: Connect) -> None:
    """New connections replace the oldest of them. A connection with an accepted credential stays."""
    listener = await serve(connections_max=4, connections_per_address_max=4)
    known = await connect(listener)
    assert (await known.ask(_add("key"))).status == 200
    silent = [await connect(listener) for _ in range(12)]
    silent[-1].send(b"POST /v1/que")  # half a head counts as silence
    await until_not(lambda: listener.context.metrics.connections_total < 13)
    for client in silent[:-3]:
        assert await client.rest() == b""
    assert (await (await connect(listener)).ask(_add("other"))).status == 200
    assert (await known.ask(_add("key"))).status == 200
    assert (await (await connect(listener)).ask(get("/healthz"))).status == 200
    assert listener.context.table.evicted_total == {"address": 11, "credential": 0, "server": 0}
    assert listener.context.metrics.connections_refused_total == 0


async def test_one_address_cannot_take_all_connections(serve: Serve, connect: Connect) -> None:
    """This holds even with valid credentials. When one leaves, there is room again."""
    listener = await serve(connections_max=8)
    clients = [await connect(listener) for _ in range(4)]
    for number, client in enumerate(clients):
        assert (await client.ask(_add(f"key-{number}"))).status == 200
    reply = await (await connect(listener)).reply()
    assert (reply.status, reply.json()["code"]) == (503, "unavailable")
    await clients[0].close()
    await until_not(lambda: len(listener.context.connections) == 4)
    assert (await (await connect(listener)).ask(_add("key"))).status == 200


async def test_one_credential_cannot_take_all_connections(serve: Serve, connect: Connect, fake: FakeService) -> None:
    """Its oldest idle connection is evicted. If all are busy, the new one closes after its reply."""
    listener = await serve(connections_per_credential_max=2)
    first, second, third = [await connect(listener) for _ in range(3)]
    for client in (first, second, third):
        assert (await client.ask(_add("key"))).status == 200
    assert await first.rest() == b""
    polls = [post("/v1/queues/work/poll", '{"wait_ms":60000}', "Authorization: Bearer key") for _ in range(2)]
    for client, poll in zip((second, third), polls, strict=True):
        fake.asked.clear()
        client.send(poll)
        await fake.asked.wait()
    fourth = await connect(listener)
    reply = await fourth.ask(_add("key"))
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert await fourth.rest() == b""
    assert listener.context.table.evicted_total["credential"] == 1


async def test_refused_credential_does_not_protect_a_connection(
    serve: Serve, connect: Connect, fake: FakeService
) -> None:
    """It is treated like one without a credential."""
    listener = await serve(connections_max=2, connections_per_address_max=2)
    guessing = await connect(listener)
    assert (await guessing.ask(get("/v1/unknown", "Authorization: Bearer guess"))).status == 404
    clients = [await connect(listener) for _ in range(2)]
    for client in clients:
        assert (await client.ask(_add("key"))).status == 200
    assert await guessing.rest() == b""


async def test_long_poll_is_not_silent(serve: Serve, connect: Connect, fake: FakeService) -> None:
    """A connection with a call in progress is not evicted, with or without a credential."""
    listener = await serve(connections_max=2, connections_per_address_max=2)
    waiting = await connect(listener)
    waiting.send(LONG_POLL)
    await fake.asked.wait()
    silent = [await connect(listener) for _ in range(3)]
    assert [await client.rest() for client in silent[:2]] == [b"", b""]
    assert not waiting.reader.at_eof()


async def test_unfinished_tls_handshakes_are_evicted(
    tmp_path: Path, fake: FakeService, clock: ManualClock, connect: Connect
) -> None:
    """Clients that connect and never start TLS block nobody."""
    authority = Authority(tmp_path)
    authority.issue("localhost")
    settings = HttpSettings(connections_max=4, connections_per_address_max=4)
    listener = HttpListener(cast("Service", fake), settings, clock=clock)
    await listener.start("127.0.0.1", 0, _files(tmp_path))
    try:
        silent = [await connect(listener) for _ in range(10)]
        await until_not(lambda: listener.context.table.evicted_total["address"] < 6)
        assert [await client.rest() for client in silent[:6]] == [b""] * 6
        client = await connect(listener, trusting(authority))
        assert (await client.ask(_add("key"))).status == 200
        assert len(listener.context.table) == 4
        more = [await connect(listener) for _ in range(10)]
        await until_not(lambda: listener.context.table.evicted_total["address"] < 17)
        assert (await client.ask(_add("key"))).status == 200
        assert await more[0].rest() == b""
    finally:
        closing = asyncio.ensure_future(listener.close())
        await asyncio.sleep(0)
        await listener.close()
        await closing
    assert len(listener.context.table) == 0


async def test_first_bytes_after_a_handshake_are_not_lost(
    tmp_path: Path, fake: FakeService, clock: ManualClock
) -> None:
    """A request that the client sends with the end of its handshake is answered."""
    authority = Authority(tmp_path)
    authority.issue("localhost")
    listener = HttpListener(cast("Service", fake), clock=clock)
    await listener.start("127.0.0.1", 0, _files(tmp_path))
    context = trusting(authority)

    async def ask() -> int:
        client = await RawClient.open(listener.port, context)
        try:
            return (await client.ask(_add("key"))).status
        finally:
            await client.close()

    try:
        assert await asyncio.gather(*[ask() for _ in range(64)]) == [200] * 64
    finally:
        await listener.close()
