"""Free disk space: nothing is added while less is free than the reserve, which settling and deleting need."""

from __future__ import annotations

from typing import Final

from tenantq.errors import DiskFull
from tenantq.runtime.clock import Clock
from tenantq.store.interface import Store

MEASURE_MS: Final = 50
"""The maximum age of the last measurement."""


class DiskSpace:
    """Knows whether there is space for more messages."""

    def __init__(self, store: Store, clock: Clock, reserve_bytes: int) -> None:
        self._store, self._clock = store, clock
        self._reserve_bytes = reserve_bytes
        self._measure_at_ms = 0
        self._is_enough = True

    def check(self) -> None:
        """Raise DiskFull if free space is below the reserve. It is measured at intervals, and every time while it is short."""
        now_ms = self._clock.monotonic_ms()
        if not self._is_enough or now_ms >= self._measure_at_ms:
            self._measure_at_ms = now_ms + MEASURE_MS
            self._is_enough = self._store.free_bytes() >= self._reserve_bytes
        if not self._is_enough:
            raise DiskFull
