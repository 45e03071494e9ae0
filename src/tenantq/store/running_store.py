"""Opens the store of a running server for tools, from a checkpoint: hard links and copies of its files.

RocksDB never changes a table, and removes files only after an edit of its MANIFEST. So the links are complete if MANIFEST did not
change meanwhile. Logs are copied from the newest to the oldest: a log that has a successor with records is complete.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tenantq.errors import Unavailable
from tenantq.store.crash_recovery import EXAMINED
from tenantq.store.framing import current_manifest
from tenantq.store.rocks import RocksStore

_ATTEMPTS: Final = 100


def open_running(path: Path, *, even_if_cut: bool = False) -> RocksStore:
    """Open a checkpoint of the store in ``path``, read-only. Closing it removes the checkpoint.

    The server keeps its lock and keeps writing. Raises Unavailable if its files change too fast to link.
    """
    kept = TemporaryDirectory(prefix=EXAMINED, dir=path)
    copy = Path(kept.name)
    try:
        for file in ("format", "heart"):  # before the database, which then has everything that the sync marker covers
            shutil.copyfile(path / file, copy / file)
        if not any(_link_database(path / "db", copy / "db") for _ in range(_ATTEMPTS)):
            raise Unavailable(f"{path}: the files of the running server change too fast. Try again later.")  # noqa: TRY301  # cleans up
        store = RocksStore(copy, read_only=True, even_if_cut=even_if_cut)
    except BaseException:
        kept.cleanup()
        raise
    store.call_on_close(kept.cleanup)
    return store


def _link_database(source: Path, copy: Path) -> bool:
    """Link and copy the files of a database. Returns False, and leaves nothing, if they changed meanwhile."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    manifest = current_manifest(source)
    if manifest is None:
        return True
    with suppress(FileNotFoundError):  # RocksDB removed a file
        data = manifest.read_bytes()
        files = sorted(source.iterdir(), key=lambda file: (len(file.name), file.name), reverse=True)
        for file in files:
            if file.suffix == ".sst":
                os.link(file, copy / file.name)
        for file in files:
            if file.suffix == ".log" or file.name.startswith("OPTIONS-"):
                shutil.copyfile(file, copy / file.name)
        (copy / manifest.name).write_bytes(data)
        (copy / "CURRENT").write_text(f"{manifest.name}\n", encoding="ascii")
        return current_manifest(source) == manifest and manifest.stat().st_size == len(data)
    return False
