"""The committer: rounds are handed over after their write and reported back after the sync that covers them.

Waking another thread and being woken by it takes about as long as a sync on a fast disk. So if the disk is fast and
nothing else waits, the event loop syncs by itself. Otherwise a thread syncs while the loop continues.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Final

from tenantq.engine.round import Round
from tenantq.errors import StoreFailed
from tenantq.runtime.clock import Clock
from tenantq.runtime.histogram import Histogram
from tenantq.store.interface import Store

QUICK_MS: Final = 2
"""A longer sync indicates a slow disk, which the event loop does not wait for."""
PROBATION: Final = 64
"""How many fast syncs in a row the thread must see before the event loop syncs again."""


class Committer:
    """Syncs written rounds: directly on the event loop, or on a thread that syncs all waiting rounds together."""

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
        self._probation = 0  # fast syncs still required before the event loop syncs again
        self._thread = threading.Thread(target=self._run, name="tenantq-committer", daemon=True)
        self._thread.start()

    @property
    def is_quick(self) -> bool:
        """Whether the disk has been fast lately."""
        return self._probation == 0

    def hand_over(self, round: Round) -> None:
        """Have a written round synced on the thread."""
        self._written.put(round)

    def sync(self) -> StoreFailed | None:
        """Sync all that is written; return what went wrong. On the event loop only while nothing is with the thread."""
        started_us = self._clock.monotonic_us()
        try:
            self._probe("before_sync")
            self._store.sync()
            self._probe("after_sync")
        except StoreFailed as error:
            return error
        except Exception as error:  # noqa: BLE001  # nothing may be confirmed after any failure
            return StoreFailed(f"the sync failed: {error!r}. No operation of this round is confirmed.")
        took_us = self._clock.monotonic_us() - started_us
        self.took.count(took_us)
        self._probation = PROBATION if took_us // 1_000 > QUICK_MS else max(0, self._probation - 1)
        return None

    def close(self) -> None:
        """Sync the waiting rounds and end the thread."""
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
                failure = self.sync()
                self._loop.call_soon_threadsafe(self._done, rounds, failure)
                if failure is not None:
                    return
