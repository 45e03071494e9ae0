"""Links between shards, where one end stands still, fails, lies, or goes away too early."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from types import SimpleNamespace
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
from tenantq.runtime.clock import ManualClock
from tenantq.runtime.loop_slices import SLICE_BYTES
from tests.unit.client.doubles import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

SECRET = "known to all shards"  # noqa: S105  # of links that live as long as a test


class Archive:
    """Parts of something that has to be closed by name, and is its maker's for as long as it is read."""

    last: Archive

    def __init__(self) -> None:
        self.left = [b"one", b"two"]
        self.maker = asyncio.current_task()
        self.is_closed = False
        Archive.last = self

    def __aiter__(self) -> Archive:
        return self

    async def __anext__(self) -> bytes:
        assert asyncio.current_task() is self.maker
        if not self.left:
            raise StopAsyncIteration
        return self.left.pop(0)

    async def aclose(self) -> None:
        self.is_closed = True


class Talk:
    """A shard that is asked, and one that asks."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.dropped = 0
        self.up = asyncio.Event()

    async def answer(self, request: PeerRequest) -> bytes:
        if request.payload == b"later":
            await self.may_answer.wait()
        request.parts = Archive() if request.payload == b"archive" else self._parts()
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
async def talking() -> AsyncIterator[tuple[Talk, PeerServer, Link]]:
    """Have a link between two ends that are up."""
    talk = Talk()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        server = PeerServer(SECRET, {"kind": talk.answer}, lambda _: None)
        await server.open(sock)
        calling = Link(1, sock.getsockname()[1], (SECRET, 7), talk.begun)
        calling.start()
        await talk.up.wait()
        yield talk, server, calling
        await calling.close()
        await server.close()


async def test_what_follows_an_answer_and_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the fault, who pulls the next part does not wait for ever."""
    async with talking() as (_, server, calling):
        pending = calling.begin("kind", b"")
        assert await pending.reply == b"head"
        with pytest.raises(TenantqError, match="see the server log"):
            _ = [part async for part in pending.parts()]
        assert "the segment is gone" in caplog.text
        assert [caller.requests for caller in server._callers.values()] == [{}]


@pytest.mark.parametrize("whole", [True, False])
async def test_what_follows_an_answer_is_closed_at_its_end(*, whole: bool) -> None:
    """Read wholly or given up in the middle, by the task that made it: places of requests are given back with it."""
    async with talking() as (_, server, calling):
        pending = calling.begin("kind", b"archive")
        await pending.reply
        parts = pending.parts()
        assert await anext(parts) == b"one"
        if whole:
            assert [part async for part in parts] == [b"two"]
        await parts.aclose()  # type: ignore[attr-defined]  # it is a generator
        await until(lambda: Archive.last.is_closed)
        assert [caller.requests for caller in server._callers.values()] == [{}]


async def test_a_request_that_was_abandoned_before_its_reply_leaves_nothing() -> None:
    """The parts that would have followed are closed."""
    async with talking() as (talk, server, calling):
        pending = calling.begin("kind", b"later")
        (caller,) = server._callers.values()
        await until(lambda: caller.requests)
        (request,) = caller.requests.values()
        pending.stop(is_gone=True)
        await until(lambda: request.is_gone)
        talk.may_answer.set()
        await until(lambda: request.task is not None and request.task.done())
        assert (caller.requests, request.parts is not None and request.parts.ag_frame) == ({}, None)  # type: ignore[attr-defined]  # of a generator


async def test_a_shard_without_a_sign_of_life_is_down() -> None:
    """Who waits for its answer is told so; a shard that stood still itself blames nobody."""
    async with talking() as (_, _, calling):
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
    """An answer that takes longer is not waited for."""
    async with talking() as (talk, _, calling):
        with pytest.raises(ShardDown, match="in time"):
            await calling.begin("kind", b"later").within(1)
        assert calling._pending == {}
        talk.may_answer.set()


async def test_who_takes_nothing_is_asked_nothing_and_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits to be sent is bounded."""
    monkeypatch.setattr(frames, "UNSENT_BYTES_MAX", 1 << 20)
    async with talking() as (_, server, calling):
        (caller,) = server._callers.values()
        assert caller.connection._transport is not None
        caller.connection._transport.pause_reading()
        with pytest.raises(Unavailable, match="than it can take"):
            _ = [calling.begin("kind", bytes(100_000)) for _ in range(10_000)]
        for _ in range(10_000):
            calling.send("more", bytes(100_000))
            await asyncio.sleep(0)
            if not calling.is_up:
                break
        assert not calling.is_up


async def test_neither_end_says_the_secret_or_believes_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """One who holds the port of a shard learns nothing, and one who calls without the secret gets no answer."""
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
        calling = Link(1, server.sockets[0].getsockname()[1], (SECRET, 7), Talk().begun)
        calling.start()
        await ended.wait()
        assert (calling.is_up, heard[1], SECRET.encode() in heard[0]) == (False, b"", False)
        await calling.close()


async def test_who_calls_without_the_secret_is_not_let_in() -> None:
    """A hello alone opens nothing, and neither does a guess."""
    async with talking() as (_, server, _):
        assert server._server is not None
        reader, writer = await asyncio.open_connection(*server._server.sockets[0].getsockname())
        writer.write(_framed(HELLO, 3, bytes(32)) + _framed(PROOF, bytes(32)))
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        assert msgspec.msgpack.decode(answer)[0] == CHALLENGE
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        assert [caller.shard for caller in server._callers.values()] == [7]
        writer.close()


def _framed(*frame: Any) -> bytes:
    data = msgspec.msgpack.encode(frame)
    return len(data).to_bytes(4) + data


class Two:
    """Two shards that tell each other what they have; what one does in the background waits to be run."""

    def __init__(self) -> None:
        self.socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        ports = tuple(sock.getsockname()[1] for sock in self.socks)
        self.own: list[dict[str, Any]] = [{}, {}]
        self.waiting: list[Coroutine[Any, Any, None]] = []
        self.peers = [self._peers(number, ports) for number in range(2)]

    def _peers(self, number: int, ports: tuple[int, ...]) -> Peers:
        spec = ShardSpec(
            number=number, shards=(TopologyShard("0"), TopologyShard("1")), secret=SECRET, peer_ports=ports, home_dir=""
        )
        return Peers(spec, ManualClock(), lambda: self.own[number], self.waiting.append)

    def make(self, tenant: str) -> None:
        self.own[0][tenant] = SimpleNamespace(config=SimpleNamespace(regions=()))

    async def run(self) -> None:
        waiting, self.waiting[:] = list(self.waiting), []
        await asyncio.gather(*waiting)


@asynccontextmanager
async def two_shards() -> AsyncIterator[Two]:
    """Have two shards that know each other."""
    two = Two()
    for peers, sock in zip(two.peers, two.socks, strict=True):
        sock.setblocking(False)
        await peers.open(sock)
    for peers in two.peers:
        assert await peers.wait_for_all(10_000)
    await until(lambda: two.peers[0]._announced == {1: set()})
    yield two
    for peers in two.peers:
        await peers.close()
    for sock in two.socks:
        sock.close()


async def test_a_tenant_that_a_shard_could_not_be_told_of_is_told_again() -> None:
    """What counts is that the other has said that it knows."""
    async with two_shards() as two:
        first, second = two.peers
        learn = second._handlers["tenant_changes"]

        async def fail(_: PeerRequest) -> bytes:
            raise Unavailable("not now")

        second.answers("tenant_changes", fail)
        two.make("acme")
        await first.announce("acme")
        assert second.directory.find("acme") is None
        second.answers("tenant_changes", learn)
        first._check_announced()
        await two.run()
        assert second.directory.find("acme") == 0


async def test_what_is_told_late_is_how_it_is_then() -> None:
    """A tenant that went and came back in between is there."""
    async with two_shards() as two:
        first, second = two.peers
        two.make("acme")
        await first.announce("acme")
        del two.own[0]["acme"]
        first._check_announced()
        two.make("acme")
        await first.announce("acme")
        await two.run()
        assert second.directory.find("acme") == 0
        del two.own[0]["acme"]
        await first.announce("acme")
        assert second.directory.find("acme") is None


async def test_a_shard_that_stands_still_has_to_call_again() -> None:
    """Whoever took it for down does not know any more what it has, until it says so."""
    async with two_shards() as two:
        first, second = two.peers
        two.make("acme")
        await first.announce("acme")
        for _ in range(HEARTBEATS_MISSED_MAX + 1):
            second._heartbeats.send()
        await until(lambda: not second.directory.is_known(0))
        with pytest.raises(ShardDown):
            second.directory.check_reachable("acme")
        await until(lambda: second.directory.is_known(0))
        second.directory.check_reachable("acme")


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
        server = PeerServer(SECRET, {"echo": echo}, lambda _: None)
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
        """Notes how much is written at a time."""

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
