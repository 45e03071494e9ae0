"""Work that is repeated in the background."""

from collections.abc import Callable, Coroutine
from typing import Any

from tenantq.runtime.clock import Clock, Timer

_Repetition = Coroutine[Any, Any, None]


class Periodic:
    """Repeats work, with ``every_ms`` between the end of one run and the start of the next, even if a run fails."""

    def __init__(
        self, clock: Clock, every_ms: int, background: Callable[[_Repetition], None], work: Callable[[], _Repetition]
    ) -> None:
        self._clock, self._every_ms, self._background, self._work = clock, every_ms, background, work
        self._timer: Timer | None = None
        self._is_closed = False

    def start(self, first_ms: int | None = None) -> None:
        """Begin, with the first run after ``first_ms`` if it is given."""
        if not self._is_closed:
            delay_ms = self._every_ms if first_ms is None else first_ms
            self._timer = self._clock.call_later(delay_ms, lambda: self._background(self._run()))

    def close(self) -> None:
        """Start no more runs. The current run continues."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def is_closed(self) -> bool:
        """Return whether it was closed."""
        return self._is_closed

    async def _run(self) -> None:
        try:
            await self._work()
        finally:
            self.start()
