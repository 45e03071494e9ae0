"""Opening a RocksDB store after any stop: checks its format, repairs logs that a crash has torn, and refuses lost work."""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
from rocksdict import Rdict

from tenantq.errors import StoreDamaged, StoreFailed, StoreFormat
from tenantq.runtime.durable_files import sync, write_durably
from tenantq.store.database import last_item, name_failure, open_rocks
from tenantq.store.framing import check_manifest, torn_logs
from tenantq.store.keys import from_be64
from tenantq.store.sync_marker import SyncMarkerFile, read_beat

FORMAT: Final = 1
SPREAD_FORMAT: Final = 2
"""The format since the first tenant was spread over shards. Programs that do not know parts of tenants refuse it."""

STAGE: Final = "checkpoint.new"
"""The directory of a checkpoint while it is copied. One that a crash left is removed on opening."""
EXAMINED: Final = "checkpoint.examined-"
"""Prefix of the checkpoints that tools take of a running store. Those that a crash left are removed on opening."""
_BEFORE_STORE: Final = {
    "lock", ".format.new", "keyring.json", "keyring.json.lock", "keyring.key", "key_maker",
    "directory.db", "directory.db-shm", "directory.db-wal", "directory.lock",
}  # fmt: skip
"""Files that may exist before the store."""


class FormatFile(msgspec.Struct, frozen=True):
    """The file ``format``: what wrote this directory."""

    format: int
    product: str = "tenantq"


def check_format(path: Path, *, read_only: bool) -> None:
    """Raise StoreFormat or StoreDamaged unless the directory is empty or holds a store of this program's format."""
    file = path / "format"
    if not file.exists():
        strangers = sorted(p.name for p in path.iterdir() if p.name not in _BEFORE_STORE)
        if strangers:
            raise StoreFormat(
                f"{path}: no tenantq store, but not empty (found {strangers[0]!r}). Choose another directory."
            )
        if not read_only:
            write_durably(file, msgspec.json.encode(FormatFile(FORMAT)))
            sync(path.parent)
        return
    try:
        found = msgspec.json.decode(file.read_bytes(), type=FormatFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"{file} is unreadable: {error}") from error
    if found.format not in {FORMAT, SPREAD_FORMAT} or found.product != "tenantq":
        raise StoreFormat(
            f"{path}: unsupported format {found.format}; this program reads formats {FORMAT} and {SPREAD_FORMAT}."
            " Use the version of tenantq that wrote it."
        )


def raise_format(path: Path) -> None:
    """Make programs that do not know parts of tenants refuse a store."""
    write_durably(path / "format", msgspec.json.encode(FormatFile(SPREAD_FORMAT)))


def open_database(
    path: Path,
    sync_marker: SyncMarkerFile | None,
    memory_bytes: int,
    closing: ExitStack,
    *,
    even_if_cut: bool,
    compacting: bool = True,
) -> Rdict:
    """Return the database of a store if nothing confirmed is missing. Raises StoreDamaged and changes nothing otherwise.

    ``sync_marker`` None: read only. ``closing`` holds what to clean up after the database has been closed. With
    ``even_if_cut``, synced records may be missing from the end of the journal, for tools that examine a store.
    """
    directory, read_only = path / "db", sync_marker is None
    last = sync_marker.last if sync_marker is not None else read_beat(path / "heart")
    if last is not None and last.seq > 0 and not (directory / "CURRENT").exists():
        raise StoreDamaged(
            f"store {path}: the database is missing; it had {last.seq} journal records. Restore a backup."
        )
    check_manifest(directory, last)
    torn = dict(torn_logs(directory))
    seq = last.seq if last is not None and not even_if_cut else 0
    if torn and read_only:
        copy = Path(closing.enter_context(TemporaryDirectory(prefix="tenantq-")))
        _link_files(path, copy, torn, os.symlink)
        directory = copy
    if torn and not read_only:
        _truncate_logs(path, torn, memory_bytes, seq)
    elif seq:
        # The log is read up to its first bad record. The sync marker says whether that lost anything confirmed. The check
        # uses a read-only handle, which leaves the files of a refused store unchanged.
        _check_nothing_lost(path, open_rocks(directory, memory_bytes, read_only=True), seq)
    db = open_rocks(directory, memory_bytes, read_only=read_only, compacting=compacting)
    if last is None and not read_only:
        sync(path)  # a new store: its file names are durable before anything is confirmed
    return db


def _truncate_logs(path: Path, torn: dict[Path, int], memory_bytes: int, seq: int) -> None:
    """Truncate logs after their last complete record, if everything confirmed is before it.

    This is checked on a copy of the database whose logs are truncated already.
    """
    stage = path / STAGE
    stage.mkdir()
    try:
        _link_files(path, stage, torn, os.link)
        _check_nothing_lost(path, open_rocks(stage, memory_bytes, read_only=True), seq)
        for log, end in torn.items():
            with log.open("r+b") as opened:
                opened.truncate(end)
                os.fsync(opened.fileno())
    except OSError as error:
        raise StoreFailed(f"store {path}: {error}. Nothing was changed.") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _link_files(path: Path, copy: Path, torn: dict[Path, int], link: Callable[[Path, Path], None]) -> None:
    """Fill ``copy`` with links to a store's files, and with copies of the torn logs up to their ends."""
    try:
        for file in (path / "db").iterdir():
            if file in torn:
                with file.open("rb") as stream:
                    (copy / file.name).write_bytes(stream.read(torn[file]))
            elif not file.name.startswith("LO"):  # neither LOCK nor LOG
                link(file.resolve(), copy / file.name)
    except OSError as error:
        raise StoreFailed(f"store {path}: {error}. Nothing was changed.") from error


def _check_nothing_lost(path: Path, db: Rdict, seq: int) -> None:
    journal = db.get_column_family("jn")
    try:
        newest = last_item(journal, b"", b"\xff" * 8)
    except Exception as error:
        raise name_failure(error, path) from error
    finally:
        journal.close()
        db.close()
    found = from_be64(newest[0]) if newest else 0
    if found < seq:
        raise StoreDamaged(
            f"store {path}: the journal ends at record {found}, but {seq} was synced: acknowledged work is"
            " missing from the log. Nothing was changed. Restore a backup."
        )
