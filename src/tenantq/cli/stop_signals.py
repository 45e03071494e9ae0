"""SIGINT and SIGTERM: the first signal requests a clean stop, the second ends the process immediately."""

import asyncio
import os
import signal
from collections.abc import Callable, Collection
from typing import Any, Self

from tenantq.cli.exit_codes import SIGNAL


class StopSignals:
    """Handles signals from its creation, in the main thread and its event loop. As a context manager, until the end of the block.

    ``last`` is called before a second signal ends the process. ``also`` lists further signals that request a stop.
    """

    def __init__(self, *, last: Callable[[], None] | None = None, also: Collection[signal.Signals] = ()) -> None:
        self.asked = asyncio.Event()
        self.number = 0  # of the first signal
        self._last = last
        self._loop = asyncio.get_running_loop()
        self._before: dict[int, Any] = {
            number: signal.signal(number, self._received) for number in (signal.SIGINT, signal.SIGTERM, *also)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _received(self, number: int, _: object) -> None:
        if self.number:
            if self._last is not None:
                self._last()
            os._exit(SIGNAL + number)  # as safe as a crash: acknowledged work is durable, leases expire
        self.number = number
        self._loop.call_soon_threadsafe(self.asked.set)

    @property
    def name(self) -> str:
        """The name of the first signal."""
        return signal.Signals(self.number).name
