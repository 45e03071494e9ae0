"""Preallocated space in the write-ahead log.

Syncing a file that has grown also writes its length and blocks, through the file system's own journal and thread. A log that
is filled with zeros in advance is only overwritten, so its sync takes about half the time and less CPU. RocksDB treats zeros
as the end of a log, and truncates them when it closes one.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

AHEAD_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(AHEAD_BYTES)


class LogSpace:
    """Keeps zeros ahead in the newest log of a database. Only the writing thread uses it, never during a write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = -1
        self._length = 0  # of the log with its zeros

    def keep(self) -> None:
        """Fill ahead if the log has outgrown what was filled, or another was begun. On a full disk nothing is filled."""
        if self._file >= 0:
            found = os.fstat(self._file)
            if found.st_size == self._length and found.st_nlink:
                return
        with contextlib.suppress(OSError):
            self._fill()

    def _fill(self) -> None:
        self.close()
        newest = max(self._directory.glob("*.log"), key=lambda log: (len(log.name), log.name), default=None)
        if newest is None:
            return
        self._file = os.open(newest, os.O_WRONLY | os.O_CLOEXEC)
        os.pwrite(self._file, _ZEROS, os.fstat(self._file).st_size)
        self._length = os.fstat(self._file).st_size

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
