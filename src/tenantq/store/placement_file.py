"""The tenant directory of embedded shards: one SQLite file, which the processes of all shards share."""

import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tenantq.domain.cluster_view import TenantPlacement
from tenantq.domain.placement import split_unit
from tenantq.errors import Conflict, StoreDamaged, StoreFailed
from tenantq.runtime.durable_files import sync
from tenantq.store.cluster_rows import CHANGES_KEPT, decode_placement, encode, unversioned
from tenantq.store.commit_lock import CommitLock

R = TypeVar("R")

FILE: Final = "directory.db"
LOCK: Final = "directory.lock"
BUSY_S: Final = 2.0
"""How long a change waits for a change by another process. A change takes as long as a sync of the disk."""

_NAMED_MAX: Final = 3  # tenants in an error

_SCHEMA: Final = Path(__file__).with_name("placement_file.sql").read_text(encoding="utf-8")
_MODE: Final = 0o600
_FIRST_VERSION: Final = 1
_ROWS: Final = "SELECT name, version, placement FROM directory"


class PlacementFile:
    """See ``cluster.registry.PlacementRows``. Every commit is synced; a killed process leaves nothing half written.

    SQLite before 3.51.3 can lose a commit if another process commits or checkpoints at the same instant
    (https://sqlite.org/wal.html#walresetbug). So processes open, commit and close one at a time, by a lock of their own.
    Without a write-ahead log there would be no such bug, but reads would wait for the syncs of every commit.
    """

    def __init__(self, home: Path, *, create: bool = False) -> None:
        """Open the directory of the shards in ``home``; with ``create``, create it if it is missing.

        Raises StoreFailed, StoreDamaged or OSError.
        """
        self.path = home / FILE
        if not self.path.exists():
            if not create:
                raise StoreFailed(f"{self.path} is missing. Restart the server, which rebuilds it from the shards.")
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, _MODE))
            sync(home)
        self._writing, self._reading = threading.Lock(), threading.Lock()
        with ExitStack() as opened:
            self._commits = opened.enter_context(closing(CommitLock(home / LOCK)))
            self._writer, self._reader = self._open(create=create)  # a reader never waits for a writer
            opened.pop_all()

    def _open(self, *, create: bool) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        with self._commits.held(BUSY_S), _translated(self.path), ExitStack() as opened:
            writer, reader = (opened.enter_context(closing(self._connect())) for _ in range(2))
            if create:
                writer.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}COMMIT;")
            opened.pop_all()
            return writer, reader

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def close(self) -> None:
        """Close the file. The last process writes the rest of the log into it."""
        with self._writing, self._reading, self._commits.held(BUSY_S):
            self._reader.close()
            self._writer.close()
        self._commits.close()

    # ---- see ``PlacementRows`` ----

    def place_tenant(self, tenant: str, placement: TenantPlacement) -> TenantPlacement:
        """Return the placement of a tenant; write the given one if it has none."""
        return self._change(lambda: self._read(tenant) or self._write(tenant, placement))

    def move_tenant(self, tenant: str, placement: TenantPlacement, expected_version: int) -> TenantPlacement | None:
        """Replace a placement that has this version. Return None if it has another one."""

        def change() -> TenantPlacement | None:
            found = self._read(tenant)
            return self._write(tenant, placement) if found is not None and found.version == expected_version else None

        return self._change(change)

    def remove_tenant(self, tenant: str) -> None:
        """Delete the placement of a tenant."""
        self._change(lambda: self._delete(tenant))

    def placements(self) -> tuple[int, dict[str, TenantPlacement]]:
        """Return the directory and its version."""
        with self._read_transaction() as reader:
            rows = reader.execute(_ROWS).fetchall()
            return _version(reader), {name: decode_placement(version, row) for name, version, row in rows}

    def placement_changes(self, since: int) -> tuple[int, dict[str, TenantPlacement | None]] | None:
        """Return the changes after a version, None for removed tenants; None: too old, read the whole directory."""
        with self._read_transaction() as reader:
            version = _version(reader)
            if version == since:
                return version, {}
            found = reader.execute(
                "SELECT version, name, placement FROM changes WHERE version > ? ORDER BY version", (since,)
            ).fetchall()
            if len(found) != version - since:
                return None
            return version, {
                name: decode_placement(number, row) if row is not None else None for number, name, row in found
            }

    # ---- moves ----

    def hold_moves(self, holder: int) -> None:
        """Refuse new moves until ``release_moves``. Raises Conflict if a tenant is moving, or ``holder`` already holds."""

        def change() -> None:
            rows = self._writer.execute(_ROWS).fetchall()
            moving = {
                split_unit(name)[0] for name, version, row in rows if _is_moving(name, decode_placement(version, row))
            }
            if moving:
                raise tenants_moving(moving)
            if not self._writer.execute("INSERT OR IGNORE INTO holds VALUES (?)", (holder,)).rowcount:
                raise Conflict("another backup is running. Wait until it is complete.")

        self._change(change)

    def release_moves(self, holder: int) -> None:
        """Allow new moves again."""
        self._change(lambda: self._writer.execute("DELETE FROM holds WHERE holder = ?", (holder,)))

    # ---- for a server that starts ----

    def release_all_moves(self) -> None:
        """Allow moves again, also if a shard that was creating a backup no longer exists. No shard may run."""
        self._change(lambda: self._writer.execute("DELETE FROM holds"))

    def is_new(self) -> bool:
        """Return whether ``fill`` was never called, and nothing was written."""
        with self._read_transaction() as reader:
            return _version(reader) == _FIRST_VERSION

    def fill(self, rows: Mapping[str, TenantPlacement]) -> None:
        """Write all rows of a new directory, in one commit. It is not new any more, even without rows."""

        def change() -> None:
            self._writer.execute("UPDATE state SET version = version + 1")
            for name, row in rows.items():
                self._write(name, row)

        self._change(change)

    # ---- inside a change ----

    def _read(self, name: str) -> TenantPlacement | None:
        found = self._writer.execute("SELECT version, placement FROM directory WHERE name = ?", (name,)).fetchone()
        return decode_placement(*found) if found is not None else None

    def _write(self, name: str, placement: TenantPlacement) -> TenantPlacement:
        if _is_moving(name, placement) and self._writer.execute("SELECT * FROM holds").fetchone() is not None:
            raise Conflict("a backup is being created. Try again when it is complete.", tenant=split_unit(name)[0])
        row = encode(unversioned(placement))
        version = self._log(name, row)
        self._writer.execute("INSERT OR REPLACE INTO directory VALUES (?, ?, ?)", (name, version, row))
        return msgspec.structs.replace(placement, version=version)

    def _delete(self, name: str) -> None:
        if self._writer.execute("DELETE FROM directory WHERE name = ?", (name,)).rowcount:
            self._log(name, None)

    def _log(self, name: str, row: bytes | None) -> int:
        version = _version(self._writer) + 1
        self._writer.execute("UPDATE state SET version = ?", (version,))
        self._writer.execute("INSERT INTO changes VALUES (?, ?, ?)", (version, name, row))
        self._writer.execute("DELETE FROM changes WHERE version <= ?", (version - CHANGES_KEPT,))
        return version

    # ---- transactions ----

    def _change(self, change: Callable[[], R]) -> R:
        with self._writing, self._commits.held(BUSY_S), _translated(self.path), _transaction(self._writer, "IMMEDIATE"):
            return change()

    @contextmanager
    def _read_transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reading, _translated(self.path), _transaction(self._reader, "DEFERRED"):
            yield self._reader


def read_placements(home: Path) -> dict[str, TenantPlacement] | None:
    """Return the directory of the shards in ``home``, or None if the file is missing. Changes nothing; a server may run.

    Raises StoreDamaged or StoreFailed.
    """
    path = home / FILE
    if not path.exists():
        return None
    # Without a log, nothing writes the file, and even opening it would create a log.
    mode = "mode=ro" if path.with_name(f"{FILE}-wal").exists() else "immutable=1"
    with _translated(path), closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as reader:
        [(found,)] = reader.execute("PRAGMA quick_check(1)").fetchall()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        return {name: decode_placement(version, row) for name, version, row in reader.execute(_ROWS)}


def remove_placements(home: Path) -> None:
    """Delete the directory of a server that now has one shard. One that is cut short leaves no file without its last commits."""
    found = [path for name in (FILE, f"{FILE}-wal", f"{FILE}-shm", LOCK) if (path := home / name).exists()]
    for path in found:
        path.unlink()
    if found:
        sync(home)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Raise errors of SQLite as errors of a store."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
        raise StoreFailed(f"{path}: {error}") from error
    except (sqlite3.DatabaseError, msgspec.DecodeError) as error:
        raise StoreDamaged(
            f"{path} is damaged: {error}. Stop the server and delete the file. The next start rebuilds it from"
            " the shards, without pins."
        ) from error


def tenants_moving(tenants: Collection[str] = ()) -> Conflict:
    """Return the error for a backup that would miss a tenant, or contain it twice."""
    named, more = sorted(tenants)[:_NAMED_MAX], len(tenants) - _NAMED_MAX
    names = f": {', '.join(named)}" if named else ""
    return Conflict(
        f"tenants are moving between shards{names}{f' and {more} more' if more > 0 else ''}. Wait until they have moved, then"
        " create the backup again. 'tenantq cluster status' shows why a move does not end, and 'tenantq topology unpin' gives it"
        " up before it is decided."
    )


def _is_moving(name: str, row: TenantPlacement) -> bool:
    """Return whether rows of a tenant move, or soon will."""
    is_group = bool(split_unit(name)[1])  # it has a row until it has reached the shard of its hash
    return is_group or row.moving_to is not None or bool(row.next_shards or row.leaving) or len(row.shards) == 1


@contextmanager
def _transaction(connection: sqlite3.Connection, kind: str) -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    found: int = connection.execute("SELECT version FROM state").fetchone()[0]
    return found
