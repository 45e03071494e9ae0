"""What the listener counts of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from tenantq.rpc.listener import RpcListener


class Figures:
    """Counters since the listener was made. Only ever rising, but for what is open and held now."""

    def __init__(self, listener: RpcListener) -> None:
        self._listener = listener
        self.connections_total = 0
        self.connections_refused_total = 0
        self.calls_total = 0
        self.errors_total: dict[str, int] = {}  # by code
        self.cut_total: dict[str, int] = {"login": 0, "call": 0, "message": 0, "write": 0}  # by what was waited for
        self.malformed_total = 0
        self.certificates_loaded_total = 0
        self.certificates_failed_total = 0

    def collect(self) -> Iterator[Metric]:
        """Yield every figure, as the service's metrics collect them."""
        listener = self._listener
        yield GaugeMetricFamily(
            "tenantq_rpc_connections", "Open Cap'n Proto connections.", value=len(listener.connections)
        )
        yield GaugeMetricFamily(
            "tenantq_rpc_buffered_bytes", "Bytes of Cap'n Proto requests held.", value=listener.buffered_bytes
        )
        for name, meaning in (
            ("connections", "Cap'n Proto connections accepted."),
            ("connections_refused", "Cap'n Proto connections refused because too many were open."),
            ("calls", "Cap'n Proto calls."),
            ("malformed", "Cap'n Proto connections closed for what they sent."),
            ("certificates_loaded", "Times that TLS certificates were loaded for Cap'n Proto."),
            ("certificates_failed", "Times that changed TLS certificates could not be loaded for Cap'n Proto."),
        ):
            yield CounterMetricFamily(f"tenantq_rpc_{name}", meaning, value=getattr(self, f"{name}_total"))
        errors = CounterMetricFamily("tenantq_rpc_errors", "Cap'n Proto calls answered by an error.", labels=["code"])
        for code, count in self.errors_total.items():
            errors.add_metric([code], count)
        yield errors
        cut = CounterMetricFamily(
            "tenantq_rpc_cut", "Cap'n Proto connections closed because the client was too slow.", labels=["waited_for"]
        )
        for what, count in self.cut_total.items():
            cut.add_metric([what], count)
        yield cut
