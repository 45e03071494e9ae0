"""Reads the matching rows of one segment. Arrow skips row groups that cannot match, by their statistics."""

import re
from collections.abc import Iterator
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tenantq.journal.record import JournalPosition, JournalRow
from tenantq.journal.row_filter import JournalFilter, outcomes_of
from tenantq.journal.segment import ROW_COLUMNS

_N_MAX: Final = (1 << 31) - 1  # of the column ``n``


class SegmentRows:
    """One segment, open for reading. Raises ValueError if it is not a readable segment."""

    def __init__(self, stream: BinaryIO, wanted: JournalFilter) -> None:
        self._condition = _condition(wanted)
        try:
            self._segment = ds.ParquetFileFormat().make_fragment(stream)
            names = self._segment.physical_schema.names
        except (pa.ArrowException, OSError) as error:
            raise ValueError(str(error)) from error
        if not set(ROW_COLUMNS) <= set(names):
            raise ValueError("its columns are not those of a segment")

    def groups(self, low: JournalPosition, high: JournalPosition, *, newest_first: bool) -> Iterator[list[JournalRow]]:
        """Yield the matching rows between two places (exclusive), one list per row group, in order."""
        condition = self._condition & _after(low) & ~_after((high[0], high[1] - 1))
        try:
            groups = self._segment.split_by_row_group(condition)
            for group in reversed(groups) if newest_first else groups:
                found = _read(group, condition)
                yield found[::-1] if newest_first else found
        except (pa.ArrowException, OSError) as error:
            raise ValueError(str(error)) from error


def _read(group: ds.ParquetFileFragment, condition: pc.Expression) -> list[JournalRow]:
    if not group.count_rows(condition):  # reads only the columns of the condition
        return []
    found = group.to_table(columns=list(ROW_COLUMNS), filter=condition)
    found = found.set_column(found.schema.get_field_index("ts"), "ts", found["ts"].cast(pa.int64()))
    return [JournalRow(**row) for row in found.to_pylist()]


def _after(place: JournalPosition) -> pc.Expression:
    """Return the condition that a row is after a place."""
    seq, n = place[0], min(place[1], _N_MAX)
    return (pc.field("seq") > seq) | ((pc.field("seq") == seq) & (pc.field("n") > n))


def _condition(wanted: JournalFilter) -> pc.Expression:
    """Return the filter as an expression of Arrow."""
    condition = pc.scalar(True)  # Arrow's signature
    equal = {
        "tenant": wanted.tenant,
        "queue": wanted.queue,
        "principal": wanted.principal,
        "message_id": wanted.message,
    }
    for name, text in equal.items():
        if text is not None:
            condition &= pc.field(name) == text
    if wanted.start is not None:
        condition &= pc.field("ts") >= _time(wanted.start)
    if wanted.end is not None:
        condition &= pc.field("ts") < _time(wanted.end)
    if wanted.ops is not None:
        condition &= pc.field("op").isin(sorted(wanted.ops))
    if wanted.result is not None:
        outcomes, included = outcomes_of(wanted.result)
        is_one = pc.field("outcome").isin(outcomes)
        condition &= is_one if included else ~is_one
    if wanted.queues is not None:
        patterns = "|".join(re.escape(one).replace(r"\*", ".*").replace(r"\?", ".") for one in wanted.queues)
        condition &= pc.match_substring_regex(pc.field("queue"), f"^({patterns})$") & (pc.field("queue") != "")
    return condition


def _time(at: int) -> pa.Scalar:
    return pa.scalar(at, pa.timestamp("ms", tz="UTC"))
