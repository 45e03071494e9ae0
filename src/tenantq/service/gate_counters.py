"""Counters of admitted and refused calls, read by the metrics."""

from __future__ import annotations

from collections import Counter, defaultdict

from tenantq.runtime.histogram import Histogram


class GateCounters:
    """Counts since the server started."""

    __slots__ = ("admitted", "alerts", "durations", "refused", "throttled", "waits")

    def __init__(self) -> None:
        self.admitted: Counter[str] = Counter()  # by action
        self.refused: Counter[tuple[str, str]] = Counter()  # by action and error code
        self.alerts: Counter[str] = Counter()  # by kind
        self.throttled: Counter[str] = Counter()  # by tenant: calls that a limit refused
        self.durations: defaultdict[str, Histogram] = defaultdict(Histogram)  # by action, without waits for messages
        self.waits = Histogram()  # of calls that had to wait for a slot or for a rate limit
