"""A snapshot of some families of a RocksDB store.

It consists of iterators, which show the rows at the time of their creation. The binding's own snapshots do not work:
their iterators show current rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from tenantq.errors import StoreFailed
from tenantq.store.interface import Items, StoreSnapshot

if TYPE_CHECKING:
    from rocksdict import RdictIter, ReadOptions


class RocksSnapshot(StoreSnapshot):
    """One state of some families. All their files stay on disk until the snapshot is closed."""

    def __init__(
        self,
        iterators: dict[str, RdictIter],
        options: ReadOptions,
        upper: bytes,
        name_failure: Callable[[Exception], StoreFailed],
    ) -> None:
        self._iterators = iterators
        self._bound = (options, upper)  # the binding points into these bytes without keeping them alive
        self._name_failure = name_failure

    def keys(self, family: str, lower: bytes, limit: int) -> list[bytes]:
        return [row.key() for row in islice(self._rows(family, lower), limit)]

    def items(self, family: str, lower: bytes, upper: bytes, limit: int, bytes_max: int | None = None) -> Items:
        found, size = Items(), 0
        for row in islice(self._rows(family, lower), limit):
            key = row.key()
            if key >= upper:
                break
            found.cut = bytes_max is not None and bool(found) and size >= bytes_max
            value = row.value()
            found.append((key, value))
            size += len(value)
            if found.cut:
                break
        return found

    def walk(self, family: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row in self._rows(family, prefix):
            key = row.key()
            if not key.startswith(prefix):
                break
            yield key, row.value()

    def _rows(self, family: str, lower: bytes) -> Iterator[RdictIter]:
        """Yield the family's iterator at each row from ``lower`` on."""
        try:
            iterator = self._iterators[family]
            iterator.seek(lower)
            while iterator.valid():
                yield iterator
                iterator.next()
            iterator.status()
        except Exception as error:
            raise self._name_failure(error) from error

    @property
    def is_open(self) -> bool:
        """Whether it still keeps files on disk."""
        return bool(self._iterators)

    def close(self) -> None:
        self._iterators.clear()
