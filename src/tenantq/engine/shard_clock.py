"""The shard's own time: it never goes back, and no jump of the wall clock moves it.

Leases, delays and lifetimes are measured on it. It is anchored to the wall clock when the store is first opened and
from then on follows the monotonic clock, through restarts too while the machine stays up. What users see is converted
to wall time at the moment of the reply, so timestamps are right after the clock was corrected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenantq.store.interface import Beat

if TYPE_CHECKING:
    from tenantq.runtime.clock import Clock

_UNSTEADY_MS: Final = 2


class ShardClock:
    """Milliseconds on the shard's own scale."""

    __slots__ = ("_clock", "_offset_ms", "_shift", "boot_id")

    def __init__(self, clock: Clock, last: Beat | None, floor_ms: int) -> None:
        """Go on from ``last``, and never before ``floor_ms``, the newest journal record's time."""
        self._clock = clock
        self.boot_id = clock.boot_id()
        monotonic_ms, wall_ms = clock.monotonic_ms(), clock.wall_ms()
        if last is None:
            now = wall_ms
        elif last.boot_id == self.boot_id and monotonic_ms >= last.monotonic_ms and any(self.boot_id):
            now = last.engine_ms + monotonic_ms - last.monotonic_ms
        else:
            # Another boot: trust the wall clock less what it had strayed from this timeline by then.
            now = wall_ms - (last.wall_ms - last.engine_ms)
        self._shift = max(now, floor_ms, last.engine_ms if last else 0) - monotonic_ms
        self._offset_ms = wall_ms - monotonic_ms - self._shift

    def now_ms(self) -> int:
        """Return the shard's time."""
        return self._clock.monotonic_ms() + self._shift

    def beat(self, seq: int, manifest: tuple[int, int] = (0, 0), *, clean: bool = False) -> Beat:
        """Return that everything up to ``seq`` is synced, and what time it is on every clock that the shard goes by."""
        monotonic_ms = self._clock.monotonic_ms()
        return Beat(
            seq, monotonic_ms + self._shift, self._clock.wall_ms(), monotonic_ms, self.boot_id, clean, *manifest
        )  # fmt: skip

    def wall_offset_ms(self) -> int:
        """Return what to add to shard time to get wall time, to a few ms: it stays the same until the clocks really part.

        They are read one after the other and each is cut to whole ms. Without that, the same moment would be told as another each time.
        """
        offset_ms = self._clock.wall_ms() - self._clock.monotonic_ms() - self._shift
        if abs(offset_ms - self._offset_ms) > _UNSTEADY_MS:
            self._offset_ms = offset_ms
        return self._offset_ms
