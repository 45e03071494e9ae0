"""The thread that syncs: rounds are handed over after their write and reported back after the sync that covers them."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from tenantq.errors import StoreFailed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tenantq.engine.round import Round
    from tenantq.store.rocks import Store


class Committer:
    """Syncs all rounds that were written meanwhile at once, off the event loop."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        done: Callable[[list[Round], StoreFailed | None], None],
        probe: Callable[[str], None],
    ) -> None:
        self._store = store
        self._loop = loop
        self._done = done
        self._probe = probe
        self._written: queue.SimpleQueue[Round | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tenantq-committer", daemon=True)
        self._thread.start()

    def hand_over(self, round: Round) -> None:
        """Have a written round synced."""
        self._written.put(round)

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
        try:
            self._probe("before_sync")
            self._store.sync()
            self._probe("after_sync")
        except StoreFailed as error:
            return error
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing may be confirmed after it
            return StoreFailed(f"the sync broke: {error!r}; nothing of this round is confirmed")
        return None
