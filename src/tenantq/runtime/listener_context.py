"""What a listener shares with its connections, and the common part of those."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar, Generic, TypeVar, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tenantq.runtime.clock import Clock
from tenantq.runtime.connection_table import ConnectionTable, Evictable
from tenantq.runtime.futures import wake
from tenantq.runtime.listener_settings import ListenerSettings
from tenantq.runtime.metric_families import counters_by

S = TypeVar("S", bound=ListenerSettings)
K = TypeVar("K", bound="ListenerContext[Any]")


class ListenerMetrics:
    """Counts what a listener does. Registered with the service's metrics."""

    protocol: ClassVar[str]  # its name in the help texts
    prefix: ClassVar[str]  # of the metric names
    timeouts: ClassVar[tuple[str, ...]]  # the stages in which a slow client can time out

    def __init__(self, context: ListenerContext[Any]) -> None:
        self._context = context
        self.connections_total = 0
        self.connections_refused_total = 0
        self.certificates_loaded_total = 0
        self.certificates_failed_total = 0
        self.cut_total = dict.fromkeys(self.timeouts, 0)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        name, protocol, context = self.prefix, self.protocol, self._context
        opened, held, evicted = len(context.connections), context.buffered_bytes, context.table.evicted_total
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


class ListenerContext(Generic[S]):
    """What all connections of a listener share: settings, counters, limits, and the time of the last tick."""

    def __init__(self, settings: S, clock: Clock, metrics: ListenerMetrics) -> None:
        self.settings = settings
        self.clock = clock
        self.metrics = metrics
        self.loop = asyncio.get_running_loop()
        self.connections: set[ListenerConnection[Any]] = set()
        self.table: ConnectionTable[Evictable] = ConnectionTable(
            settings.connections_max, settings.connections_per_address_max, settings.connections_per_credential_max
        )
        self.buffered_bytes = 0  # of requests
        self.is_closing = False
        self.all_closed: asyncio.Future[None] = self.loop.create_future()  # done when the last one ends while it closes
        self.now_ms = clock.monotonic_ms()  # as of the last tick
        self._unsent_bytes = 0  # of replies; about

    def admit(self, connection: ListenerConnection[Any]) -> bool:
        """Return whether a new connection can stay, closing a silent one for it if necessary."""
        if self.is_closing:
            return False
        if connection.handshake is not None:
            return self.table.replace(connection.handshake, connection)
        return self.table.admit(connection, connection.remote)

    def closed(self, connection: ListenerConnection[Any]) -> None:
        """Note that a connection has ended."""
        self.connections.discard(connection)
        self.table.remove(connection)
        if self.is_closing and not self.connections:
            wake(self.all_closed)

    def make_room(self, asking: object, size: int, held: int = 0) -> bool:
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

    def tick(self) -> None:
        """Renew the time, and disconnect slow clients."""
        self.now_ms = self.clock.monotonic_ms()
        self._unsent_bytes = sum(connection.check(self.now_ms) for connection in list(self.connections))


class ListenerConnection(asyncio.Protocol, Generic[K]):
    """The common part of connections: accepting them, and detecting slow clients."""

    def __init__(self, context: K) -> None:
        self.context = context
        self._is_lost = False  # the client is gone
        self._is_closing = False
        self._unsent_seen_bytes = 0
        self._unsent_since_ms = 0
        self.remote = ""
        self.certificate: dict[str, object] | None = None
        self.handshake: Evictable | None = None  # that this connection comes from

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the connection, unless too many are open already."""
        self._transport = cast("asyncio.Transport", transport)  # or uvloop's, which has the same methods
        context = self.context
        context.metrics.connections_total += 1
        peer = transport.get_extra_info("peername")
        self.remote = peer[0] if isinstance(peer, tuple) else ""
        if not context.admit(self):
            self._is_lost = True
            context.metrics.connections_refused_total += 1
            self._transport.write(self.over_limit_reply())
            self._transport.close()
            return
        context.connections.add(self)
        self._transport.set_write_buffer_limits(high=context.settings.write_buffer_bytes)
        self.certificate = transport.get_extra_info("peercert") or None
        if self.certificate is not None:
            context.table.recognize(self, f"certificate {self.certificate.get('serialNumber')}")
        self.begin()

    def over_limit_reply(self) -> bytes:
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
        return bool(now_ms - self._unsent_since_ms >= self.context.settings.write_timeout_ms)

    def _cut(self, waited_for: str) -> None:
        """Count a client that is disconnected because it is too slow."""
        self.context.metrics.cut_total[waited_for] += 1
