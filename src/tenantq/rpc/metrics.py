"""The Cap'n Proto listener's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric

from tenantq.runtime.listener import Listener, ListenerMetrics


class RpcMetrics(ListenerMetrics):
    """Counters since the listener was created."""

    protocol = "Cap'n Proto"
    prefix = "tenantq_rpc"
    timeouts = ("login", "call", "message", "write")

    def __init__(self, listener: Listener[Any, Any]) -> None:
        super().__init__(listener)
        self.calls_total = 0
        self.malformed_total = 0
        self.errors_total: dict[str, int] = {}  # by code

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from super().collect()
        yield self._counter("calls", "calls.", self.calls_total)
        yield self._counter("malformed", "connections closed for what they sent.", self.malformed_total)
        yield self._counter_by("code", "errors", "calls answered by an error.", self.errors_total)
