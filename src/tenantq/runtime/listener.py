"""The common part of all listeners: accept connections, and close gracefully."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Final, Generic

from tenantq.runtime.clock import Timer
from tenantq.runtime.futures import wake
from tenantq.runtime.listener_context import K, ListenerConnection
from tenantq.runtime.listening_sockets import BACKLOG, open_sockets
from tenantq.runtime.tls import TlsContext, TlsFiles

TICK_MS: Final = 500
"""How often slow clients and changed certificates are looked for; time limits are kept to this precision."""

_ACCEPTED_AT_ONCE: Final = 32
_NO_FILES_PAUSE_S: Final = 0.5

log = logging.getLogger("tenantq")


class TlsHandshake:
    """A TLS handshake that has not finished. It counts as a connection, and gives way like a silent one."""

    def __init__(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        self.socket = accepted
        self._task: asyncio.Task[None] | None = None

    def begin(self, work: Coroutine[Any, Any, None], ended: Callable[[TlsHandshake], None]) -> None:
        """Run the handshake, and call ``ended`` when it has finished or failed."""
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(lambda task: self._end(task, ended))

    def _end(self, task: asyncio.Task[None], ended: Callable[[TlsHandshake], None]) -> None:
        if task.cancelled() or task.exception() is not None:  # a client that fails or goes away is no error here
            self.socket.close()
        ended(self)

    def is_answering(self) -> bool:
        """Return False."""
        return False

    def unfinished_bytes(self) -> int:
        """Return 0."""
        return 0

    def abort(self) -> None:
        """Close the connection."""
        if self._task is not None:
            self._task.cancel()


class Listener(Generic[K]):
    """Listens on any number of addresses, until it is closed. Created and used inside one event loop."""

    alpn: ClassVar[str | None] = None  # the protocol to agree on in TLS

    def __init__(self, context: K, new_connection: Callable[[], ListenerConnection[Any]], *, handshake_ms: int) -> None:
        self.context = context
        self.port = 0  # of the address started last
        self._new_connection = new_connection
        self._handshake_ms = handshake_ms
        self._servers: list[asyncio.Server] = []
        self._tls_sockets: list[socket.socket] = []
        self._handshakes: set[TlsHandshake] = set()
        self._tls: list[TlsContext] = []
        self._timer: Timer | None = None
        self._resources = AsyncExitStack()  # closed with the listener

    async def _prepare(self) -> None:
        """Enter what the connections need into ``_resources``."""

    # ---- opening and closing ----

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """Accept connections on an address; port 0 takes a free one. Return the port. Can be called again."""
        if tls is not None:
            sockets = open_sockets(host, port)
            await self.start_on(sockets, tls)
            return self.port
        return await self._listen({"host": host, "port": port})

    async def start_on(self, sockets: Iterable[socket.socket], tls: TlsFiles | None = None) -> None:
        """Accept connections on sockets that listen already. Can be called again."""
        for sock in sockets:
            if tls is None:
                await self._listen({"sock": sock})
            else:
                await self._listen_with_tls(sock, tls)

    async def _listen(self, where: dict[str, Any]) -> int:
        await self._prepare()
        try:
            server = await self.context.loop.create_server(self._new_connection, **where, backlog=BACKLOG)
        except BaseException:
            await self._resources.aclose()
            raise
        self._servers.append(server)
        return self._started_on(server.sockets[0])

    async def _listen_with_tls(self, sock: socket.socket, files: TlsFiles) -> None:
        """Accept connections here rather than in a server of the loop, which would not show unfinished handshakes."""
        try:
            tls = TlsContext(files, self.context.metrics, alpn=self.alpn)
            await self._prepare()
        except BaseException:
            sock.close()
            await self._resources.aclose()
            raise
        self._tls.append(tls)
        sock.listen(BACKLOG)  # the sockets of shared addresses do not listen before
        self._tls_sockets.append(sock)
        self.context.loop.add_reader(sock, self._accept, sock, tls)
        self._started_on(sock)

    def _started_on(self, sock: Any) -> int:
        if self._timer is None:
            self._tick()
        self.port = sock.getsockname()[1]
        return self.port

    def _accept(self, sock: socket.socket, tls: TlsContext) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, place = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptors or memory left
                log.warning("cannot accept connections: %s", error)
                self.context.loop.remove_reader(sock)
                self.context.loop.call_later(_NO_FILES_PAUSE_S, self._accept_again, sock, tls)
                return
            handshake = TlsHandshake(accepted)
            if self.context.table.admit(handshake, place[0]):
                handshake.begin(self._shake_hands(handshake, tls.context), self._end_handshake)
                self._handshakes.add(handshake)
            else:
                self.context.metrics.connections_refused_total += 1
                accepted.close()

    def _accept_again(self, sock: socket.socket, tls: TlsContext) -> None:
        if sock.fileno() >= 0:
            self.context.loop.add_reader(sock, self._accept, sock, tls)

    async def _shake_hands(self, handshake: TlsHandshake, tls: ssl.SSLContext) -> None:
        connection = self._new_connection()
        connection.handshake = handshake
        await self.context.loop.connect_accepted_socket(
            lambda: connection, handshake.socket, ssl=tls, ssl_handshake_timeout=self._handshake_ms / 1_000
        )

    def _end_handshake(self, handshake: TlsHandshake) -> None:
        self._handshakes.discard(handshake)
        self.context.table.remove(handshake)

    def stop_accepting(self) -> None:
        """Accept no new connections."""
        for server in self._servers:
            server.close()
        for sock in self._tls_sockets:
            self.context.loop.remove_reader(sock)
            sock.close()
        self._tls_sockets.clear()
        for handshake in self._handshakes:
            handshake.abort()

    async def close(self, grace_ms: int = 30_000) -> None:
        """Finish requests in progress and close, within ``grace_ms``. A second call closes at once.

        Idle connections are closed, and waiting polls are answered with no messages.
        """
        context = self.context
        self.stop_accepting()
        if context.is_closing:
            self._abort_all()
        else:
            context.is_closing = True
            for connection in list(context.connections):
                connection.drain()
        if not context.connections:
            wake(context.all_closed)
        timer = context.clock.call_later(grace_ms, self._abort_all)
        try:
            await asyncio.shield(context.all_closed)
        finally:
            timer.cancel()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        await self._resources.aclose()

    def _abort_all(self) -> None:
        for connection in list(self.context.connections):
            connection.abort()

    def _tick(self) -> None:
        self._timer = self.context.clock.call_later(TICK_MS, self._tick)
        self.context.tick()
        for tls in self._tls:
            tls.reload_if_changed()
