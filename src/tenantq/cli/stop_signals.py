"""SIGINT and SIGTERM: the first asks to stop in good order, the second ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal

from tenantq.cli.exit_codes import SIGNAL


class StopSignals:
    """Listens from the moment it is made, in the main thread and its event loop."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.number = 0  # of the signal that asked
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._received)

    def _received(self, number: int, _: object) -> None:
        if self.number:
            os._exit(SIGNAL + number)  # as safe as a crash: what was confirmed is on the disk, leases end by themselves
        self.number = number
        self._loop.call_soon_threadsafe(self.asked.set)

    @property
    def name(self) -> str:
        """What the signal that asked is called."""
        return signal.Signals(self.number).name
