"""Things that may not be done to the same queue again at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tenantq.runtime.clock import Clock

REMEMBERED_MAX: Final = 1_000
"""Queues of one tenant; beyond that its own oldest are forgotten, and nobody else's."""


class Cooldowns:
    """When something was last done to a queue; forgotten with the process."""

    def __init__(self, clock: Clock, pause_ms: int) -> None:
        self._clock = clock
        self._pause_ms = pause_ms
        self._done: dict[int, dict[str, int]] = {}  # by tenant, the oldest first

    def note(self, tenant_id: int, queue: str) -> None:
        """Remember that it is done now."""
        now = self._clock.monotonic_ms()
        theirs = self._done.pop(tenant_id, {})
        theirs.pop(queue, None)
        theirs[queue] = now
        if len(theirs) > REMEMBERED_MAX:
            del theirs[next(iter(theirs))]
        self._done[tenant_id] = theirs
        while now - _last(self._done[first := next(iter(self._done))]) >= self._pause_ms > 0:
            del self._done[first]  # all of its pauses are over

    def is_on(self, tenant_id: int, queue: str) -> bool:
        """Tell whether it was done so lately that it has to wait."""
        at = self._done.get(tenant_id, {}).get(queue)
        return at is not None and self._clock.monotonic_ms() - at < self._pause_ms


def _last(times: dict[str, int]) -> int:
    return next(reversed(times.values()))
