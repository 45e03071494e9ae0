"""The lock of a data directory."""

import fcntl
import os
from pathlib import Path

from tenantq.errors import StoreLocked


class DirectoryLock:
    """Ensures that one process at a time uses a data directory."""

    def __init__(self, directory: Path, name: str = "lock") -> None:
        self._file = (directory / name).open("a+", encoding="ascii")  # held until close
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            holder = self._file.read(20).strip() or "unknown"
            self._file.close()
            raise StoreLocked(
                f"{directory} is in use by process {holder}; stop it, or choose another directory with --data-dir"
            ) from error
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
