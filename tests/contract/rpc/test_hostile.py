"""Peers that send garbage, too much or too slowly, or do not read, lose their connection; nothing else breaks."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import TYPE_CHECKING, Any, cast

import capnp
import pytest

from tenantq.rpc.framing import WORD, read_frame
from tenantq.rpc.listener import RpcListener
from tenantq.rpc.settings import RpcSettings
from tenantq.runtime.clock import ManualClock
from tenantq.runtime.listener import TICK_MS
from tests.contract.http.raw_client import until_not
from tests.contract.http.real_server import ADMIN
from tests.contract.rpc.client import RpcClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tenantq.rpc.connection import RpcConnection
    from tenantq.server import Server
    from tests.contract.rpc.conftest import Connect, Serve


FINISH, RELEASE = 4, 6  # kinds of message in Cap'n Proto's rpc.capnp


class Raw:
    """A socket without an RPC library."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int | None) -> Raw:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def rest(self) -> bytes:
        """Return what comes until the server closes."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""  # closed with unread data of ours
        finally:
            self.writer.close()


async def record(server: Server, *calls: tuple[str, dict[str, Any]]) -> bytes:
    """Return the bytes that a real client sends for a login and some calls, without those that release them."""
    sent = bytearray()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection("127.0.0.1", server.rpc_port)

        async def back() -> None:
            while data := await there_reader.read(65_536):
                writer.write(data)

        task = asyncio.ensure_future(back())
        while data := await reader.read(65_536):
            sent.extend(data)
            there.write(data)
        task.cancel()
        there.close()
        writer.close()

    between = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    client = await RpcClient.open(between.sockets[0].getsockname()[1])
    session = client.bootstrap.login(token=ADMIN).session
    await asyncio.gather(*(getattr(session, method)(**given) for method, given in calls))
    client.close()
    between.close()
    return b"".join(message for message in _messages(bytes(sent)) if _kind(message) not in {FINISH, RELEASE})


def _messages(data: bytes) -> list[bytes]:
    found = []
    while data:
        frame = read_frame(data, 64, 1 << 30)
        assert frame is not None
        found.append(data[: frame.size])
        data = data[frame.size :]
    return found


def _kind(message: bytes) -> int:
    frame = read_frame(message, 64, 1 << 30)
    assert frame is not None
    return struct.unpack_from("<H", message, frame.head_bytes + WORD)[0]  # type: ignore[no-any-return]  # a number


@pytest.fixture
async def slow_listener(server: Server) -> AsyncIterator[RpcListener]:
    """Start a second listener of the same service, on a clock that the test moves."""
    listener = RpcListener(server.service, RpcSettings(message_bytes_max=1 << 20), clock=ManualClock())
    await listener.start("127.0.0.1", 0)
    yield listener
    closing = asyncio.ensure_future(listener.close())
    await asyncio.sleep(0)
    await listener.close()
    await closing


def _connections(listener: RpcListener) -> set[RpcConnection]:
    return cast("set[RpcConnection]", listener.context.connections)


def _clock(listener: RpcListener) -> ManualClock:
    assert isinstance(listener.context.clock, ManualClock)
    return listener.context.clock


async def _serves(server: Server, connect: Connect) -> None:
    """Check that another client is still served."""
    client = await connect(server)
    (id,) = await client.add(b"still here", queue="others")
    assert [one.id for one in await client.poll(queue="others")] == [id]
    client.close()


TABLES = {
    "a segment count of four billion": struct.pack("<II", 0xFFFF_FFFE, 0),
    "many segments": struct.pack("<II", 400, 1),
    "a segment of 32 GiB": struct.pack("<II", 0, 0xFFFF_FFFF),
    "segments of 8 GiB together": struct.pack("<IIIIII", 3, 1 << 28, 1 << 28, 1 << 28, 1 << 28, 0),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c403030000000000"),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
async def test_oversized_claims_are_refused_and_closed(server: Server, table: bytes) -> None:
    """Nothing is allocated for them, and the peer gets the reason as a protocol message."""
    raw = await Raw.open(server.rpc_port)
    raw.writer.write(table)
    said = await raw.rest()
    assert b"this is not Cap'n Proto" in said or said == b""
    listener = server.transports.rpc
    assert listener is not None
    assert (listener.context.metrics.malformed_total, listener.context.buffered_bytes) == (1, 0)


async def test_garbage_closes_only_its_connection(server: Server, connect: Connect) -> None:
    """Covers random bytes, framed or not, and a real conversation with flipped bits, cut short or repeated."""
    dice = random.Random(42)
    real = await record(
        server, ("add", {"ref": {"queue": "q"}, "bodies": [b"x", b"y"]}), ("poll", {"ref": {"queue": "q"}, "max": 2})
    )
    junk: list[bytes] = [dice.randbytes(dice.randrange(1, 2_000)) for _ in range(20)]
    for _ in range(20):
        words = dice.randrange(1, 40)
        junk.append(struct.pack("<II", 0, words) + dice.randbytes(8 * words))
    for _ in range(150):
        turned = bytearray(real)
        for _ in range(dice.randrange(1, 6)):
            turned[dice.randrange(len(turned))] ^= 1 << dice.randrange(8)
        junk.append(bytes(turned))
    junk += [real[: dice.randrange(len(real))] for _ in range(20)] + [real + real, bytes(8) * 100]
    for data in junk:
        raw = await Raw.open(server.rpc_port)
        raw.writer.write(data)
        raw.writer.write_eof()
        said = await raw.rest()
        assert b"/site-packages/" not in said
        assert b"Traceback" not in said
    await _serves(server, connect)
    listener = server.transports.rpc
    assert listener is not None
    await until_not(lambda: len(listener.context.connections) > 1 or server.service.admission.slots.in_flight)
    assert listener.context.buffered_bytes == 0


async def test_pointers_to_the_same_bytes_are_refused(serve: Serve, connect: Connect) -> None:
    """A small message must not become large when read; the connection stays open."""
    server = await serve(rpc_listener=RpcSettings(message_bytes_max=16 << 10))
    data = await record(server, ("add", {"bodies": [bytes(4_000), *[b"12345678"] * 99]}))
    first = struct.unpack_from("<Q", data, data.index(struct.pack("<I", (4_000 << 3) | 2)) - 4)[0]
    assert first & 3 == 1  # a list pointer
    at = data.index(struct.pack("<Q", first))
    twisted = bytearray(data)
    for number in range(1, 100):
        offset = ((first & 0xFFFF_FFFF) >> 2) - number
        struct.pack_into("<Q", twisted, at + 8 * number, (first & ~0xFFFF_FFFF) | ((offset & 0x3FFF_FFFF) << 2) | 1)
    raw = await Raw.open(server.rpc_port)
    raw.writer.write(bytes(twisted))
    said = b""
    while b"malformed request" not in said:
        part = await asyncio.wait_for(raw.reader.read(65_536), 10)
        assert part, said
        said += part
    assert b"invalid" in said
    raw.writer.close()
    await _serves(server, connect)


async def test_client_that_does_not_read_is_disconnected(serve: Serve, connect: Connect) -> None:
    """This happens when its unread replies exceed the buffer limit."""
    server = await serve(rpc_listener=RpcSettings(unsent_bytes_max=12 << 20))
    listener = server.transports.rpc
    assert listener is not None
    client = await connect(server)
    await client.add(*[bytes(1 << 20)] * 4)
    client.close()
    peeks = await record(await serve(), *[("peek", {"ref": {"queue": "q"}})] * 4)  # the sent bytes are the same
    raw = await Raw.open(server.rpc_port)
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport can
    raw.writer.write(peeks)
    await until_not(lambda: not listener.context.metrics.cut_total["write"])
    raw.writer.close()
    await _serves(server, connect)


async def test_slow_clients_time_out(server: Server, slow_listener: RpcListener) -> None:
    """Covers clients that do not log in and messages that do not end."""
    listener, clock = slow_listener, _clock(slow_listener)
    stranger = await Raw.open(listener.port)
    client = await RpcClient.open(listener.port)
    await client.login(ADMIN)
    assert len(listener.context.connections) == 2
    clock.advance(listener.context.settings.login_timeout_ms + TICK_MS)
    assert await stranger.rest() == b""
    assert listener.context.metrics.cut_total == {"login": 1, "call": 0, "message": 0, "write": 0}
    assert (await client.ask("putQueue", config="{}")).which() == "queue"
    half = await record(server, ("add", {"bodies": [bytes(100_000)]}))
    raw = await Raw.open(listener.port)
    raw.writer.write(half[:-50_000])
    await until_not(lambda: not any(connection.unfinished_bytes() for connection in _connections(listener)))
    await until_not(lambda: not all(connection.sessions for connection in _connections(listener)))
    assert listener.context.buffered_bytes > 100_000
    clock.advance(listener.context.settings.message_timeout_ms)
    clock.advance(listener.context.settings.message_timeout_ms + TICK_MS)
    assert b"Traceback" not in await raw.rest()
    assert (listener.context.metrics.cut_total["message"], listener.context.buffered_bytes) == (1, 0)
    client.close()


async def test_idle_connection_gets_a_message_and_is_closed(slow_listener: RpcListener) -> None:
    """Waiting polls and recent calls keep it open; messages that call nothing do not."""
    listener, clock = slow_listener, _clock(slow_listener)
    nearly_ms = listener.context.settings.idle_timeout_ms - 2 * TICK_MS
    silent, waiting, busy, chatty = [await RpcClient.open(listener.port) for _ in range(4)]
    for client in (silent, waiting, busy, chatty):
        await client.login(ADMIN)
    await waiting.ask("putQueue", config="{}")
    poll = asyncio.ensure_future(waiting.ask("poll", waitMs=60_000))
    await until_not(lambda: not any(connection.calls for connection in _connections(listener)))
    clock.advance(nearly_ms)
    assert (await busy.ask("stats")).which() == "stats"
    bootstrap = chatty._client.bootstrap()
    await until_not(lambda: sum(connection._bootstraps for connection in _connections(listener)) < 5)
    clock.advance(3 * TICK_MS)
    await until_not(lambda: len(listener.context.connections) > 2)
    assert listener.context.metrics.cut_total["call"] == 2
    with pytest.raises(capnp.KjException, match="this connection was idle for too long"):
        await silent.ask("stats")
    assert (await busy.ask("add", bodies=[b"x"])).which() == "messages"
    assert [one.body for one in (await poll).messages] == [b"x"]
    clock.advance(nearly_ms)
    assert len(listener.context.connections) == 2
    del bootstrap
    for client in (silent, waiting, busy, chatty):
        client.close()


async def test_connections_with_and_without_login_are_limited(serve: Serve, connect: Connect) -> None:
    """Refused peers get the reason."""
    limits = RpcSettings(
        strangers_messages_max=4, connections_max=2, connections_per_address_max=2, connections_per_credential_max=2
    )
    server = await serve(rpc_listener=limits)
    client, other = await connect(server, None), await connect(server)
    logins = [client.login("wrong") for _ in range(6)]
    done = await asyncio.gather(*logins, return_exceptions=True)
    assert any("log in first" in str(one) for one in done)
    raws = [await Raw.open(server.rpc_port) for _ in range(2)]
    assert await raws[0].rest() == b""  # the next connection replaces a silent one without a login
    await other.add(b"x")
    raws[1].writer.close()
    await connect(server)
    assert b"too many connections" in await (await Raw.open(server.rpc_port)).rest()
    await other.add(b"x")


async def test_calls_above_the_limit_of_a_connection_stay_unread(serve: Serve, connect: Connect) -> None:
    """All of them get a reply in the end."""
    server = await serve(rpc_listener=RpcSettings(calls_max=4))
    listener = server.transports.rpc
    assert listener is not None
    client = await connect(server)
    adds = [asyncio.ensure_future(client.add(b"x")) for _ in range(100)]
    most = 0
    while not all(add.done() for add in adds):
        most = max(most, *(len(connection.calls) for connection in _connections(listener)))
        await asyncio.sleep(0)
    assert len({id for add in adds for id in add.result()}) == 100
    assert most == 4
