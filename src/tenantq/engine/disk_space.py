"""Free disk space: nothing is added while less is free than the reserve, which settling and deleting need."""

import logging
from typing import Final

from tenantq.errors import DiskFull, StoreFailed
from tenantq.runtime.clock import Clock
from tenantq.store.interface import StoreFiles

log = logging.getLogger("tenantq")

MEASURE_MS: Final = 50
"""The maximum age of the last measurement."""

_UNKNOWN: Final = "free disk space cannot be measured: new messages are refused until it can. Check the data directory."


class DiskSpace:
    """Checks whether the disk has space for more messages."""

    def __init__(self, files: StoreFiles, clock: Clock, reserve_bytes: int) -> None:
        self._files, self._clock = files, clock
        self._reserve_bytes = reserve_bytes
        self._measure_at_ms = 0
        self._is_enough = True
        self._is_known = True

    def check(self) -> None:
        """Raise DiskFull if free space is below the reserve or unknown.

        It is measured at intervals, and every time while it is short or unknown.
        """
        now_ms = self._clock.monotonic_ms()
        if not self._is_enough or now_ms >= self._measure_at_ms:
            self._measure_at_ms = now_ms + MEASURE_MS
            self._measure()
        if not self._is_known:
            raise DiskFull(_UNKNOWN)
        if not self._is_enough:
            raise DiskFull

    @property
    def is_enough(self) -> bool:
        """Whether ``check`` raises nothing. Also false while a remote store does not say how much is free."""
        try:
            self.check()
        except StoreFailed:
            return False
        return True

    def problem(self) -> str:
        """Return why free space is unknown, or "". It is measured again if the last measurement failed."""
        if not self._is_known:
            self._measure()
        return "" if self._is_known else _UNKNOWN

    def _measure(self) -> None:
        was_known = self._is_known
        try:
            self._is_enough = self._files.free_bytes() >= self._reserve_bytes
            self._is_known = True
        except OSError as error:
            self._is_enough = self._is_known = False
            if was_known:
                log.error("cannot measure free disk space: %s", error)  # noqa: TRY400 -- the traceback says no more
