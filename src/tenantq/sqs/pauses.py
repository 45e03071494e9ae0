"""Things that may not be done to the same queue again at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tenantq.clock import Clock

REMEMBERED_MAX: Final = 10_000


class Pauses:
    """When something was last done to a queue; forgotten with the process."""

    def __init__(self, clock: Clock, pause_ms: int) -> None:
        self._clock = clock
        self._pause_ms = pause_ms
        self._done: dict[tuple[int, str], int] = {}

    def note(self, tenant_id: int, queue: str) -> None:
        """Remember that it is done now."""
        now = self._clock.monotonic_ms()
        if len(self._done) >= REMEMBERED_MAX:
            self._done = {key: at for key, at in self._done.items() if now - at < self._pause_ms}
        if len(self._done) < REMEMBERED_MAX:
            self._done[tenant_id, queue] = now

    def is_on(self, tenant_id: int, queue: str) -> bool:
        """Tell whether it was done so lately that it has to wait."""
        at = self._done.get((tenant_id, queue))
        return at is not None and self._clock.monotonic_ms() - at < self._pause_ms
