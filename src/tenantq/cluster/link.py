"""The calling end of a connection between two shards: many requests at a time, each with its reply."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Final

from tenantq.cluster import frames
from tenantq.cluster.error_codec import decode_error, shard_down
from tenantq.cluster.frames import LinkFrame, PeerConnection
from tenantq.cluster.handshake import CALLER, SERVER, PeerName, is_nonce, is_proof, nonce, proof
from tenantq.errors import ShardDown, TenantqError, Unavailable
from tenantq.runtime.backoff import Backoff

log = logging.getLogger("tenantq.shards")

RECONNECT_S: Final = 0.1
"""Delay before a broken link connects again."""

CONNECT_S: Final = 3.0
"""Time to connect, and again for the handshake. The kernel waits up to two minutes before it tries a lost host again."""

DISTRUST: Final = Backoff(base_ms=200, max_ms=10_000)
"""Delays after handshakes in a row that failed because the other end has another secret."""

UNEXPECTED_S: Final = 5.0
"""Further delay after an internal error."""

PENDING_MAX: Final = 20_000
"""Unanswered requests of one link; one more is refused."""

HEARTBEATS_MISSED_MAX: Final = 3
"""Heartbeats in a row without an answer. Then the other shard counts as down."""


class PendingReply:
    """A request that was sent. ``reply`` is the payload of its reply. Parts that follow are pulled one by one."""

    __slots__ = ("_error", "_id", "_link", "_part", "has_parts", "reply")

    def __init__(self, link: Link, id: int) -> None:
        self._link = link
        self._id = id
        self._error: TenantqError | None = None
        self._part: asyncio.Future[bytes | None] | None = None
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.has_parts = False

    async def within(self, timeout_ms: int | None) -> bytes:
        """Return the reply; raise what the other shard raised, or ShardDown if it does not reply in time."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000 if timeout_ms is not None else None):
                try:
                    return await self.reply
                except asyncio.CancelledError:
                    self.stop(is_gone=True)
                    raise
        except TimeoutError:
            raise ShardDown(f"shard {self._link.number} has not answered in time. Try again later.") from None

    def stop(self, *, is_gone: bool) -> None:
        """Tell the other shard to reply now with what there is; with ``is_gone``, nobody reads the reply."""
        self._link.send(frames.STOP, self._id, is_gone)
        if is_gone:
            self._link.forget(self._id)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts after the reply; raise Unavailable if they break off."""
        try:
            while True:
                if self._error is not None:  # it failed while nobody waited for a part
                    raise self._error
                self._part = asyncio.get_running_loop().create_future()
                self._link.send(frames.PULL, self._id)
                part = await self._part
                if part is None:
                    return
                yield part
        finally:
            self.stop(is_gone=True)

    def receive_part(self, part: bytes | None) -> None:
        """Hand over the next part; None after the last one."""
        if self._part is not None and not self._part.done():
            self._part.set_result(part)

    def fail(self, error: TenantqError) -> None:
        """End with an error, which the reader of the next part gets as well."""
        self._error = error
        for future in (self.reply, self._part):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # perhaps nobody waits for it


class Link:
    """Sends requests to one other shard or server. It reconnects until it is closed."""

    def __init__(
        self,
        number: PeerName,
        port: int,
        hello: tuple[str, PeerName],
        begun: Callable[[Link], Awaitable[None]],
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare. ``hello`` is the secret, and what this end is called."""
        self.number = number  # of the other shard, or the id of the other server
        self._host, self._tls = host, tls
        self.is_up = False
        self.down_since_s: float | None = asyncio.get_running_loop().time()  # None: it is up
        self.is_ready = False  # as of the last heartbeat
        self._nonce = b""
        self._distrusted = 0  # handshakes in a row that failed
        self._missed = 0
        self._port = port
        self._hello = hello
        self._begun = begun  # called when it is up
        self._ids = count(1)
        self._pending: dict[int, PendingReply] = {}
        self._connection: PeerConnection | None = None
        self._ended: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to connect."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Disconnect. Pending requests fail with ShardDown."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()
            self._lost(self._connection)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._ended.clear()
            try:
                async with asyncio.timeout(CONNECT_S):
                    _, connection = await loop.create_connection(
                        lambda: PeerConnection(self._receive, self._lost), self._host, self._port, ssl=self._tls
                    )
                self._connection = connection
                self._nonce = nonce()
                connection.send(frames.HELLO, self._hello[1], self._nonce)
                loop.call_later(CONNECT_S, self._end_unless_up, connection)
                await self._ended.wait()
            except OSError:
                log.debug("%s is out of reach", self.number)
            except Exception:  # without this task, the link would never be up again
                log.exception("cannot connect to %s, retrying", self.number)
                await asyncio.sleep(UNEXPECTED_S)
            await asyncio.sleep(self.reconnect_s)

    def _end_unless_up(self, connection: PeerConnection) -> None:
        if connection is self._connection and not self.is_up:
            log.debug("%s does not shake hands", self.number)
            connection.close()
            self._lost(connection)

    @property
    def reconnect_s(self) -> float:
        """The delay before it connects again."""
        return DISTRUST.ceiling_ms(self._distrusted) / 1_000 if self._distrusted else RECONNECT_S

    @property
    def is_silent(self) -> bool:
        """Whether the last heartbeat was not answered."""
        return self._missed > 0

    def send_heartbeat(self, *, is_late: bool = False) -> bool:
        """Send a heartbeat; called regularly. Return True if the link was closed because too many went unanswered.

        With ``is_late`` this shard itself has stalled, and may not have read the answers yet.
        """
        connection = self._connection
        if not self.is_up or connection is None:
            return False
        self._missed = 0 if connection.has_heard or is_late else self._missed + 1
        connection.has_heard = False
        if self._missed < HEARTBEATS_MISSED_MAX:
            connection.send(frames.PING)
            return False
        log.warning("shard or server %s does not answer; it counts as down until it does", self.number)
        connection.close()
        self._lost(connection)
        return True

    def begin(self, kind: str, payload: bytes) -> PendingReply:
        """Send a request; raise ShardDown if the link is not up, or Unavailable if too many requests are pending."""
        if not self.is_up:
            raise shard_down(self.number)
        if len(self._pending) >= PENDING_MAX or (self._connection is not None and self._connection.is_full):
            raise Unavailable(f"too many requests are pending for shard {self.number}. Try again later.")
        id = next(self._ids)
        pending = self._pending[id] = PendingReply(self, id)
        self.send(frames.REQUEST, id, kind, payload)
        return pending

    def send(self, *frame: object) -> None:
        """Send a frame if the link is connected."""
        if self._connection is not None:
            self._connection.send(*frame)

    def forget(self, id: int) -> None:
        """Drop a request whose reply nobody waits for."""
        pending = self._pending.pop(id, None)
        if pending is not None:
            pending.reply.cancel()

    def _shake_hands(self, connection: PeerConnection, frame: LinkFrame) -> None:
        """Prove who called, once the other end has proved that it is a shard of this server."""
        secret, number = self._hello
        match frame:
            case [frames.CHALLENGE, servers, given] if is_nonce(servers):
                if is_proof(given, proof(secret, SERVER, number, self._nonce, servers, connection.binding)):
                    connection.is_authenticated = True
                    connection.send(
                        frames.PROOF, proof(secret, CALLER, number, self._nonce, servers, connection.binding)
                    )
                    return
        if not self._distrusted:
            log.warning(
                "the process at the internal address of %s does not know the secret. Give all servers the same one."
                " Further attempts are not logged until one succeeds.",
                self.number,
            )
        self._distrusted += 1
        connection.close()

    def _receive(self, connection: PeerConnection, frame: LinkFrame) -> None:
        if not connection.is_authenticated:
            self._shake_hands(connection, frame)
            return
        kind = frame[0]
        if kind == frames.PONG:
            self.is_ready = frame[1]
            return
        if kind == frames.WELCOME:
            if self._distrusted:
                log.info("the process at the internal address of %s knows the secret now", self.number)
            self.is_up, self.down_since_s, self._missed, self._distrusted = True, None, 0, 0
            self.send(frames.PING)
            asyncio.get_running_loop().create_task(self._begin())  # it handles its errors
            return
        id = frame[1]
        pending = self._pending.get(id)
        if pending is None:
            return  # nobody waits for it any more
        if kind == frames.PART:
            if frame[2] is None:
                del self._pending[id]
            pending.receive_part(bytes(frame[2]) if frame[2] is not None else None)
            return
        pending.has_parts = kind == frames.REPLY and frame[3]
        if not pending.has_parts:
            del self._pending[id]
        if kind == frames.FAILED:
            pending.fail(decode_error(frame[2]))
        elif not pending.reply.done():
            pending.reply.set_result(frame[2])

    async def _begin(self) -> None:
        try:
            await self._begun(self)
        except TenantqError as error:
            log.debug("the link to %s broke at once: %s", self.number, error)

    def _lost(self, connection: PeerConnection) -> None:
        if connection is not self._connection:
            return
        if self.is_up:
            self.down_since_s = asyncio.get_running_loop().time()
        self._connection, self.is_up, self.is_ready = None, False, False
        pending, self._pending = self._pending, {}
        for one in pending.values():
            one.fail(shard_down(self.number))
        self._ended.set()
