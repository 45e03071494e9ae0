"""The common part of all listeners: accept connections, enforce timeouts and limits, and close gracefully."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tenantq.runtime.clock import Clock, Timer
from tenantq.runtime.connection_table import ConnectionTable, Evictable
from tenantq.runtime.futures import wake
from tenantq.runtime.listener_settings import ListenerSettings
from tenantq.runtime.listening_sockets import BACKLOG, open_sockets
from tenantq.runtime.metric_families import counters_by
from tenantq.runtime.tls import TlsContext, TlsFiles

TICK_MS: Final = 500
"""How often slow clients and changed certificates are looked for; time limits are kept to this precision."""

_ACCEPTED_AT_ONCE: Final = 32
_NO_FILES_PAUSE_S: Final = 0.5

log = logging.getLogger("tenantq")


class ListenerMetrics:
    """Counts what a listener does. Registered with the service's metrics."""

    protocol: ClassVar[str]  # its name in the help texts
    prefix: ClassVar[str]  # of the metric names
    timeouts: ClassVar[tuple[str, ...]]  # the stages in which a slow client can time out

    def __init__(self, listener: Listener[Any, Any]) -> None:
        self._listener = listener
        self.connections_total = 0
        self.connections_refused_total = 0
        self.certificates_loaded_total = 0
        self.certificates_failed_total = 0
        self.cut_total = dict.fromkeys(self.timeouts, 0)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        name, protocol, listener = self.prefix, self.protocol, self._listener
        opened, held, evicted = len(listener.connections), listener.buffered_bytes, listener.table.evicted_total
        yield GaugeMetricFamily(f"{name}_connections", f"Open {protocol} connections.", value=opened)
        yield GaugeMetricFamily(f"{name}_buffered_bytes", f"Bytes of {protocol} requests held.", value=held)
        yield self._counter("connections", "connections accepted.", self.connections_total)
        meaning = "connections refused because too many were open, in total or from one address."
        yield self._counter("connections_refused", meaning, self.connections_refused_total)
        yield self._counter_by("limit", "connections_evicted", "connections closed to make room for others.", evicted)
        yield self._counter("certificates_loaded", "TLS certificates loaded.", self.certificates_loaded_total)
        meaning = "changed TLS certificates that could not be loaded."
        yield self._counter("certificates_failed", meaning, self.certificates_failed_total)
        meaning = "connections closed because the client was too slow."
        yield self._counter_by("waited_for", "cut", meaning, self.cut_total)

    def _counter(self, name: str, meaning: str, value: int) -> Metric:
        return CounterMetricFamily(f"{self.prefix}_{name}", f"{self.protocol} {meaning}", value=value)

    def _counter_by(self, label: str, name: str, meaning: str, values: dict[Any, int]) -> Metric:
        found = dict(sorted(values.items()))
        return counters_by((label,), f"{self.prefix}_{name}", f"{self.protocol} {meaning}", found)


class ListenerConnection(asyncio.Protocol):
    """The common part of connections: accepting them, and detecting slow clients."""

    def __init__(self, listener: Listener[Any, Any]) -> None:
        self._base = listener
        self._is_lost = False  # the client is gone
        self._is_closing = False
        self._unsent_seen_bytes = 0
        self._unsent_since_ms = 0
        self.remote = ""
        self.certificate: dict[str, object] | None = None
        self.handshake: TlsHandshake | None = None  # that this connection comes from

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the connection, unless too many are open already."""
        self._transport = cast("asyncio.Transport", transport)  # or uvloop's, which has the same methods
        listener = self._base
        listener.metrics.connections_total += 1
        peer = transport.get_extra_info("peername")
        self.remote = peer[0] if isinstance(peer, tuple) else ""
        if listener.is_closing or not listener.admit(self):
            self._is_lost = True
            listener.metrics.connections_refused_total += 1
            self._transport.write(self.refusal())
            self._transport.close()
            return
        listener.connections.add(self)
        self._transport.set_write_buffer_limits(high=listener.settings.write_buffer_bytes)
        self.certificate = transport.get_extra_info("peercert") or None
        if self.certificate is not None:
            listener.table.recognize(self, f"certificate {self.certificate.get('serialNumber')}")
        self.begin()

    def refusal(self) -> bytes:
        """Return what a client is sent if too many connections are open."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin to serve."""
        raise NotImplementedError

    def check(self, now_ms: int) -> int:
        """Cut the client off if it has been too slow; called at every tick. Return the number of unsent bytes."""
        raise NotImplementedError

    def drain(self) -> None:
        """Finish requests in progress, start no more, and close."""
        raise NotImplementedError

    def is_answering(self) -> bool:
        """Return whether a request is being answered."""
        raise NotImplementedError

    def unfinished_bytes(self) -> int:
        """Return the bytes held for a request that has not fully arrived."""
        raise NotImplementedError

    def give_way(self) -> None:
        """Drop the request that has not fully arrived."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close now, without finishing requests."""
        self._is_closing = True
        self._unsent_seen_bytes = 0
        self._transport.abort()

    def unsent_bytes(self) -> int:
        """Return the bytes that the client has not accepted yet."""
        return self._transport.get_write_buffer_size()

    def _is_stuck_writing(self, now_ms: int) -> bool:
        """Return whether the client has accepted none of the waiting bytes for too long."""
        unsent, before = self._transport.get_write_buffer_size(), self._unsent_seen_bytes
        self._unsent_seen_bytes = unsent
        if unsent == 0 or unsent < before or before == 0:
            self._unsent_since_ms = now_ms
            return False
        return bool(now_ms - self._unsent_since_ms >= self._base.settings.write_timeout_ms)

    def _cut(self, waited_for: str) -> None:
        """Count a client that is disconnected because it is too slow."""
        self._base.metrics.cut_total[waited_for] += 1


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


C = TypeVar("C", bound=ListenerConnection)
S = TypeVar("S", bound=ListenerSettings)


class Listener(Generic[C, S]):
    """The life of a listener's connections. Created and used inside one event loop."""

    alpn: ClassVar[str | None] = None  # the protocol to agree on in TLS

    def __init__(self, settings: S, clock: Clock, metrics: ListenerMetrics, *, handshake_ms: int) -> None:
        self.settings = settings
        self.clock = clock
        self.metrics = metrics
        self.loop = asyncio.get_running_loop()
        self.port = 0  # of the address started last
        self.connections: set[C] = set()
        self.table: ConnectionTable[Evictable] = ConnectionTable(
            settings.connections_max, settings.connections_per_address_max, settings.connections_per_credential_max
        )
        self.buffered_bytes = 0  # of requests
        self.is_closing = False
        self.now_ms = clock.monotonic_ms()  # as of the last tick
        self._handshake_ms = handshake_ms
        self._unsent_bytes = 0  # of replies; about
        self._servers: list[asyncio.Server] = []
        self._tls_sockets: list[socket.socket] = []
        self._handshakes: set[TlsHandshake] = set()
        self._tls: list[TlsContext] = []
        self._timer: Timer | None = None
        self._all_closed: asyncio.Future[None] | None = None
        self._resources = AsyncExitStack()  # closed with the listener

    def new_connection(self) -> C:
        """Return what serves a connection."""
        raise NotImplementedError

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
            server = await self.loop.create_server(self.new_connection, **where, backlog=BACKLOG)
        except BaseException:
            await self._resources.aclose()
            raise
        self._servers.append(server)
        return self._started_on(server.sockets[0])

    async def _listen_with_tls(self, sock: socket.socket, tls: TlsFiles) -> None:
        """Accept connections here rather than in a server of the loop, which would not show unfinished handshakes."""
        try:
            context = TlsContext(tls, self.metrics, alpn=self.alpn)
            await self._prepare()
        except BaseException:
            sock.close()
            await self._resources.aclose()
            raise
        self._tls.append(context)
        sock.listen(BACKLOG)  # the sockets of shared addresses do not listen before
        self._tls_sockets.append(sock)
        self.loop.add_reader(sock, self._accept, sock, context)
        self._started_on(sock)

    def _started_on(self, sock: Any) -> int:
        if self._timer is None:
            self._tick()
        self.port = sock.getsockname()[1]
        return self.port

    def _accept(self, sock: socket.socket, context: TlsContext) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, place = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptors or memory left
                log.warning("cannot accept connections: %s", error)
                self.loop.remove_reader(sock)
                self.loop.call_later(_NO_FILES_PAUSE_S, self._accept_again, sock, context)
                return
            handshake = TlsHandshake(accepted)
            if self.table.admit(handshake, place[0]):
                handshake.begin(self._shake_hands(handshake, context.context), self._end_handshake)
                self._handshakes.add(handshake)
            else:
                self.metrics.connections_refused_total += 1
                accepted.close()

    def _accept_again(self, sock: socket.socket, context: TlsContext) -> None:
        if sock.fileno() >= 0:
            self.loop.add_reader(sock, self._accept, sock, context)

    async def _shake_hands(self, handshake: TlsHandshake, context: ssl.SSLContext) -> None:
        connection = self.new_connection()
        connection.handshake = handshake
        await self.loop.connect_accepted_socket(
            lambda: connection, handshake.socket, ssl=context, ssl_handshake_timeout=self._handshake_ms / 1_000
        )

    def _end_handshake(self, handshake: TlsHandshake) -> None:
        self._handshakes.discard(handshake)
        self.table.remove(handshake)

    def admit(self, connection: C) -> bool:
        """Return whether a new connection can stay, closing a silent one for it if necessary."""
        if connection.handshake is not None:
            return self.table.replace(connection.handshake, connection)
        return self.table.admit(connection, connection.remote)

    def stop_accepting(self) -> None:
        """Accept no new connections."""
        for server in self._servers:
            server.close()
        for sock in self._tls_sockets:
            self.loop.remove_reader(sock)
            sock.close()
        self._tls_sockets.clear()
        for handshake in self._handshakes:
            handshake.abort()

    async def close(self, grace_ms: int = 30_000) -> None:
        """Finish requests in progress and close, within ``grace_ms``. A second call closes at once.

        Idle connections are closed, and waiting polls are answered with no messages.
        """
        self.stop_accepting()
        if self.is_closing:
            self._abort_all()
        else:
            self.is_closing = True
            self._all_closed = self.loop.create_future()
            for connection in list(self.connections):
                connection.drain()
        assert self._all_closed is not None
        if not self.connections:
            wake(self._all_closed)
        timer = self.clock.call_later(grace_ms, self._abort_all)
        try:
            await asyncio.shield(self._all_closed)
        finally:
            timer.cancel()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        await self._resources.aclose()

    def closed(self, connection: C) -> None:
        """Note that a connection has ended."""
        self.connections.discard(connection)
        self.table.remove(connection)
        if self._all_closed is not None and not self.connections:
            wake(self._all_closed)

    def _abort_all(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    # ---- limits ----

    def make_room(self, asking: C, size: int, held: int = 0) -> bool:
        """Return whether a connection that holds ``held`` bytes of requests may hold ``size`` more.

        Larger unfinished requests are dropped to make room, the largest first. Otherwise a client could lock out all others
        with large requests that it never completes.
        """
        while self.buffered_bytes + size > self.settings.buffered_bytes_max:
            largest = max(self.connections, key=lambda one: one.unfinished_bytes(), default=None)
            if largest is None or largest is asking or largest.unfinished_bytes() <= held + size:
                return False
            largest.give_way()
        return True

    def count_unsent(self, size: int) -> None:
        """Count a large unsent reply. If the total exceeds the limit, disconnect the clients with the most unsent bytes."""
        self._unsent_bytes += size
        if self._unsent_bytes <= self.settings.unsent_bytes_max:
            return
        waiting = {connection: connection.unsent_bytes() for connection in self.connections}
        self._unsent_bytes = sum(waiting.values())
        while self._unsent_bytes > self.settings.unsent_bytes_max and waiting:
            most = max(waiting, key=waiting.__getitem__)
            self._unsent_bytes -= waiting.pop(most)
            self.metrics.cut_total["write"] += 1
            most.abort()

    # ---- time ----

    def _tick(self) -> None:
        self._timer = self.clock.call_later(TICK_MS, self._tick)
        self.now_ms = self.clock.monotonic_ms()
        self._unsent_bytes = sum(connection.check(self.now_ms) for connection in list(self.connections))
        for tls in self._tls:
            tls.reload_if_changed()
