"""Files with secrets, which are read only if no other user can read them."""

import os
import stat
from pathlib import Path
from typing import Final

from tenantq.errors import Invalid

BYTES_MAX: Final = 4 << 20


def read_secret_file(path: Path) -> tuple[bytes, tuple[int, ...]]:
    """Return a file's content and a stamp that changes with it. Raises OSError, or Invalid if others may read it or it is too large."""
    with path.open("rb") as file:
        facts = os.fstat(file.fileno())  # of the opened file, which cannot be replaced meanwhile
        if not stat.S_ISREG(facts.st_mode):
            raise Invalid("not a regular file")
        mode = stat.S_IMODE(facts.st_mode)
        if mode & 0o177:
            raise Invalid(f"other users can access it (mode {mode:04o}). Run: chmod 600 {path}")
        if facts.st_uid not in {os.geteuid(), 0}:
            raise Invalid(f"another user owns it (uid {facts.st_uid}). Change its owner to the server's user.")
        content = file.read(BYTES_MAX + 1)
    if len(content) > BYTES_MAX:
        raise Invalid(f"too large (limit {BYTES_MAX} bytes)")
    return content, _stamp(facts)


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return the current stamp of a file. Raises OSError."""
    return _stamp(path.stat())


def _stamp(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino, facts.st_mode
