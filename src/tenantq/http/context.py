"""What an HTTP listener shares with its connections, its requests and their handlers."""

from __future__ import annotations

from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

from prometheus_client.core import Metric

from tenantq.gates.turns import Turns
from tenantq.http.description import Description
from tenantq.http.large_bodies import LargeBodies
from tenantq.http.request_head import HeadCache
from tenantq.http.router import Router
from tenantq.http.settings import HttpSettings
from tenantq.runtime.clock import Clock
from tenantq.runtime.listener_context import ListenerContext, ListenerMetrics
from tenantq.runtime.randomness import Randomness
from tenantq.service.request_ids import RequestIds
from tenantq.service.service import Service


class HttpMetrics(ListenerMetrics):
    """Counters since the listener was created."""

    protocol = "HTTP"
    prefix = "tenantq_http"
    timeouts = ("head", "body", "write", "idle")

    def __init__(self, context: ListenerContext[Any]) -> None:
        super().__init__(context)
        self.replies_total: dict[int, int] = {}  # by status

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from super().collect()
        yield self._counter_by("status", "replies", "replies by status.", self.replies_total)


class HttpContext(ListenerContext[HttpSettings]):
    """The service and its routes, the headers of every reply, and the memory that requests may use."""

    metrics: HttpMetrics

    def __init__(
        self,
        service: Service,
        settings: HttpSettings,
        clock: Clock,
        *,
        router: Router,
        description: Description,
        randomness: Randomness | None,
        turns: Turns | None,
    ) -> None:
        super().__init__(settings, clock, HttpMetrics(self))
        self.service = service
        self.router = router
        self.description = description
        self.heads = HeadCache()
        self.large_bodies = LargeBodies(settings.processed_bytes_max)
        self.turns = turns or Turns(self.loop)  # in which requests of all transports start
        self.is_ready = True  # the listener's part of readiness
        self.lines = b""  # headers of every reply
        self.next_request_id = RequestIds(randomness).next
        self._second = -1
        self._renew_lines()

    def tick(self) -> None:
        """Renew the time and the headers, and disconnect slow clients."""
        super().tick()
        self._renew_lines()

    def _renew_lines(self) -> None:
        second = self.clock.wall_ms() // 1_000
        if second == self._second:
            return
        self._second = second
        self.lines = b"Date: %b\r\n" % formatdate(second, usegmt=True).encode()
        if self.service.status.durability == "os":
            self.lines += b"Tenantq-Durability: os\r\n"
