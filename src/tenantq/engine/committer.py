"""The syncs: rounds are handed over after their write and reported back after the sync that covers them.

To wake another thread, and to be woken by it, takes about as long as a quick disk needs for a sync. So where the disk is quick and
nothing else waits, the event loop syncs by itself; everything else is for the thread, and the loop goes on meanwhile.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Final

from tenantq.errors import StoreFailed
from tenantq.runtime.histogram import Histogram

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tenantq.engine.round import Round
    from tenantq.runtime.clock import Clock
    from tenantq.store.interface import Store

QUICK_MS: Final = 2
"""A sync that takes longer shows a slow disk, which the event loop does not wait for."""
PROBATION: Final = 64
"""So many quick syncs in a row the thread has to see before the event loop trusts the disk again."""


class Committer:
    """Syncs what was written: at once on the event loop, or on a thread, there all rounds together that came meanwhile."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        done: Callable[[list[Round], StoreFailed | None], None],
        probe: Callable[[str], None],
    ) -> None:
        self._store = store
        self._loop = loop
        self._clock = clock
        self._done = done
        self._probe = probe
        self._written: queue.SimpleQueue[Round | None] = queue.SimpleQueue()
        self.took = Histogram()  # the syncs
        self._probation = 0  # quick syncs that are still wanted
        self._thread = threading.Thread(target=self._run, name="tenantq-committer", daemon=True)
        self._thread.start()

    @property
    def is_quick(self) -> bool:
        """Whether the disk has been quick of late."""
        return self._probation == 0

    def hand_over(self, round: Round) -> None:
        """Have a written round synced on the thread."""
        self._written.put(round)

    def sync_here(self, round: Round) -> None:
        """Sync a written round now, and report it in the event loop's next turn. Nothing may be with the thread."""
        self._loop.call_soon(self._done, [round], self._sync())

    def close(self) -> None:
        """Sync what was handed over and end the thread."""
        self._written.put(None)
        self._thread.join()

    def _run(self) -> None:
        more = True
        while more:
            rounds = []
            item = self._written.get()
            while item is not None:
                rounds.append(item)
                if self._written.empty():
                    break
                item = self._written.get()
            more = item is not None
            if rounds:
                failure = self._sync()
                self._loop.call_soon_threadsafe(self._done, rounds, failure)
                if failure is not None:
                    return

    def _sync(self) -> StoreFailed | None:
        started_us = self._clock.monotonic_us()
        try:
            self._probe("before_sync")
            self._store.sync()
            self._probe("after_sync")
        except StoreFailed as error:
            return error
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing may be confirmed after it
            return StoreFailed(f"the sync broke: {error!r}; nothing of this round is confirmed")
        took_us = self._clock.monotonic_us() - started_us
        self.took.count(took_us)
        self._probation = PROBATION if took_us // 1_000 > QUICK_MS else max(0, self._probation - 1)
        return None
