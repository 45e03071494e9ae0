"""Copies files durably with their hashes, and directories that appear atomically."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenantq.backup.manifest import CHUNK_BYTES, BackupFile
from tenantq.errors import DiskFull, StoreFailed, StoreLocked, Unavailable
from tenantq.runtime.durable_files import sync
from tenantq.store.directory_lock import DirectoryLock

_LOCK = ".atomic_directory"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def copy_file(source: Path, copy: Path) -> BackupFile:
    """Copy and sync a file, readable only by its owner. Returns its size and hash."""
    digest, size = hashlib.sha256(), 0
    copy.parent.mkdir(parents=True, exist_ok=True)
    with (
        source.open("rb") as reading,
        os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as writing,
    ):
        while chunk := reading.read(CHUNK_BYTES):
            digest.update(chunk)
            writing.write(chunk)
            size += len(chunk)
        writing.flush()
        os.fsync(writing.fileno())
    return BackupFile(size, digest.hexdigest())


@contextmanager
def atomic_directory(destination: Path, suffix: str) -> Iterator[Path]:
    """Yield a temporary directory that becomes ``destination`` at the end of the block, or is removed if it raises.

    Leftovers of killed processes are removed. Disk errors become StoreFailed.
    """
    partial = destination.with_name(f".{destination.name}.{suffix}")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        for old in destination.parent.glob(f".*.{suffix}"):
            _remove_abandoned(old)
        partial.mkdir(mode=0o700)
    except FileExistsError as error:
        raise StoreLocked(
            f"{partial}: another process is writing it. Wait for it to finish, or choose another name."
        ) from error
    except OSError as error:
        raise Unavailable(
            f"{error.filename or destination}: {error.strerror}. Check the path and its permissions."
        ) from error
    lock = DirectoryLock(partial, _LOCK)
    try:
        yield partial
        (partial / _LOCK).unlink()
        for directory in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
            sync(directory)
        if destination.is_dir():
            destination.rmdir()  # it is empty, or this raises
        partial.rename(destination)
        sync(destination.parent)
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(f"{destination}: not enough disk space. Nothing was written.") from error
        raise StoreFailed(f"{error.filename or destination}: {error.strerror}. Nothing was written.") from error
    finally:
        lock.close()
        shutil.rmtree(partial, ignore_errors=True)


def _remove_abandoned(partial: Path) -> None:
    try:
        DirectoryLock(partial, _LOCK).close()
    except (StoreLocked, OSError):
        return  # another process uses it
    shutil.rmtree(partial, ignore_errors=True)
