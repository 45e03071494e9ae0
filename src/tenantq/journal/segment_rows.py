"""Reads the matching rows of one segment, without payloads and without row groups that cannot match."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tenantq.journal.record import JournalRow
from tenantq.journal.row_filter import JournalFilter, result_of
from tenantq.journal.segment import ROW_COLUMNS

_FILTER_COLUMNS: Final = ["seq", "n", "ts", "tenant", "queue", "op", "message_id", "principal", "outcome"]
_NAMES: Final = ["tenant", "queue", "op", "principal", "outcome"]
Place = tuple[int, int]


class SegmentRows:
    """One segment, open for reading. Raises ValueError if it is not a readable segment."""

    def __init__(self, stream: BinaryIO, wanted: JournalFilter) -> None:
        self._wanted = wanted
        try:
            self._file = pq.ParquetFile(stream, read_dictionary=_NAMES)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(str(error)) from error
        names = self._file.schema_arrow.names
        if not set(ROW_COLUMNS) <= set(names):
            raise ValueError("its columns are not those of a segment")
        self._columns = {name: place for place, name in enumerate(names)}

    def groups(self, low: Place, high: Place, *, newest_first: bool) -> Iterator[list[JournalRow]]:
        """Yield the matching rows between two places (exclusive), one list per row group, in order."""
        numbers = range(self._file.num_row_groups)
        for number in reversed(numbers) if newest_first else numbers:
            if self._may_match(number, low, high):
                found = self._read(number, low, high)
                yield found[::-1] if newest_first else found

    def _may_match(self, number: int, low: Place, high: Place) -> bool:
        """Return whether a row group can have matching rows, by its statistics."""
        group, wanted = self._file.metadata.row_group(number), self._wanted
        seqs, times = self._range(group, "seq"), self._range(group, "ts")
        if seqs is not None and (seqs[1] < low[0] or seqs[0] > high[0]):
            return False
        if times is not None:
            first, last = (int(one.timestamp() * 1_000 + 0.5) for one in times)
            if (wanted.start is not None and last < wanted.start) or (wanted.end is not None and first >= wanted.end):
                return False
        texts = (
            ("tenant", wanted.tenant),
            ("queue", wanted.queue),
            ("principal", wanted.principal),
            ("message_id", wanted.message),
        )
        for name, text in texts:
            bounds = self._range(group, name) if text is not None else None
            if bounds is not None and text is not None and not bounds[0] <= text <= bounds[1]:
                return False
        ops = self._range(group, "op") if wanted.ops is not None else None
        return ops is None or wanted.ops is None or any(ops[0] <= op <= ops[1] for op in wanted.ops)

    def _range(self, group: Any, name: str) -> tuple[Any, Any] | None:
        statistics = group.column(self._columns[name]).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        return statistics.min, statistics.max

    def _read(self, number: int, low: Place, high: Place) -> list[JournalRow]:
        try:
            mask = self._mask(self._file.read_row_group(number, columns=_FILTER_COLUMNS), low, high)
            if not pc.any(mask).as_py():
                return []
            found = self._file.read_row_group(number, columns=list(ROW_COLUMNS)).filter(mask)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(str(error)) from error
        found = found.set_column(found.schema.get_field_index("ts"), "ts", found["ts"].cast(pa.int64()))
        return [JournalRow(**row) for row in found.select(list(ROW_COLUMNS)).to_pylist()]

    def _mask(self, table: pa.Table, low: Place, high: Place) -> pa.ChunkedArray:
        wanted = self._wanted
        seq, n, ts = table["seq"], table["n"], table["ts"].cast(pa.int64())
        above = pc.or_(pc.greater(seq, low[0]), pc.and_(pc.equal(seq, low[0]), pc.greater(n, low[1])))
        below = pc.or_(pc.less(seq, high[0]), pc.and_(pc.equal(seq, high[0]), pc.less(n, high[1])))
        mask = pc.and_(above, below)
        if wanted.start is not None:
            mask = pc.and_(mask, pc.greater_equal(ts, wanted.start))
        if wanted.end is not None:
            mask = pc.and_(mask, pc.less(ts, wanted.end))
        if wanted.message is not None:
            mask = pc.and_(mask, pc.equal(table["message_id"], wanted.message))
        tests: dict[str, Callable[[str], bool]] = {
            "tenant": lambda text: wanted.tenant is None or text == wanted.tenant,
            "principal": lambda text: wanted.principal is None or text == wanted.principal,
            "op": lambda text: wanted.ops is None or text in wanted.ops,
            "outcome": lambda text: wanted.result is None or result_of(text) == wanted.result,
            "queue": lambda text: (wanted.queue is None or text == wanted.queue) and wanted.sees(text),
        }
        for name, is_wanted in tests.items():
            values = table[name].cast(pa.string()).combine_chunks()
            distinct = pc.unique(values).to_pylist()
            good = [text for text in distinct if is_wanted(text)]
            if len(good) < len(distinct):
                mask = pc.and_(mask, pc.is_in(values, value_set=pa.array(good, pa.string())))
        return mask
