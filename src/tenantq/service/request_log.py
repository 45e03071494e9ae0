"""The request log: a line for each call, or only for those that failed, sampled under load."""

import logging
from collections.abc import Mapping
from typing import Any, Final, Literal

from tenantq.runtime.clock import Clock

log: Final = logging.getLogger("tenantq.requests")

RequestLogMode = Literal["off", "errors", "all"]
_SECOND_MS: Final = 1_000


class RequestLog:
    """Logs calls, at most ``per_second`` of them.

    If there were more in the last second, one of every ``sampled`` calls is logged, and its line has this number.
    """

    def __init__(self, clock: Clock, mode: RequestLogMode, per_second: int) -> None:
        self._clock, self._mode, self._per_second = clock, mode, per_second
        self.is_on = mode != "off"
        self._second = -1
        self._seen = self._written = 0  # in this second
        self._every = 1

    def write(self, action: str, outcome: str, took_us: int, fields: Mapping[str, Any]) -> None:
        """Log a call. ``outcome`` is "ok" or the code of its error."""
        if self._mode == "off" or (self._mode == "errors" and outcome == "ok"):
            return
        second = self._clock.monotonic_ms() // _SECOND_MS
        if second != self._second:
            self._every = max(1, -(-self._seen // self._per_second)) if second == self._second + 1 else 1
            self._second, self._seen, self._written = second, 0, 0
        self._seen += 1
        if self._seen % self._every or self._written >= self._per_second:
            return
        self._written += 1
        shown = {"action": action, "outcome": outcome, "duration_ms": round(took_us / 1_000, 3), **fields}
        if self._every > 1:
            shown["sampled"] = self._every
        log.info("%s: %s", action, outcome, extra=shown)
