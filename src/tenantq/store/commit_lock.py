"""A lock that one of several processes holds for the time of a commit."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tenantq.errors import StoreFailed

_MODE: Final = 0o600
_LOOK_S: Final = 0.001


class CommitLock:
    """A lock on a file of its own. The system releases it when its process dies. Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        """Open the file; create it if it is missing. Raises OSError."""
        self._path = path
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, _MODE), "rb")

    @contextmanager
    def held(self, wait_s: float) -> Iterator[None]:
        """Hold the lock inside the block. Raises StoreFailed if others hold it for longer than ``wait_s``, or after ``close``."""
        if self._file.closed:
            raise StoreFailed(f"{self._path}: closed")
        self._acquire(time.monotonic() + wait_s)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _acquire(self, until: float) -> None:
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    raise StoreFailed(
                        f"{self._path} is locked by another process of this server. Try again."
                    ) from error
                time.sleep(_LOOK_S)
            except OSError as error:
                raise StoreFailed(f"{self._path} cannot be locked: {error.strerror}") from error
            else:
                return

    def close(self) -> None:
        """Close the file."""
        self._file.close()
