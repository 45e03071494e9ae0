"""Figures of the connections to a remote store, as metrics show them."""

from collections.abc import Iterable
from typing import Protocol

from tenantq.runtime.histogram import Histogram
from tenantq.store.interface import StoreFigure


class CountedConnection(Protocol):
    """A connection that reconnects by itself."""

    took: Histogram  # answered requests, with retries
    retries: int
    connects: int


def connection_figures(
    kind: str, name: str, connections: Iterable[CountedConnection], *, is_up: bool
) -> list[StoreFigure]:
    """Return the figures of the connections of one shard. ``kind`` is part of their names, ``name`` of their descriptions."""
    took, retries, connects = Histogram(), 0, 0
    for one in connections:
        took.merge(one.took)
        retries, connects = retries + one.retries, connects + one.connects
    prefix = f"tenantq_{kind}"
    return [
        StoreFigure(f"{prefix}_up", f"Whether {name} answers this shard.", {}, is_up),
        StoreFigure(f"{prefix}_requests_total", f"Requests that {name} answered.", {}, took.total),
        StoreFigure(f"{prefix}_request_seconds_total", "How long they took.", {}, took.sum_us / 1_000_000),
        StoreFigure(f"{prefix}_latency_seconds", f"How long {name} took to answer requests.", {}, took),
        StoreFigure(f"{prefix}_retries_total", "Attempts that failed and were repeated.", {}, retries),
        StoreFigure(f"{prefix}_connects_total", f"Connections opened to {name}.", {}, connects),
    ]
