"""Heartbeats over links: who does not answer is disconnected, and connected again."""

from collections.abc import Callable, Iterable

from tenantq.cluster.link import Link
from tenantq.runtime.clock import Clock, Timer


class LinkHeartbeats:
    """Sends a heartbeat to every other process at an interval."""

    def __init__(self, clock: Clock, interval_ms: int, links: Callable[[], Iterable[Link]]) -> None:
        self._clock = clock
        self._interval_ms = interval_ms
        self._links = links
        self._timer: Timer | None = None
        self._sent_ms = clock.monotonic_ms()

    def start(self) -> None:
        """Start the interval."""
        self._timer = self._clock.call_later(self._interval_ms, self.send)

    def stop(self) -> None:
        """Send no more."""
        if self._timer is not None:
            self._timer.cancel()

    def send(self) -> None:
        """Send one to every process, and start the next interval."""
        self.start()
        before, self._sent_ms = self._sent_ms, self._clock.monotonic_ms()
        is_late = self._sent_ms - before > 2 * self._interval_ms  # this process itself has stalled
        for link in self._links():
            link.send_heartbeat(is_late=is_late)
