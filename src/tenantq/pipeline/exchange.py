"""Exchange of Arrow tables: functions send the rows of files or DataFrames to parts, then merge the rows of each part.

Spark schedules the tasks and carries whole tables as single values, so it converts no rows. Few rows are exchanged in this
process, without a Spark job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tenantq.pipeline.arrow_columns import decoded

FEW_BYTES: Final = 4_000_000
"""Files of this size have so few rows, about 200,000, that tasks would take longer to begin than this process to read them."""
_TASK_BYTES: Final = 16_000_000  # of files that one task reads; a task has a fixed cost of about 50 ms
_PARTS: Final = 4  # at least
_SENT: Final = "part int, kind int, rows binary"
_REPEATED: Final = (
    "shard", "tenant", "queue", "op", "principal", "outcome", "error_code", "remote", "user_agent",
)  # fmt: skip
"""Text columns with few different values. They stay dictionaries from the file to the merge."""

Send = Callable[[pa.Table], Iterable[tuple[int, int, pa.Table]]]
"""Returns what a table has for each part, by kind. Tables of one kind have the same columns."""
Merge = Callable[[int, list[list[pa.Table]]], pa.Table]
"""Returns the rows of a part, from the tables that were sent to it, by kind. They come in any order."""


class FileRows:
    """The rows of Parquet files, which the tasks of a session read; few of them are read by this process."""

    def __init__(self, session: SparkSession, files: Iterable[Path]) -> None:
        self.sparkSession = session  # as a DataFrame has it
        self.files = tuple(str(file.absolute()) for file in files)
        self.sizes = tuple(Path(file).stat().st_size for file in self.files)
        self.few = sum(self.sizes) <= FEW_BYTES


def part_count(rows: DataFrame | FileRows) -> int:
    """Return how many parts suit results that have far fewer rows than ``rows``."""
    return max(_PARTS, sum(rows.sizes) // _TASK_BYTES) if isinstance(rows, FileRows) else _PARTS


class SentRows(msgspec.Struct, frozen=True):
    """An input of an exchange: rows, the columns that are read, and how they are sent."""

    rows: DataFrame | FileRows
    columns: tuple[str, ...]
    send: Send


class Exchange:
    """Rows of ``columns`` that are computed part by part."""

    def __init__(
        self, spark: SparkSession, inputs: Sequence[SentRows], parts: int, merge: Merge, columns: StructType, *,
        kinds: int = 1,
    ) -> None:  # fmt: skip
        self.inputs = tuple(inputs)
        self._spark, self._parts, self._merge, self._columns, self._kinds = spark, parts, merge, columns, kinds
        self._here = all(isinstance(one.rows, FileRows) and one.rows.few for one in inputs)

    def frame(self, *names: str) -> DataFrame:
        """Return the rows, or only the columns ``names``, as a DataFrame."""
        columns = StructType([one for one in self._columns if not names or one.name in names])
        if self._here:
            merged = [
                decoded(self._merge(part, sent).select(columns.names)) for part, sent in self._sent_here().items()
            ]
            return self._spark.createDataFrame(pa.concat_tables(merged), columns) if merged else self._empty(columns)
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

    def _empty(self, columns: StructType) -> DataFrame:
        return self._spark.createDataFrame([], columns)

    def _sent_here(self) -> dict[int, list[list[pa.Table]]]:
        found: dict[int, list[list[pa.Table]]] = {}
        for one in self.inputs:
            assert isinstance(one.rows, FileRows)
            for file in one.rows.files:
                for part, kind, rows in one.send(read_rows(file, one.columns)):
                    found.setdefault(part, [[] for _ in range(self._kinds)])[kind].append(rows)
        return dict(sorted(found.items()))

    def _sent(self) -> DataFrame:
        """Return the sent tables, each part in a task of its own."""
        sent = [self._sent_by(one) for one in self.inputs]
        return reduce(DataFrame.unionAll, sent).repartitionById(max(1, self._parts), "part")

    def _sent_by(self, one: SentRows) -> DataFrame:
        if isinstance(one.rows, DataFrame):
            rows = one.rows.select(*one.columns)
            return rows.mapInArrow(partial(_sent_batches, send=one.send), _SENT)
        groups = _groups(one.rows)
        numbers = self._spark.range(0, len(groups), 1, max(1, len(groups)))
        send = partial(_sent_files, groups=groups, columns=one.columns, send=one.send)
        return numbers.mapInArrow(send, _SENT)


def read_rows(file: str, columns: Sequence[str]) -> pa.Table:
    """Return columns of a Parquet file."""
    with pq.ParquetFile(file, read_dictionary=[name for name in columns if name in _REPEATED]) as opened:
        return opened.read(columns=list(columns), use_threads=False)


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


def _groups(rows: FileRows) -> list[list[str]]:
    """Divide files into groups of about the same size, in their order."""
    found: list[list[str]] = []
    room = 0
    for file, size in zip(rows.files, rows.sizes, strict=True):
        if room < size or not found:
            found.append([])
            room = _TASK_BYTES
        found[-1].append(file)
        room -= size
    return found


def _sent_files(
    batches: Iterator[pa.RecordBatch], groups: list[list[str]], columns: Sequence[str], send: Send
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from _packed((read_rows(file, columns) for file in groups[number]), send)


def _sent_batches(batches: Iterator[pa.RecordBatch], send: Send) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            yield from _packed([pa.Table.from_batches([batch])], send)


def _packed(tables: Iterable[pa.Table], send: Send) -> Iterator[pa.RecordBatch]:
    """Yield what is sent to each part as one value for each kind."""
    parts: dict[tuple[int, int], list[pa.Table]] = {}
    for table in tables:
        for part, kind, rows in send(table):
            parts.setdefault((part, kind), []).append(rows)
    for (part, kind), sent in parts.items():
        sink = pa.BufferOutputStream()
        rows = joined(sent)
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        yield pa.RecordBatch.from_arrays(
            [pa.array([part], pa.int32()), pa.array([kind], pa.int32()), _value(sink.getvalue())],
            ["part", "kind", "rows"],
        )


def _value(data: pa.Buffer) -> pa.Array:
    """Return an array with one binary value, without a copy of it."""
    offsets = pa.array([0, data.size], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])


def _unpacked(batches: Iterator[pa.RecordBatch], kinds: int) -> Iterator[tuple[int, list[list[pa.Table]]]]:
    """Yield the part of this task with its tables, if it got any."""
    number, found = -1, [list[pa.Table]() for _ in range(kinds)]
    for batch in batches:
        for part, kind, rows in zip(*batch.columns, strict=True):
            number = part.as_py()
            found[kind.as_py()].append(pa.ipc.open_stream(rows.as_buffer()).read_all())
    if number >= 0:
        yield number, found


def _merged_rows(
    batches: Iterator[pa.RecordBatch], merge: Merge, kinds: int, names: list[str]
) -> Iterator[pa.RecordBatch]:
    for part, sent in _unpacked(batches, kinds):
        yield from decoded(merge(part, sent).select(names)).combine_chunks().to_batches(_BATCH_ROWS)


def _written(
    batches: Iterator[pa.RecordBatch], merge: Merge, kinds: int, write: Callable[[int, pa.Table], None]
) -> Iterator[pa.RecordBatch]:
    for part, sent in _unpacked(batches, kinds):
        write(part, merge(part, sent))
        yield pa.RecordBatch.from_arrays([pa.array([part], pa.int32())], ["part"])


_BATCH_ROWS: Final = 20_000  # that Python returns to Spark at a time
