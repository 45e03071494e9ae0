"""Links between shards when one end stalls, fails, lies or disconnects early."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tenantq.cluster import frames, link
from tenantq.cluster.frames import CHALLENGE, HELLO, PROOF, REPLY, PeerConnection
from tenantq.cluster.link import HEARTBEATS_MISSED_MAX, Link
from tenantq.cluster.peer_server import PeerRequest, PeerServer
from tenantq.cluster.peers import Peers
from tenantq.cluster.shard_spec import ShardSpec
from tenantq.domain.placement import TopologyShard
from tenantq.errors import ShardDown, TenantqError, Unavailable
from tenantq.runtime.backoff import Backoff
from tenantq.runtime.clock import ManualClock
from tenantq.runtime.loop_slices import SLICE_BYTES
from tests.unit.client.doubles import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SECRET = "known to all shards"  # noqa: S105  # of links that live as long as a test


class PartsNeedingClose:
    """A stream of parts that must be closed explicitly, and read by the task that created it."""

    last: PartsNeedingClose

    def __init__(self) -> None:
        self.left = [b"one", b"two"]
        self.maker = asyncio.current_task()
        self.is_closed = False
        PartsNeedingClose.last = self

    def __aiter__(self) -> PartsNeedingClose:
        return self

    async def __anext__(self) -> bytes:
        assert asyncio.current_task() is self.maker
        if not self.left:
            raise StopAsyncIteration
        return self.left.pop(0)

    async def aclose(self) -> None:
        self.is_closed = True


class Peer:
    """The answering side of a link, and the state of the calling side."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.dropped = 0
        self.up = asyncio.Event()

    async def answer(self, request: PeerRequest) -> bytes:
        if request.payload == b"later":
            await self.may_answer.wait()
        request.parts = PartsNeedingClose() if request.payload == b"archive" else self._parts()
        return b"head"

    async def _parts(self) -> AsyncIterator[bytes]:
        try:
            yield b"one"
            raise OSError("the segment is gone")
        finally:
            self.dropped += 1

    async def begun(self, _: Link) -> None:
        self.up.set()


@asynccontextmanager
async def linked_peers() -> AsyncIterator[tuple[Peer, PeerServer, Link]]:
    """Yield an established link with both ends."""
    peer = Peer()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        server = PeerServer(SECRET, {"kind": peer.answer})
        await server.open(sock)
        calling = Link(1, sock.getsockname()[1], (SECRET, 7), peer.begun)
        calling.start()
        await peer.up.wait()
        yield peer, server, calling
        await calling.close()
        await server.close()


async def test_an_error_in_the_parts_of_an_answer_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    """The reader of the next part does not wait forever."""
    async with linked_peers() as (_, server, calling):
        pending = calling.begin("kind", b"")
        assert await pending.reply == b"head"
        with pytest.raises(TenantqError, match="see the server log"):
            _ = [part async for part in pending.parts()]
        assert "the segment is gone" in caplog.text
        assert [caller.requests for caller in server._callers.values()] == [{}]


@pytest.mark.parametrize("whole", [True, False])
async def test_the_parts_of_an_answer_are_closed(*, whole: bool) -> None:
    """Read in full or abandoned, by the task that created them, so that request slots are released."""
    async with linked_peers() as (_, server, calling):
        pending = calling.begin("kind", b"archive")
        await pending.reply
        parts = pending.parts()
        assert await anext(parts) == b"one"
        if whole:
            assert [part async for part in parts] == [b"two"]
        await parts.aclose()  # type: ignore[attr-defined]  # it is a generator
        await until(lambda: PartsNeedingClose.last.is_closed)
        assert [caller.requests for caller in server._callers.values()] == [{}]


@pytest.mark.parametrize("pulled", [0, 1])
async def test_a_link_lost_between_two_parts_ends_the_answer(pulled: int) -> None:
    """Nobody waits for a part when the link is lost, and the next reader must not wait forever."""
    async with linked_peers() as (_, server, calling):
        pending = calling.begin("kind", b"archive")
        await pending.reply
        parts = pending.parts()
        for _ in range(pulled):
            assert await anext(parts) == b"one"
        _disconnect(server)
        await until(lambda: not calling.is_up)
        await until(lambda: calling.is_up)
        with pytest.raises(ShardDown):
            async with asyncio.timeout(5):
                await anext(parts)


async def test_a_request_abandoned_before_its_reply_leaves_nothing_behind() -> None:
    """The parts that would have followed are closed."""
    async with linked_peers() as (peer, server, calling):
        pending = calling.begin("kind", b"later")
        (caller,) = server._callers.values()
        await until(lambda: caller.requests)
        (request,) = caller.requests.values()
        pending.stop(is_gone=True)
        await until(lambda: request.is_gone)
        peer.may_answer.set()
        await until(lambda: request.task is not None and request.task.done())
        assert (caller.requests, request.parts is not None and request.parts.ag_frame) == ({}, None)  # type: ignore[attr-defined]  # of a generator


async def test_a_shard_that_misses_heartbeats_is_down() -> None:
    """Waiting requests fail. Heartbeats sent late by this shard itself do not count as missed."""
    async with linked_peers() as (_, _, calling):
        pending = calling.begin("kind", b"later")
        assert not calling.send_heartbeat()
        assert [calling.send_heartbeat(is_late=True) for _ in range(5)] == [False] * 5
        assert [calling.send_heartbeat() for _ in range(HEARTBEATS_MISSED_MAX)] == [False] * (
            HEARTBEATS_MISSED_MAX - 1
        ) + [True]
        with pytest.raises(ShardDown):
            await pending.reply
        assert not calling.is_up
        await until(lambda: calling.is_up)
        for _ in range(2 * HEARTBEATS_MISSED_MAX):
            assert not calling.send_heartbeat()
            await until(lambda: calling._connection is not None and calling._connection.has_heard)
        assert calling.is_ready


async def test_a_request_has_a_timeout() -> None:
    """A later answer is ignored."""
    async with linked_peers() as (peer, _, calling):
        with pytest.raises(ShardDown, match="in time"):
            await calling.begin("kind", b"later").within(1)
        assert calling._pending == {}
        peer.may_answer.set()


async def test_a_peer_that_stops_reading_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The amount of unsent data is bounded."""
    monkeypatch.setattr(frames, "UNSENT_BYTES_MAX", 1 << 20)
    async with linked_peers() as (_, server, calling):
        (caller,) = server._callers.values()
        assert caller.connection._transport is not None
        caller.connection._transport.pause_reading()
        with pytest.raises(Unavailable, match="too many requests are pending for shard"):
            _ = [calling.begin("kind", bytes(100_000)) for _ in range(10_000)]
        for _ in range(10_000):
            calling.send("more", bytes(100_000))
            await asyncio.sleep(0)
            if not calling.is_up:
                break
        assert not calling.is_up


async def test_an_end_with_another_secret_is_logged_once_and_tried_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other end is logged again when it knows the secret."""
    monkeypatch.setattr(link, "DISTRUST", Backoff(base_ms=1, max_ms=8))
    caplog.set_level("INFO", "tenantq.shards")
    peer, delays = Peer(), list[float]()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        server = PeerServer("another secret", {"kind": peer.answer})
        await server.open(sock)
        calling = Link(1, sock.getsockname()[1], (SECRET, 7), peer.begun)
        calling.start()
        while len(delays) < 5:
            await until(lambda: calling._distrusted > len(delays))
            delays.append(calling.reconnect_s)
        assert delays == sorted(delays)
        assert (delays[0] < delays[-1], delays[-1]) == (True, 0.008)
        assert [one.levelname for one in caplog.records] == ["WARNING"]
        server._secret = SECRET
        await peer.up.wait()
        assert [one.levelname for one in caplog.records] == ["WARNING", "INFO"]
        assert calling.reconnect_s == link.RECONNECT_S
        await calling.close()
        await server.close()


async def test_a_host_whose_network_is_cut_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt whose packets are lost ends before the kernel gives it up, which takes minutes."""
    monkeypatch.setattr(link, "CONNECT_S", 0.1)
    loop, is_cut = asyncio.get_running_loop(), True
    connect = loop.create_connection

    async def connect_unless_cut(*args: Any, **options: Any) -> Any:
        nonlocal is_cut
        if is_cut:
            is_cut = False
            await loop.create_future()
        return await connect(*args, **options)

    monkeypatch.setattr(loop, "create_connection", connect_unless_cut)
    async with asyncio.timeout(10), linked_peers() as (_, _, calling):
        assert calling.is_up


async def test_a_host_that_dies_during_the_handshake_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepted the connection and never answers, and nothing ends the connection."""
    monkeypatch.setattr(link, "CONNECT_S", 0.1)
    peer = Peer()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        calling = Link(1, sock.getsockname()[1], (SECRET, 7), peer.begun)
        calling.start()
        accepted, _ = await asyncio.get_running_loop().sock_accept(sock)
        with accepted:
            server = PeerServer(SECRET, {"kind": peer.answer})
            await server.open(sock)
            await asyncio.wait_for(peer.up.wait(), 10)
        await calling.close()
        await server.close()


async def test_strangers_at_the_internal_address_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """They are logged again after a process with the secret has connected."""
    async with linked_peers() as (peer, server, calling):
        port = calling._port
        for expected in (1, 1, 2):
            if expected == 2:
                peer.up.clear()
                _disconnect(server)
                await peer.up.wait()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_framed(PROOF, bytes(32)))
            assert await reader.read() == b""
            writer.close()
            assert caplog.text.count("does not know the secret") == expected


async def test_an_impostor_on_a_shards_port_learns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret is not sent, and the link does not come up."""
    heard: list[bytes] = []
    ended = asyncio.Event()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))
        writer.write(_framed(CHALLENGE, bytes(32), bytes(32)))
        heard.append(await reader.read())
        writer.close()
        ended.set()

    monkeypatch.setattr(link, "RECONNECT_S", 60)
    async with await asyncio.start_server(impostor, "127.0.0.1", 0) as server:
        calling = Link(1, server.sockets[0].getsockname()[1], (SECRET, 7), Peer().begun)
        calling.start()
        await ended.wait()
        assert (calling.is_up, heard[1], SECRET.encode() in heard[0]) == (False, b"", False)
        await calling.close()


async def test_a_caller_without_the_secret_is_disconnected() -> None:
    """Neither a hello alone nor a guessed proof is accepted."""
    async with linked_peers() as (_, server, _):
        assert server._server is not None
        reader, writer = await asyncio.open_connection(*server._server.sockets[0].getsockname())
        writer.write(_framed(HELLO, 3, bytes(32)) + _framed(PROOF, bytes(32)))
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        assert msgspec.msgpack.decode(answer)[0] == CHALLENGE
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        assert [caller.shard for caller in server._callers.values()] == [7]
        writer.close()


def _disconnect(server: PeerServer) -> None:
    for caller in list(server._callers.values()):
        caller.connection.close()


def _framed(*frame: Any) -> bytes:
    data = msgspec.msgpack.encode(frame)
    return len(data).to_bytes(4) + data


@asynccontextmanager
async def two_shards() -> AsyncIterator[list[Peers]]:
    """Yield two shards that are linked."""
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = tuple(sock.getsockname()[1] for sock in socks)
    shards = (TopologyShard("0"), TopologyShard("1"))
    pair = []
    for number, sock in enumerate(socks):
        spec = ShardSpec(number=number, shards=shards, secret=SECRET, peer_ports=ports, home_dir="")
        sock.setblocking(False)
        pair.append(Peers(spec, ManualClock()))
        await pair[-1].open(sock)
    for peers in pair:
        assert await peers.wait_for_all(10_000)
    yield pair
    for peers in pair:
        await peers.close()
    for sock in socks:
        sock.close()


async def test_a_shard_considered_down_is_connected_again() -> None:
    """Until it answers again, it counts as down."""
    async with two_shards() as (_, second):
        for _ in range(HEARTBEATS_MISSED_MAX + 1):
            second._heartbeats.send()
        assert not second.runs(0)
        await until(lambda: second.runs(0))


@pytest.mark.parametrize("size", [SLICE_BYTES, SLICE_BYTES + 1, 5 * SLICE_BYTES + 3])
async def test_large_payloads_arrive_whole_and_in_order(size: int) -> None:
    """In both directions, also if others are sent at the same time."""
    payloads = [bytes([number]) * (size + number) for number in range(4)] + [b"small"]
    up = asyncio.Event()

    async def echo(request: PeerRequest) -> bytes:
        return bytes(request.payload)

    async def begun(_: Link) -> None:
        up.set()

    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        server = PeerServer(SECRET, {"echo": echo})
        await server.open(sock)
        calling = Link(1, sock.getsockname()[1], (SECRET, 7), begun)
        calling.start()
        await up.wait()
        sent = [calling.begin("echo", payload) for payload in payloads]
        assert [bytes(await one.within(20_000)) for one in sent] == payloads
        await calling.close()
        await server.close()


async def test_a_large_payload_is_written_in_slices() -> None:
    """One per turn of the loop, without a copy of the whole. Later frames follow it."""
    written: list[int] = []

    class Transport:
        """Records how much is written at a time."""

        def write(self, data: bytes) -> None:
            written.append(len(data))

        def is_closing(self) -> bool:
            return False

        def get_write_buffer_size(self) -> int:
            return 0

        def get_extra_info(self, _: str) -> None:
            return None

    connection = PeerConnection(lambda *_: None, lambda _: None)
    transport: Any = Transport()
    connection.connection_made(transport)
    connection.send(REPLY, 1, bytes(20 * SLICE_BYTES), False)
    connection.send(REPLY, 2, b"small", False)
    assert sum(written) < SLICE_BYTES
    while connection._unsent_bytes:
        before = len(written)
        await asyncio.sleep(0)
        assert sum(written[before:]) < 2 * SLICE_BYTES
    assert max(written) == SLICE_BYTES
    assert written[-1] < 20
