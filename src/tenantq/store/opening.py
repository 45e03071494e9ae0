"""Opening a store: its format, logs that a crash has torn, and whether anything is missing that was confirmed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.errors import StoreDamaged, StoreFailed, StoreFormat
from tenantq.runtime.durable_files import sync, write_durably
from tenantq.store.database import last_item, name_failure, open_rocks
from tenantq.store.framing import check_manifest, torn_logs
from tenantq.store.keys import from_be64
from tenantq.store.sync_marker import read_beat

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from rocksdict import Rdict

    from tenantq.store.sync_marker import SyncMarker

FORMAT: Final = 1
STAGE: Final = "checkpoint.new"
"""Where in the data directory a checkpoint stands while it is copied; one that a crash left is removed on opening."""
_BEFORE_STORE: Final = {
    "lock",
    ".format.new",
    "keyring.json",
    "keyring.json.lock",
    "keyring.key",
    "key_maker",
}  # may be there before the store


class FormatFile(msgspec.Struct, frozen=True):
    """The file ``format``: what wrote this directory."""

    format: int
    product: str = "tenantq"


def check_format(path: Path, *, read_only: bool) -> None:
    """See that a directory holds a store of this program's format, or none yet and nothing else; raise StoreFormat or StoreDamaged."""
    file = path / "format"
    if not file.exists():
        strangers = sorted(p.name for p in path.iterdir() if p.name not in _BEFORE_STORE)
        if strangers:
            raise StoreFormat(f"{path} is not empty and holds no tenantq store (found {strangers[0]!r})")
        if not read_only:
            write_durably(file, msgspec.json.encode(FormatFile(FORMAT)))
            sync(path.parent)
        return
    try:
        found = msgspec.json.decode(file.read_bytes(), type=FormatFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"{file} is unreadable: {error}") from error
    if found.format != FORMAT or found.product != "tenantq":
        raise StoreFormat(f"{path} is of format {found.format}; this program reads format {FORMAT}")


def open_database(
    path: Path, heart: SyncMarker | None, memory_bytes: int, closing: ExitStack, *, even_if_cut: bool
) -> Rdict:
    """Return the database of a store once it is sure that nothing confirmed is missing; raise StoreDamaged and alter nothing otherwise.

    ``heart`` None: only to read. ``closing`` is for when the database has been closed. ``even_if_cut`` is for who examines it:
    synced records may be missing from the journal's end.
    """
    directory, read_only = path / "db", heart is None
    last = heart.last if heart is not None else read_beat(path / "heart")
    if last is not None and last.seq > 0 and not (directory / "CURRENT").exists():
        raise StoreDamaged(f"store {path}: the database is gone, {last.seq} journal records were in it")
    check_manifest(directory, last)
    torn = dict(torn_logs(directory))
    seq = last.seq if last is not None and not even_if_cut else 0
    if torn and read_only:
        likeness = Path(closing.enter_context(TemporaryDirectory(prefix="tenantq-")))
        _liken(path, likeness, torn, os.symlink)
        directory = likeness
    if torn and not read_only:
        _cut(path, torn, memory_bytes, seq)
    elif seq:
        # The log is read up to its first bad record. Whether that took anything confirmed is the heart's question, and it
        # is asked on a read-only handle, which alters nothing, so a refusal leaves the evidence as it was.
        _check_nothing_lost(path, open_rocks(directory, memory_bytes, read_only=True), seq)
    db = open_rocks(directory, memory_bytes, read_only=read_only)
    if last is None and not read_only:
        sync(path)  # a new store: its files' names are durable before anything is confirmed
    return db


def _cut(path: Path, torn: dict[Path, int], memory_bytes: int, seq: int) -> None:
    """Cut off what stands behind the last whole records of logs, if everything that was confirmed is before it.

    That is asked of a likeness of the database, in which the logs are cut already.
    """
    stage = path / STAGE
    stage.mkdir()
    try:
        _liken(path, stage, torn, os.link)
        _check_nothing_lost(path, open_rocks(stage, memory_bytes, read_only=True), seq)
        for log, end in torn.items():
            with log.open("r+b") as opened:
                opened.truncate(end)
                os.fsync(opened.fileno())
    except OSError as error:
        raise StoreFailed(f"store {path}: {error}; nothing was altered") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _liken(path: Path, likeness: Path, torn: dict[Path, int], link: Callable[[Path, Path], None]) -> None:
    """Fill ``likeness`` with links to a store's files, and with copies of the torn logs up to their ends."""
    try:
        for file in (path / "db").iterdir():
            if file in torn:
                with file.open("rb") as whole:
                    (likeness / file.name).write_bytes(whole.read(torn[file]))
            elif not file.name.startswith("LO"):  # neither LOCK nor the diary, LOG
                link(file.resolve(), likeness / file.name)
    except OSError as error:
        raise StoreFailed(f"store {path}: {error}; nothing was altered") from error


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
            " missing from the log; restore from a backup, nothing was altered by this refusal"
        )
