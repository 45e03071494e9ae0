"""Files that survive a power failure: write a temporary file, sync it, rename it, and sync the directory."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def write_durably(file: Path, data: bytes, mode: int = 0o666, *, new: bool = False) -> None:
    """Put ``data`` at ``file``: a reader finds the old bytes or all of the new, also after a power cut.

    ``mode`` says who may read it, as far as the process's mask allows. With ``new`` it raises FileExistsError if the file exists.
    """
    fresh = file.with_name(f".{file.name}.new")
    fresh.unlink(missing_ok=True)  # of a process that was killed
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    if new:
        try:
            os.link(fresh, file)
        finally:
            fresh.unlink()
    else:
        fresh.rename(file)
    sync(file.parent)


def sync(path: Path) -> None:
    """Sync a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Iterable[Path]) -> None:
    """Sync many paths, several at a time, which is faster."""
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(sync, paths):
            pass


def tree(root: Path) -> list[Path]:
    """Return a directory and everything in it, recursively."""
    return [root, *root.rglob("*")]
