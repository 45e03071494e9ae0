"""The heartbeat of a shard: updates the store's sync marker after every sync, and while the store still changes files."""

from typing import Final

from tenantq.engine.shard_clock import ShardClock
from tenantq.runtime.clock import Clock, Timer
from tenantq.store.interface import Store

LOOK_AGAIN_MS: Final = 5_000
"""How long after a beat the store's MANIFEST is checked again."""


class HeartbeatTimer:
    """Writes what is synced, and when, to the sync marker of a writable store."""

    def __init__(self, store: Store, shard_clock: ShardClock, clock: Clock, seq: int) -> None:
        """Continue from ``seq``, the last journal record found."""
        assert store.sync_marker is not None
        self._files, self._sync_marker = store.files, store.sync_marker
        self._shard_clock, self._clock = shard_clock, clock
        self._seq = seq
        self._manifest = (0, 0)
        self._timer: Timer | None = None
        self._stopped = False

    def start(self) -> None:
        """Start to watch the store's files."""
        if self._timer is None:
            self._look()

    def beat(self, seq: int, *, clean: bool = False) -> None:
        """Record that everything up to ``seq`` is synced; ``clean``: and that the store is closed properly."""
        self._seq, self._manifest = seq, self._files.manifest()
        self._sync_marker.beat(self._shard_clock.beat(seq, self._manifest, clean=clean))
        if self._timer is None and not self._stopped:
            self._timer = self._clock.call_later(LOOK_AGAIN_MS, self._look)

    def stop(self) -> None:
        """Stop beating by itself."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Record a MANIFEST that grew by a flush or compaction after the last sync, until those are done."""
        self._timer = None
        if self._files.forget_deletions() or self._files.manifest() != self._manifest:
            self.beat(self._seq)
