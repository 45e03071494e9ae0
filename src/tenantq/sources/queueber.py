"""The RocksDB directory of a Queueber server.

Keys are ``<family>/<rest>`` in the column family of the same name. Stores from before the split into families have the same
keys in ``default``. Values of items and leases are Cap'n Proto, times are big-endian seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rocksdict import AccessType, Options, Rdict

from tenantq.errors import Invalid, Unavailable
from tenantq.sources.source import InProgress, Mode, Problems, SourceBatch, SourceMessage, SourceQueue, batched

FAMILIES: Final = ("available", "in_progress", "visibility_index", "leases", "lease_expiry")
_ID_BYTES: Final = 16
_TIME_BYTES: Final = 8
_QUEUE: Final = "default"


class Queueber:
    """Reads a Queueber store. It can be read while Queueber runs, but then it is a snapshot of that moment."""

    kind = "queueber"
    modes: tuple[Mode, ...] = ("snapshot",)

    def __init__(self, directory: Path) -> None:
        """Open the store read-only. Raises Invalid if it is not a Queueber store."""
        try:
            import capnp  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise Invalid("migrate-from queueber needs Cap'n Proto: install tenantq[rpc]") from error
        capnp.remove_import_hook()
        self._schema = capnp.load(str(Path(__file__).with_name("queueber.capnp")))
        self._problems = Problems()
        self.problems = self._problems.counts
        self._path = directory
        self._families = self._open(directory)

    def _open(self, directory: Path) -> dict[str, Any]:
        if not (directory / "CURRENT").is_file():
            raise Invalid(f"{directory}: not a RocksDB directory. Give the data directory of Queueber.")
        options = Options(raw_mode=True)
        try:
            names = Rdict.list_cf(str(directory), options)
            known = dict.fromkeys(names, options)
            self._db = Rdict(str(directory), options, known, AccessType.read_only())
        except Exception as error:  # rocksdict raises plain Exceptions
            raise Invalid(f"{directory}: RocksDB cannot open it ({error})") from error
        if not set(FAMILIES) & set(names):
            found = {name: self._db.get_column_family(name) for name in names if name == "default"}
            if not any(True for name in FAMILIES for _ in _rows(found["default"], name)):
                self._db.close()
                raise Invalid(
                    f"{directory}: holds no Queueber items. Its column families are {', '.join(sorted(names))}."
                )
        return {name: self._db.get_column_family(name) for name in names if name in {*FAMILIES, "default"}}

    def close(self) -> None:
        """Close the store."""
        self._families.clear()
        self._db.close()

    def queues(self) -> list[SourceQueue]:
        """Return the one queue that a Queueber server has."""
        now_s = int(time.time())
        delayed = sum(1 for at, _ in self._visibility().values() if at > now_s)
        available, leased = (sum(1 for _ in self._rows(name)) for name in ("available", "in_progress"))
        return [
            SourceQueue(
                name=_QUEUE, ready=max(0, available - delayed), delayed=min(delayed, available), in_progress=leased
            )
        ]

    def batches(self, mode: Mode, in_progress: InProgress) -> Iterator[SourceBatch]:  # noqa: ARG002  # it cannot be drained
        """Yield all items, in the order of their visibility, then those in progress."""
        return batched(self._messages(in_progress))

    def _messages(self, in_progress: InProgress) -> Iterator[SourceMessage]:
        self._problems.counts.clear()
        visibility = self._visibility()
        available = dict(self._rows("available"))
        for _ in visibility.keys() - available.keys():
            self._problems.count("index rows without an item; skipped")
        leases = self._leases()
        for id in sorted(available, key=lambda one: (visibility.get(one, (0, b""))[0], one)):
            if id not in visibility:
                self._problems.count("items without an index row; migrated as ready")
            at_s = visibility[id][0] if id in visibility else 0
            yield from self._message(id, available[id], at_s * 1_000 or None, {})
        for id, value in self._rows("in_progress"):
            if id in available:
                self._problems.count("items both available and in progress; migrated once")
                continue
            if id not in leases:
                self._problems.count("items in progress without a lease; migrated as ready")
            keeps = in_progress == "keep-lease" and id in leases
            yield from self._message(id, value, leases[id] * 1_000 if keeps else None, {"source-state": "in_progress"})

    def _message(
        self, id: bytes, value: bytes, visible_at: int | None, attributes: dict[str, str]
    ) -> Iterator[SourceMessage]:
        try:
            with self._schema.StoredItem.from_bytes(value) as item:
                contents = bytes(item.contents)
        except Exception:  # noqa: BLE001  # pycapnp raises its own class for every damage
            self._problems.count("items that cannot be decoded; skipped")
            return
        yield SourceMessage(
            key=id.hex(), queue=_QUEUE, body=contents, id=id, visible_at=visible_at, attributes=attributes,
            added_at=int.from_bytes(id[:6]) or None,
        )  # fmt: skip

    def _visibility(self) -> dict[bytes, tuple[int, bytes]]:
        """Return, by item, when it becomes visible."""
        found: dict[bytes, tuple[int, bytes]] = {}
        for rest, value in self._rows("visibility_index", sized=False):
            if len(rest) != _TIME_BYTES + 1 + _ID_BYTES:
                self._problems.count("malformed index rows; skipped")
                continue
            found[rest[-_ID_BYTES:]] = (int.from_bytes(rest[:_TIME_BYTES]), value)
        return found

    def _leases(self) -> dict[bytes, int]:
        """Return, by item, when its lease ends, in seconds."""
        found: dict[bytes, int] = {}
        for _, value in self._rows("leases"):
            try:
                with self._schema.LeaseEntry.from_bytes(value) as lease:
                    found.update(dict.fromkeys((bytes(id) for id in lease.ids), lease.expiryTsSecs))
            except Exception:  # noqa: BLE001  # as above
                self._problems.count("leases that cannot be decoded; skipped")
        return found

    def _rows(self, name: str, *, sized: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over a family's rows without the prefix of their keys, wherever the store has them."""
        for family in (self._families.get(name), self._families.get("default")):
            if family is None:
                continue
            for rest, value in _rows(family, name):
                if sized and len(rest) != _ID_BYTES:
                    self._problems.count("malformed keys; skipped")
                else:
                    yield rest, value


def _rows(family: Any, name: str) -> Iterator[tuple[bytes, bytes]]:
    prefix = f"{name}/".encode()
    try:
        for key, value in family.items(from_key=prefix):
            if not key.startswith(prefix):
                return
            yield key[len(prefix) :], value
    except Exception as error:
        raise Unavailable(f"RocksDB cannot read column family {name}: {error}") from error
