"""Shuffle of Arrow tables: functions send the rows of files or DataFrames to parts, then merge the rows of each part.

Spark schedules the tasks and carries whole tables as single values, so it converts no rows. Few rows are shuffled in this
process, without a Spark job.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tenantq.pipeline.arrow_columns import Vocabulary, decoded, mixed
from tenantq.pipeline.reduction import REDUCED, Reduce, Reduction, read_reduced, unreduced

FEW_BYTES: Final = 4_000_000
"""Files of this size have so few rows, about 200,000, that tasks would take longer to begin than this process to read them."""
TASK_BYTES: Final = 16_000_000  # of files that one task reads; a task has a fixed cost of about 50 ms
HELD_ROWS: Final = 1_000_000
"""Rows that a task holds before it sends them, besides those of one file. Files of the same size may have very different rows."""
_PARTS: Final = 4  # at least
_LAST: Final = (1 << 31) - 1
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")  # compressed here, values pass Java and its shuffle faster
_SENT: Final = "part int, kind int, place int, rows binary"
_REPEATED: Final = (
    "shard", "tenant", "queue", "op", "principal", "outcome", "error_code", "remote", "user_agent",
)  # fmt: skip
"""Text columns with few different values. They stay dictionaries from the file to the merge."""

Sent = Iterable[tuple[int, int, pa.Table]]
"""Rows for parts, by kind."""
Send = Callable[..., Sent]
"""Returns what the rows of a file, or the tables to which they are reduced, have for each part.

Tables of one kind have the same columns.
"""
Merge = Callable[[int, list[list[pa.Table]]], pa.Table]
"""Returns the rows of a part, from the tables that were sent to it, by kind: first those of files, in the order of the files."""


class FileRows:
    """The rows of Parquet files, which the tasks of a session read; few of them are read by this process.

    Instead of a file, tasks read what its rows were ``reduced`` to when it was written.
    """

    def __init__(
        self, session: SparkSession, files: Iterable[Path], reduced: Mapping[Path, Path] = MappingProxyType({})
    ) -> None:
        self.sparkSession = session  # as a DataFrame has it
        given = [file.absolute() for file in files]
        read = [reduced.get(file, file) for file in given]
        self.files = tuple(map(str, given))
        self.sizes = tuple(file.stat().st_size for file in given)
        self.read = tuple(map(str, read))
        self.read_sizes = tuple(file.stat().st_size for file in read)
        self.few = sum(self.read_sizes) <= FEW_BYTES


class PeriodParts(msgspec.Struct, frozen=True):
    """Parts of rows by day or hour. A large period is spread over several parts.

    A task reads few periods, so it sends to few parts, however many days there are.
    """

    count: int
    width: int = 1  # parts of a period

    @classmethod
    def by_date(cls, rows: DataFrame | FileRows, part_bytes: int) -> PeriodParts:
        """Return parts by day, for which tasks read at most ``part_bytes`` each."""
        return cls._of(rows, r"date=[^/]*", part_bytes)

    @classmethod
    def by_hour(cls, rows: DataFrame | FileRows, part_bytes: int) -> PeriodParts:
        """Return parts by hour, for which tasks read at most ``part_bytes`` each."""
        return cls._of(rows, r"date=[^/]*/hour=[^/]*", part_bytes)

    @classmethod
    def _of(cls, rows: DataFrame | FileRows, period: str, part_bytes: int) -> PeriodParts:
        if not isinstance(rows, FileRows):
            return cls(_PARTS)
        sizes = Counter[str]()
        for file, size in zip(rows.files, rows.sizes, strict=True):
            found = re.search(period, file)
            sizes[found.group() if found else ""] += size
        width = 1 + max(sizes.values(), default=0) // part_bytes
        return cls(max(_PARTS, min(len(sizes) * width, 1 + sizes.total() // part_bytes)), width)

    def spread(self, periods: NDArray[Any], hashes: NDArray[Any]) -> NDArray[Any]:
        """Return the part of each row, given the number of its period and a hash."""
        found: NDArray[Any] = (periods * self.width + (hashes % np.uint64(self.width)).astype("i8")) % self.count
        return found

    def parts(self, periods: NDArray[Any], *texts: pa.ChunkedArray) -> NDArray[Any]:
        """Return the part of each row, given the number of its period; rows with the same ``texts`` are in the same part."""
        if self.width == 1:
            return periods % self.count
        hashes = np.zeros(len(periods), "u8")
        for words in map(Vocabulary, texts):
            of_word = np.array([*(zlib.crc32(word.encode()) for word in words.words), 0], "u8")
            hashes = mixed(hashes ^ of_word[words.ranks[0]])
        return self.spread(periods, hashes)


class Sender(msgspec.Struct, frozen=True):
    """Reads columns of files, reduces the rows of each, and sends them to parts."""

    columns: tuple[str, ...]
    send: Send
    reduce: Reduce = unreduced

    @classmethod
    def reducing(cls, reduction: Reduction, send: Send, **values: object) -> Sender:
        """Return a sender of what ``reduction`` leaves, given the ``values`` that it takes."""
        return cls(reduction.columns, send, reduction.given(values))

    def from_file(self, file: str) -> Sent:
        """Return what a file has for each part."""
        return self._sent(_reduced(file, self.columns, self.reduce))

    def from_rows(self, rows: pa.Table) -> Sent:
        """Return what rows have for each part."""
        return self._sent(self.reduce(rows))

    def _sent(self, tables: list[pa.Table]) -> Sent:
        return self.send(*tables) if tables else ()


class SentRows(msgspec.Struct, frozen=True):
    """An input of a shuffle: rows, and how they are sent."""

    rows: DataFrame | FileRows
    sender: Sender


class ArrowShuffle:
    """Rows of ``columns`` that are computed part by part."""

    def __init__(
        self, spark: SparkSession, inputs: Sequence[SentRows], parts: int, merge: Merge, columns: StructType, *,
        kinds: int = 1,
    ) -> None:  # fmt: skip
        self.inputs = tuple(inputs)
        self.parts = parts
        self._spark, self._merge, self._columns, self._kinds = spark, merge, columns, kinds
        self._here = all(isinstance(one.rows, FileRows) and one.rows.few for one in inputs)

    def frame(self, *names: str) -> DataFrame:
        """Return the rows, or only the columns ``names``, as a DataFrame."""
        columns = StructType([one for one in self._columns if not names or one.name in names])
        if self._here:
            merged = [
                decoded(self._merge(part, sent).select(columns.names)) for part, sent in self._sent_here().items()
            ]
            return _local_frame(self._spark, merged, columns)
        merge = partial(_merged_rows, merge=self._merge, kinds=self._kinds, names=columns.names)
        return self._sent().mapInArrow(merge, columns)

    def write(self, write: Callable[[int, pa.Table], None]) -> None:
        """Pass each part and its rows to ``write``, in the task that merged them. A task may run more than once."""
        if self._here:
            for part, sent in self._sent_here().items():
                write(part, self._merge(part, sent))
            return
        merge = partial(_written, merge=self._merge, kinds=self._kinds, write=write)
        self._sent().mapInArrow(merge, "part int").collect()

    def _sent_here(self) -> dict[int, list[list[pa.Table]]]:
        found: dict[int, list[list[pa.Table]]] = {}
        for one in self.inputs:
            assert isinstance(one.rows, FileRows)
            for file in one.rows.read:
                for part, kind, rows in one.sender.from_file(file):
                    found.setdefault(part, [[] for _ in range(self._kinds)])[kind].append(rows)
        return dict(sorted(found.items()))

    def _sent(self) -> DataFrame:
        """Return the sent tables, each part in a task of its own."""
        sent = [self._sent_by(one) for one in self.inputs]
        return reduce(DataFrame.unionAll, sent).repartitionById(max(1, self.parts), "part")

    def _sent_by(self, one: SentRows) -> DataFrame:
        if isinstance(one.rows, DataFrame):
            rows = one.rows.select(*one.sender.columns)
            return rows.mapInArrow(partial(_sent_batches, sender=one.sender), _SENT)
        groups = file_groups(one.rows)
        numbers = self._spark.range(0, len(groups), 1, max(1, len(groups)))
        return numbers.mapInArrow(partial(_sent_files, groups=groups, sender=one.sender), _SENT)


def few_rows_frame(rows: FileRows, reduction: Reduction, table: StructType) -> DataFrame:
    """Return the rows that a reduction to ``few_rows`` of a table keeps, as a DataFrame."""
    columns = StructType([table[name] for name in (*reduction.columns, "date")])
    read = partial(_reduced, columns=reduction.columns, reduce=reduction.given({}))
    if rows.few:
        return _local_frame(rows.sparkSession, [one for file in rows.read for one in read(file)], columns)
    groups = file_groups(rows)
    numbers = rows.sparkSession.range(0, len(groups), 1, max(1, len(groups)))
    return numbers.mapInArrow(partial(_read_groups, groups=groups, read=read), columns)


def _read_groups(
    batches: Iterator[pa.RecordBatch], groups: list[list[str]], read: Callable[[str], list[pa.Table]]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for file in groups[number]:
                for table in read(file):
                    yield from table.combine_chunks().to_batches(_BATCH_ROWS)


def _reduced(file: str, columns: Sequence[str], reduce: Reduce) -> list[pa.Table]:
    """Return the reduced rows of a file, which may be reduced already."""
    return read_reduced(file) if file.endswith(REDUCED) else reduce(read_rows(file, columns))


def _local_frame(spark: SparkSession, tables: list[pa.Table], columns: StructType) -> DataFrame:
    return spark.createDataFrame(pa.concat_tables(tables) if tables else [], columns)


def read_rows(file: str, columns: Sequence[str]) -> pa.Table:
    """Return columns of a Parquet file. Each has one dictionary, because row groups may have different ones."""
    with pq.ParquetFile(file, read_dictionary=[name for name in columns if name in _REPEATED]) as opened:
        return opened.read(columns=list(columns), use_threads=False).unify_dictionaries()


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of several tables as one, each column in one piece.

    Texts may be dictionaries in some of them only, and columns of segments are never null.
    """
    kinds = {one.name: one.type for table in tables for one in table.schema if not pa.types.is_dictionary(one.type)}
    kinds |= {one.name: one.type for table in tables for one in table.schema if pa.types.is_dictionary(one.type)}
    schema = pa.schema([pa.field(name, kinds[name]) for name in tables[0].column_names])
    same = (table if table.schema.equals(schema) else _shaped(table, schema) for table in tables)
    return pa.concat_tables(same).unify_dictionaries().combine_chunks()


def _shaped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        table[one.name].dictionary_encode()
        if pa.types.is_dictionary(one.type) and not pa.types.is_dictionary(table[one.name].type)
        else table[one.name]
        for one in schema
    ]
    return pa.table(columns, schema=schema)


def file_groups(rows: FileRows) -> list[list[str]]:
    """Divide files into groups of about the same size, in their order."""
    found: list[list[str]] = []
    room = 0
    for file, size in zip(rows.read, rows.read_sizes, strict=True):
        if room < size or not found:
            found.append([])
            room = TASK_BYTES
        found[-1].append(file)
        room -= size
    return found


def _sent_files(batches: Iterator[pa.RecordBatch], groups: list[list[str]], sender: Sender) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from packed(map(sender.from_file, groups[number]), number)


def _sent_batches(batches: Iterator[pa.RecordBatch], sender: Sender) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            yield from packed([sender.from_rows(pa.Table.from_batches([batch]))], _LAST)


def packed(files: Iterable[Sent], place: int) -> Iterator[pa.RecordBatch]:
    """Yield what files send to each part as one value for each kind, or as more if a task sends many rows."""
    parts: dict[tuple[int, int], list[pa.Table]] = {}
    held = 0
    for file in files:
        for part, kind, rows in file:
            parts.setdefault((part, kind), []).append(rows)
            held += rows.num_rows
        if held >= HELD_ROWS:
            yield from _values(parts, place)
            parts, held = {}, 0
    yield from _values(parts, place)


def _values(parts: dict[tuple[int, int], list[pa.Table]], place: int) -> Iterator[pa.RecordBatch]:
    for (part, kind), sent in parts.items():
        sink = pa.BufferOutputStream()
        rows = joined(sent)
        with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as stream:
            stream.write_table(rows)
        yield pa.RecordBatch.from_arrays(
            [*[pa.array([one], pa.int32()) for one in (part, kind, place)], _value(sink.getvalue())],
            ["part", "kind", "place", "rows"],
        )


def _value(data: pa.Buffer) -> pa.Array:
    """Return an array with one binary value, without a copy of it."""
    offsets = pa.array([0, data.size], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])


def _unpacked(batches: Iterator[pa.RecordBatch], kinds: int) -> Iterator[tuple[int, list[list[pa.Table]]]]:
    """Yield the part of this task with its tables, if it got any."""
    number, found = -1, [list[tuple[int, pa.Table]]() for _ in range(kinds)]
    for batch in batches:
        for part, kind, place, rows in zip(*batch.columns, strict=True):
            number = part.as_py()
            found[kind.as_py()].append((place.as_py(), pa.ipc.open_stream(rows.as_buffer()).read_all()))
    tables = [[rows for _, rows in sorted(some, key=itemgetter(0))] for some in found]
    found.clear()
    if number >= 0:
        yield number, tables


def _merged_rows(
    batches: Iterator[pa.RecordBatch], merge: Merge, kinds: int, names: list[str]
) -> Iterator[pa.RecordBatch]:
    for part, sent in _unpacked(batches, kinds):
        yield from decoded(merge(part, sent).select(names)).combine_chunks().to_batches(_BATCH_ROWS)


def _written(
    batches: Iterator[pa.RecordBatch], merge: Merge, kinds: int, write: Callable[[int, pa.Table], None]
) -> Iterator[pa.RecordBatch]:
    for part, sent in _unpacked(batches, kinds):
        rows = merge(part, sent)
        sent.clear()  # frees memory for the writer
        write(part, rows)
        yield pa.RecordBatch.from_arrays([pa.array([part], pa.int32())], ["part"])


_BATCH_ROWS: Final = 20_000  # that Python returns to Spark at a time
