"""What a listener counts of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenantq.http.listener import Listener


class Figures:
    """Counters since the listener was made. Only ever rising, but for what is open and held now."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.connections_total = 0
        self.connections_refused_total = 0
        self.replies_total: dict[int, int] = {}  # by status
        self.cut_total: dict[str, int] = {"head": 0, "body": 0, "write": 0, "idle": 0}  # by what was waited for
        self.certificates_loaded_total = 0
        self.certificates_failed_total = 0

    def prometheus(self) -> bytes:
        """Return the figures as Prometheus reads them."""
        lines = [
            *_family("connections", "gauge", "Open HTTP connections.", {"": len(self._listener.connections)}),
            *_family("buffered_bytes", "gauge", "Bytes of request bodies held.", {"": self._listener.buffered_bytes}),
            *_family("connections_total", "counter", "HTTP connections accepted.", {"": self.connections_total}),
            *_family(
                "connections_refused_total",
                "counter",
                "HTTP connections refused because too many were open.",
                {"": self.connections_refused_total},
            ),
            *_family(
                "replies_total",
                "counter",
                "HTTP replies by status.",
                {f'{{status="{status}"}}': count for status, count in sorted(self.replies_total.items())},
            ),
            *_family(
                "cut_total",
                "counter",
                "HTTP connections closed because the client was too slow, by what was waited for.",
                {f'{{waited_for="{what}"}}': count for what, count in self.cut_total.items()},
            ),
            *_family(
                "certificates_loaded_total",
                "counter",
                "Times that TLS certificates were loaded.",
                {"": self.certificates_loaded_total},
            ),
            *_family(
                "certificates_failed_total",
                "counter",
                "Times that changed TLS certificates could not be loaded.",
                {"": self.certificates_failed_total},
            ),
        ]
        return "".join(f"{line}\n" for line in lines).encode()


def _family(name: str, kind: str, meaning: str, values: dict[str, int]) -> list[str]:
    full = f"tenantq_http_{name}"
    return [
        f"# HELP {full} {meaning}",
        f"# TYPE {full} {kind}",
        *(f"{full}{labels} {value}" for labels, value in values.items()),
    ]
