"""What a Cap'n Proto listener shares with its connections and their calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric

from tenantq.gates.turns import Turns
from tenantq.rpc.queueber_leases import QueueberLeases
from tenantq.rpc.settings import RpcSettings
from tenantq.runtime.clock import Clock
from tenantq.runtime.listener_context import ListenerContext, ListenerMetrics
from tenantq.runtime.randomness import Randomness
from tenantq.service.request_ids import RequestIds
from tenantq.service.service import Service


class RpcMetrics(ListenerMetrics):
    """Counters since the listener was created."""

    protocol = "Cap'n Proto"
    prefix = "tenantq_rpc"
    timeouts = ("login", "call", "message", "write")

    def __init__(self, context: ListenerContext[Any]) -> None:
        super().__init__(context)
        self.calls_total = 0
        self.malformed_total = 0
        self.errors_total: dict[str, int] = {}  # by code

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from super().collect()
        yield self._counter("calls", "calls.", self.calls_total)
        yield self._counter("malformed", "connections closed for what they sent.", self.malformed_total)
        yield self._counter_by("code", "errors", "calls answered by an error.", self.errors_total)


class RpcContext(ListenerContext[RpcSettings]):
    """The service, the turns of calls, and the leases of Queueber clients."""

    metrics: RpcMetrics

    def __init__(
        self,
        service: Service,
        settings: RpcSettings,
        clock: Clock,
        *,
        randomness: Randomness | None,
        turns: Turns | None,
    ) -> None:
        super().__init__(settings, clock, RpcMetrics(self))
        self.service = service
        self.durability = service.status.durability
        self.turns = turns or Turns(self.loop)  # in which calls of all transports start
        self.next_request_id = RequestIds(randomness).next
        self.queueber_leases = QueueberLeases(clock, randomness)
