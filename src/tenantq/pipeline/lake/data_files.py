"""The Parquet files of a table: how rows are divided into files, how files are named, and what Delta records of them."""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tenantq.pipeline.arrow_columns import Vocabulary, by_part, group_starts
from tenantq.pipeline.arrow_shuffle import ArrowShuffle, Sender, SentRows, joined
from tenantq.pipeline.lake.pieces import Pieces
from tenantq.pipeline.reduction import REDUCED, Reduce, write_reduced
from tenantq.pipeline.tables import LakeTable

_GROUP_ROWS: Final = 100_000  # of a row group
_SKIPPED_BY: Final = frozenset(
    {"tenant", "queue", "shard", "seq", "n", "ts", "hour", "first_at", "op", "kind", "metric"}
)
"""Columns whose bounds Delta records. They identify no person, because the log keeps them after an erasure."""
_DISTINCT: Final = ("message_id", "request_id")  # columns whose values hardly repeat


def split_rows(rows: DataFrame, table: LakeTable, pieces: Pieces) -> ArrowShuffle:
    """Return rows of a split table in its files."""
    assert table.split is not None, table.name
    send = partial(_send_pieces, places=table.split.places, pieces=pieces)
    merge = partial(_sorted_rows, order=table.order)
    inputs = [SentRows(rows, Sender(tuple(table.columns.names), send))]
    return ArrowShuffle(rows.sparkSession, inputs, pieces.count, merge, table.columns)


def _send_pieces(
    rows: pa.Table, places: Callable[[pa.Table], tuple[NDArray[Any], NDArray[Any]]], pieces: Pieces
) -> Iterator[tuple[int, int, pa.Table]]:
    for part, sent in by_part(pieces.parts(*places(rows)), rows):
        yield part, 0, sent


def _sorted_rows(_: int, sent: list[list[pa.Table]], order: tuple[str, ...]) -> pa.Table:
    return joined(sent[0]).sort_by([(name, "ascending") for name in order])


def write_rows(rows: pa.Table, place: Path, table: LakeTable) -> None:
    """Write the rows of a table that is not split below ``place``: a file for each partition, one without partitions."""
    columns = to_arrow_schema(table.columns, timezone="UTC")
    rows = rows.select(columns.names).cast(columns)
    rows = rows.take(_order(rows, (*table.partitions, *table.order)))
    ranks = [Vocabulary(rows[name]).ranks[0] for name in table.partitions]
    starts = group_starts(*ranks).tolist() if ranks else [0]
    for start, end in pairwise([*starts, rows.num_rows]):
        part = rows.slice(start, end - start)
        partition = "/".join(f"{name}={part[name][0].as_py()}" for name in table.partitions)
        (place / partition).mkdir(parents=True, exist_ok=True)
        kept = part.drop_columns(list(table.partitions))
        pq.write_table(kept, place / partition / "0.parquet", compression="zstd", store_schema=False)


def _order(rows: pa.Table, names: tuple[str, ...]) -> pa.Array:
    """Return the order of rows by some columns, with nulls first, as Spark sorts them."""
    keys: dict[str, pa.ChunkedArray] = {}
    for name in names:
        if rows[name].null_count:
            keys[f"{name} is there"] = pc.cast(pc.is_valid(rows[name]), pa.int8())
        keys[name] = rows[name]
    return pc.sort_indices(pa.table(keys), [(name, "ascending") for name in keys])


def write_piece(
    part: int, rows: pa.Table, place: str, pieces: Pieces, columns: pa.Schema, reductions: Mapping[str, Reduce]
) -> None:
    """Write a file of a split table below ``place``, and its rows as reduced by each of ``reductions``, by their place.

    Equal rows give equal files, whichever task writes them last.
    """
    if not rows.num_rows:
        return
    partition, number = pieces.place(part)
    for other, reduce in reductions.items():
        write_reduced(Path(other) / partition / f"{number:05d}{REDUCED}", reduce(rows))
    directory = Path(place) / partition
    directory.mkdir(parents=True, exist_ok=True)
    keys = partition_values(partition)
    file, draft = directory / f"{number:05d}.parquet", directory / f"{number:05d}.{uuid.uuid4().hex}"
    shaped = pa.table(
        {
            one.name: rows[one.name] if pa.types.is_dictionary(rows[one.name].type) else rows[one.name].cast(one.type)
            for one in columns
            if one.name not in keys
        }
    )
    repeated = [one.name for one in columns if one.name in shaped.column_names and one.name not in _DISTINCT]
    pq.write_table(
        shaped, draft, row_group_size=_GROUP_ROWS, compression="zstd", use_dictionary=repeated, store_schema=False
    )
    draft.rename(file)


def count_rows(rows: DataFrame, table: LakeTable) -> dict[str, int]:
    """Count the rows that each partition will have."""
    assert table.split is not None, table.name
    counted = rows.groupBy(*table.partitions).agg(f.count(table.split.counted)).collect()
    return {
        "/".join(f"{name}={value}" for name, value in zip(table.partitions, row[:-1], strict=True)): row[-1]
        for row in counted
    }


def nullable_columns(rows: DataFrame, columns: StructType, keys: tuple[str, ...]) -> DataFrame:
    """Return the same rows in exactly the columns of a table, each of them nullable, with ``keys`` last.

    Spark writes into a file whether a column can be null, which depends on how the rows were computed. Files of one table
    must have one schema, so that they can be compared and concatenated.
    """
    wanted = [column for column in columns if column.name not in keys]
    never = f.spark_partition_id() < 0  # which Spark does not know
    shaped = [
        f.when(never, f.lit(None).cast(column.dataType)).otherwise(f.col(column.name)).alias(column.name)
        for column in wanted
    ]
    return rows.select(*shaped, *keys)


def reduced_files(root: Path, written: Mapping[str, list[Path]]) -> dict[Path, Path]:
    """Return the file below ``root`` with the reduced rows of each written one. Both have the same order."""
    return {
        file: reduced
        for partition, files in written.items()
        for file, reduced in zip(files, sorted((root / partition).glob(f"*{REDUCED}")), strict=True)
    }


def name_files(root: Path, token: str) -> dict[str, list[Path]]:
    """Give new files unique names; return them in order, by partition. "." is the table itself."""
    found: dict[str, list[Path]] = {}
    for file in sorted(root.rglob("*.parquet")):
        leaf = found.setdefault(file.parent.relative_to(root).as_posix(), [])
        leaf.append(file.rename(file.with_name(f"{len(leaf):05d}-{token}.parquet")))
    return found


def add_action(file: Path, partition: str, table: LakeTable) -> AddAction:
    """Return the action that adds a file to a Delta table, with statistics that identify no person."""
    meta = pq.read_metadata(file)
    wanted = {*_SKIPPED_BY.intersection((*table.order, "ts")), *([table.split.counted] if table.split else [])}
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at in range(meta.num_columns):
        name = meta.schema.column(at).path
        if name not in wanted or not meta.num_row_groups:
            continue
        chunks = [meta.row_group(group).column(at).statistics for group in range(meta.num_row_groups)]
        if all(chunk is not None and chunk.has_null_count for chunk in chunks):
            nulls[name] = sum(chunk.null_count for chunk in chunks)
        if all(chunk is not None and chunk.has_min_max for chunk in chunks):
            low[name], high[name] = min(chunk.min for chunk in chunks), max(chunk.max for chunk in chunks)
    stats = {"numRecords": meta.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return AddAction(
        path=os.path.normpath(f"{partition}/{file.name}"), size=file.stat().st_size,
        partition_values=partition_values(partition), modification_time=int(file.stat().st_mtime * 1_000),
        data_change=True, stats=msgspec.json.encode(stats, enc_hook=str).decode(),
    )  # fmt: skip


def partition_values(partition: str) -> dict[str, str | None]:
    """Return the partition columns that a directory name such as date=2026-01-01/hour=05 names."""
    parts = (part.partition("=") for part in partition.split("/") if "=" in part)
    return {name: value for name, _, value in parts}


def same_rows(some: list[Path], others: list[Path]) -> bool:
    """Return whether two lists of files have the same rows in the same order, file by file.

    Bytes are not compared, because the rest of a Parquet file depends on the process and the version that wrote it.
    """
    return len(some) == len(others) and all(map(_same_rows, some, others))


def _same_rows(one: Path, other: Path) -> bool:
    files = (pq.ParquetFile(one), pq.ParquetFile(other))
    metas = [file.metadata for file in files]
    if (metas[0].num_rows, metas[0].num_row_groups) != (metas[1].num_rows, metas[1].num_row_groups):
        return False
    groups = range(metas[0].num_row_groups)
    return all(files[0].read_row_group(at).equals(files[1].read_row_group(at)) for at in groups)
