"""Counters of admitted and refused calls, read by the metrics. Those of each tenant are in its state."""

from collections import Counter

from tenantq.runtime.histogram import Histogram


class GateCounters:
    """Counts since the server started."""

    def __init__(self) -> None:
        self.admitted: Counter[str] = Counter()  # by action
        self.refused: Counter[tuple[str, str]] = Counter()  # by action and error code
        self.alerts: Counter[str] = Counter()  # by kind
        self.waits = Histogram()  # of calls that had to wait for a slot or for a rate limit
