"""The interface of a store.

A store has eleven families of rows (see keys.py). One event loop reads and changes it, in atomic batches. How to add
one: docs/internals/extending.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from tenantq.errors import StoreFailed
from tenantq.runtime.histogram import Histogram


class Beat(msgspec.Struct, frozen=True):
    """What was synced last, and when. Its fields are in the order of the sync marker file."""

    seq: int  # the last journal record that was synced
    engine_ms: int
    wall_ms: int
    monotonic_ms: int
    boot_id: bytes
    clean: bool  # the store was closed properly after this
    manifest_number: int  # RocksDB: the current MANIFEST ...
    manifest_bytes: int  # ... and its size


class SyncMarker(Protocol):
    """Stores the newest beat, from which the shard's time continues."""

    last: Beat | None

    @property
    def since_last_ms(self) -> int | None:
        """The age of ``last`` by a clock of the store; None if it has none."""

    def beat(self, beat: Beat) -> None:
        """Store it in place of the last one."""


class StoreFigure(NamedTuple):
    """A figure of a store for the metrics. Names of counters end with ``_total``. Histograms have no labels."""

    name: str
    meaning: str
    labels: dict[str, str]
    value: float | Histogram


class Family(msgspec.Struct, eq=False):
    """One family of rows: the handle for batches and the view that its store reads from."""

    name: str
    handle: Any
    view: Any


class Batch(Protocol):
    """Changes that are applied together, in order."""

    def put(self, key: bytes, value: bytes, handle: Any, /) -> None:
        """Set a row."""

    def delete(self, key: bytes, handle: Any, /) -> None:
        """Delete a row, if it exists."""

    def delete_range(self, lower: bytes, upper: bytes, handle: Any, /) -> None:
        """Delete all rows in [lower, upper)."""

    def is_empty(self) -> bool:
        """Return whether it has no changes."""


class Items(list[tuple[bytes, bytes]]):
    """Rows in order; ``cut``: the last row is the first one beyond the requested bytes."""

    cut = False


class StoreSnapshot(Protocol):
    """Some families as they were when it was taken. One thread at a time may read it."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of ``key``, or None."""
        found = self.items(family, key, key + b"\0", 1)
        return found[0][1] if found else None

    def keys(self, family: str, lower: bytes, limit: int) -> list[bytes]:
        """Return up to ``limit`` keys from ``lower`` on, in order."""

    def items(self, family: str, lower: bytes, upper: bytes, limit: int, bytes_max: int | None = None) -> Items:
        """Return up to ``limit`` rows in [lower, upper), in order; ``bytes_max`` ends them with the first row beyond it."""

    def walk(self, family: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the rows whose keys start with ``prefix``, in order. One walk of a family at a time."""

    def close(self) -> None:
        """Close the snapshot. Nothing can be read afterwards."""


class ManyDeleted(Exception):  # no failure: the caller searches elsewhere
    """A scan passed too many deleted rows."""


class TooLargeToCopy(Exception):
    """A queue has too many rows to copy at once while a server changes them."""


class StoreReader(ABC):
    """The rows of one shard, for reading. Every failure is a StoreFailed or a subclass."""

    path: Path  # the data directory, for local files of every store
    meta: Family
    m: Family
    vi: Family
    le: Family
    li: Family
    gr: Family
    ik: Family
    re: Family
    ex: Family
    qc: Family
    jn: Family

    def __init__(self, families: Iterable[Family]) -> None:
        """Provide the families by name and as attributes; see keys.py."""
        self._families = {family.name: family for family in families}
        for name, family in self._families.items():
            setattr(self, name, family)

    def _drop_families(self) -> None:
        """Forget the families of a store that closes, so that nothing can use it."""
        for name in self._families:
            delattr(self, name)
        self._families.clear()

    def family(self, name: str) -> Family:
        return self._families[name]

    def name_queue(self, prefix: bytes, name: str | None) -> None:  # noqa: B027  # most stores ignore it
        """Note the name ``TENANT:QUEUE`` before the first row of a queue is written; None: the queue is deleted.

        For stores that show names in their keys.
        """

    @abstractmethod
    def last_beat(self) -> Beat | None:
        """Return the newest stored beat."""

    @abstractmethod
    def close(self) -> None:
        """Close everything in any case, then raise the first failure."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of ``key``, or None."""
        return self.get_many(family, [key])[0]

    @abstractmethod
    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` in order, None for each that is absent."""

    @abstractmethod
    def scan(self, family: Family, lower: bytes, upper: bytes, limit: int, *, deleted_max: int = 0) -> list[bytes]:
        """Return up to ``limit`` keys in [lower, upper), in order.

        Raises ManyDeleted if that would pass more than ``deleted_max`` deleted rows; 0: no limit.
        """

    @abstractmethod
    def scan_items(self, family: Family, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` keys in [lower, upper) with their values, in order. Safe from any thread."""

    @abstractmethod
    def last_item(self, family: Family, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """Return the greatest key in [lower, upper) with its value, or None. Safe from any thread."""


class StoreOwnership(Protocol):
    """The claim of this process on an open store. Safe from any thread."""

    epoch: int
    """The number of this ownership: each later owner has a higher one. 0: no other process can become the owner."""

    @property
    def is_doubtful(self) -> bool:
        """Whether the store has not answered for so long that another process may own it by now."""

    def watch(self, lost: Callable[[StoreFailed], None]) -> None:
        """Call ``lost``, from any thread, if this process loses the store while no call is using it."""


class StoreFiles(Protocol):
    """The files of a store: their space, copies of them, and what they still contain of deleted rows."""

    def compact(self, lower: bytes, upper: bytes) -> None:
        """Reclaim the space of deleted rows in [lower, upper) of every queue family. For a thread."""

    def scrub(self, family: Family, lower: bytes, upper: bytes) -> None:
        """Remove deleted rows in [lower, upper) from all files. Safe from any thread."""

    def erase(self, lower: bytes, upper: bytes) -> bool:
        """Remove deleted rows in [lower, upper) of every queue family, and deleted rows of meta, from all files. For a thread.

        Return False if a snapshot may still hold some of them.
        """

    def forget_deletions(self) -> bool:
        """Drop files that only record deletions; return whether files are still changing, so that more may follow."""

    def flush(self) -> None:
        """Write memory to files."""

    def checkpoint(self) -> Path:
        """Copy everything written so far to a directory and return it. For a thread, one at a time.

        Raises Invalid if the store is backed up by other means.
        """

    def manifest(self) -> tuple[int, int]:
        """Return number and size of RocksDB's MANIFEST for the next beat; zeros if there is none."""

    def free_bytes(self) -> int:
        """Return the free space for rows."""

    def location(self) -> str:
        """Return where the rows are now: a directory, or the servers that have them. For a thread."""


class Store(StoreReader):
    """The open store of one shard. Methods that may run on other threads say so; all others belong to the event loop."""

    files: StoreFiles
    ownership: StoreOwnership
    sync_marker: SyncMarker | None
    """Where beats are stored: RocksDB has a file named ``heart``. None if the store was opened read-only."""
    found_is_durable = True
    """Whether the rows found on opening are as durable as after ``sync``."""

    @abstractmethod
    def snapshot(self, lower: bytes, upper: bytes, *families: str) -> StoreSnapshot:
        """Return a snapshot of the rows in [lower, upper) of some families; another thread may read it."""

    @abstractmethod
    def new_batch(self) -> Batch:
        """Return a batch for ``write``."""

    @abstractmethod
    def write(self, batch: Any) -> None:
        """Apply a batch atomically. It survives the process at once, but the machine only after ``sync``."""

    @abstractmethod
    def sync(self) -> None:
        """Make everything written so far durable. Safe from any thread; releases the GIL."""

    @abstractmethod
    def figures(self) -> list[StoreFigure]:
        """Return the store's figures for the metrics, from memory."""


OpenStore: TypeAlias = "Callable[[str], Awaitable[Store]]"
"""Opens the store of the named shard; may wait until it is free."""

StoreOpener: TypeAlias = "Callable[[Path], StoreReader]"
"""Opens the store in a directory to read it."""
