"""The fleet polls of a process that wait for messages."""

import asyncio


class FleetWaits:
    """Waiting polls by queue name. Shards signal it from their threads."""

    def __init__(self, main: asyncio.AbstractEventLoop) -> None:
        self._main = main
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def signal(self, queue: str) -> None:
        """Wake the polls of a queue name. Safe from any thread, and cheap if nobody waits."""
        if queue in self._waiting:
            self._main.call_soon_threadsafe(self._wake, queue)

    def _wake(self, queue: str) -> None:
        for event in self._waiting.get(queue, ()):
            event.set()

    def enter(self, queue: str) -> asyncio.Event:
        """Return an event that is set whenever messages may have arrived, until ``leave``."""
        event = asyncio.Event()
        self._waiting.setdefault(queue, set()).add(event)
        return event

    def leave(self, queue: str, event: asyncio.Event) -> None:
        """Stop waiting."""
        waiting = self._waiting[queue]
        waiting.discard(event)
        if not waiting:
            del self._waiting[queue]
