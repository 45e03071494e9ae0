"""The one thing in a Parquet file that depends on the process that wrote it: the order of a column's list of encodings.

Spark's writer keeps them in a set that is ordered by where objects lie in memory. The list means the same in any order, so
it is put in order where it stands: one byte each, so nothing moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC: Final = b"PAR1"
_TAIL: Final = 8  # length of the footer, magic
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = (
    1,
    2,
    3,
    7,
    8,
    9,
    10,
    11,
    12,
)  # of the compact protocol
_ENCODINGS: Final = (4, 1, 3, 2)  # fields: row groups, their columns, a column's metadata, its encodings


def settle(file: Path) -> None:
    """Put the lists of encodings in order, in place. A file that is no Parquet is left alone."""
    with file.open("r+b") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - _TAIL))
        tail = stream.read()
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length > size - _TAIL:
            return
        stream.seek(size - _TAIL - length)
        footer = bytearray(stream.read(length))
        before = bytes(footer)
        _Walk(footer).struct(())
        if footer != before:
            stream.seek(size - _TAIL - length)
            stream.write(footer)


def filled_rows(file: Path, column: str) -> int:
    """Return in how many rows a column is not null, by what the footer says."""
    meta = pq.read_metadata(file)
    at = meta.schema.names.index(column)
    groups = [meta.row_group(number).column(at) for number in range(meta.num_row_groups)]
    return sum(group.num_values - group.statistics.null_count for group in groups)


class _Walk:
    """Goes over a structure of Thrift's compact protocol."""

    def __init__(self, data: bytearray) -> None:
        self._data, self._at = data, 0

    def struct(self, path: tuple[int, ...]) -> None:
        """Walk over a structure whose own fields lie below ``path``."""
        field = 0
        while True:
            head = self._byte()
            if not head:
                return
            step, kind = head >> 4, head & 15
            field = field + step if step else self._signed()
            if kind not in {_TRUE, _FALSE}:  # which are their own value
                self._value(kind, (*path, field))

    def _value(self, kind: int, path: tuple[int, ...]) -> None:
        if kind == _STRUCT:
            self.struct(path)
        elif kind in {_LIST, _SET}:
            self._list(path)
        elif kind == _MAP:
            count = self._number()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self._value(kinds >> 4, path)
                self._value(kinds & 15, path)
        elif kind == _BINARY:
            length = self._number()
            self._at += length
        elif kind == _DOUBLE:
            self._at += 8
        elif kind in {_TRUE, _FALSE, _BYTE}:  # inside a list they take a byte
            self._at += 1
        else:
            self._number()

    def _list(self, path: tuple[int, ...]) -> None:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._number()
        begin = self._at
        for _ in range(count):
            self._value(head & 15, path)
        if path == _ENCODINGS and self._at - begin == count:
            self._data[begin : self._at] = sorted(self._data[begin : self._at])

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _signed(self) -> int:
        value = self._number()
        return (value >> 1) ^ -(value & 1)
