"""Plain counters of what passed the gates and what did not, read by the metrics."""

from __future__ import annotations

from collections import Counter, defaultdict

from tenantq.runtime.histogram import Histogram


class Tally:
    """Counts since the server started."""

    __slots__ = ("alerts", "entered", "refused", "throttled", "took", "waited")

    def __init__(self) -> None:
        self.entered: Counter[str] = Counter()  # by action
        self.refused: Counter[tuple[str, str]] = Counter()  # by action and error code
        self.alerts: Counter[str] = Counter()  # by kind
        self.throttled: Counter[str] = Counter()  # by tenant: calls that a limit refused

        self.took: defaultdict[str, Histogram] = defaultdict(
            Histogram
        )  # by action: calls, without waiting for messages
        self.waited = Histogram()  # calls that had to wait at a gate, for a place or for a rate

    def let_in(self, action: str) -> None:
        """Count a call that passed the gates."""
        self.entered[action] += 1

    def turn_away(self, action: str, code: str) -> None:
        """Count a call that did not."""
        self.refused[action, code] += 1
