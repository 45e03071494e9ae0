"""The shard's own time: it never goes back, and no jump of the wall clock moves it.

Leases, delays and lifetimes are measured on it. It is anchored to the wall clock when the store is first opened, and
then follows the monotonic clock, also across restarts while the machine stays up. On another machine it follows the store's clock. Times that users see are converted
to wall time when the reply is built, so they are right after the clock was corrected.
"""

from typing import Final

from tenantq.runtime.clock import Clock
from tenantq.store.interface import Beat

_UNSTEADY_MS: Final = 2


class ShardClock:
    """Milliseconds on the shard's own scale."""

    def __init__(self, clock: Clock, last: Beat | None, floor_ms: int, since_last_ms: int | None = None) -> None:
        """Continue from ``last``, and never before ``floor_ms``, the time of the newest journal record.

        ``since_last_ms``: the age of ``last`` by a clock that all owners of the shard share, if there is one.
        """
        self._clock = clock
        self.boot_id = clock.boot_id()
        monotonic_ms, wall_ms = clock.monotonic_ms(), clock.wall_ms()
        if last is None:
            now = wall_ms
        elif last.boot_id == self.boot_id and monotonic_ms >= last.monotonic_ms and any(self.boot_id):
            now = last.engine_ms + monotonic_ms - last.monotonic_ms
        elif since_last_ms is not None:
            now = last.engine_ms + since_last_ms  # another machine, whose wall clock may differ
        else:
            # Another boot: use the wall clock, less its offset from the shard's time at the last beat.
            now = wall_ms - (last.wall_ms - last.engine_ms)
        self._shift = max(now, floor_ms, last.engine_ms if last else 0) - monotonic_ms
        self._offset_ms = wall_ms - monotonic_ms - self._shift

    def now_ms(self) -> int:
        """Return the shard's time."""
        return self._clock.monotonic_ms() + self._shift

    def beat(self, seq: int, manifest: tuple[int, int] = (0, 0), *, clean: bool = False) -> Beat:
        """Return a beat: everything up to ``seq`` is synced, with the time of all clocks that the shard uses."""
        monotonic_ms = self._clock.monotonic_ms()
        return Beat(
            seq, monotonic_ms + self._shift, self._clock.wall_ms(), monotonic_ms, self.boot_id, clean, *manifest
        )  # fmt: skip

    def wall_offset_ms(self) -> int:
        """Return what to add to shard time to get wall time. It changes only when the clocks differ by more than a few ms.

        The clocks are read one after the other and cut to whole ms. Without this, the same time would be shown differently.
        """
        offset_ms = self._clock.wall_ms() - self._clock.monotonic_ms() - self._shift
        if abs(offset_ms - self._offset_ms) > _UNSTEADY_MS:
            self._offset_ms = offset_ms
        return self._offset_ms
