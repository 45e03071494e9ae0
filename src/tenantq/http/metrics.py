"""The HTTP listener's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric

from tenantq.runtime.listener import Listener, ListenerMetrics


class HttpMetrics(ListenerMetrics):
    """Counters since the listener was created."""

    protocol = "HTTP"
    prefix = "tenantq_http"
    timeouts = ("head", "body", "write", "idle")

    def __init__(self, listener: Listener[Any, Any]) -> None:
        super().__init__(listener)
        self.replies_total: dict[int, int] = {}  # by status

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from super().collect()
        yield self._counter_by("status", "replies", "replies by status.", self.replies_total)
