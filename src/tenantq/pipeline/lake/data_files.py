"""The Parquet files of a table: how rows are divided into files, how files are named, and what Delta records of them."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tenantq.pipeline.tables import LakeTable

PIECE: Final = "piece"
"""The column that says to which file of its partition a row belongs."""


def with_pieces(rows: DataFrame, table: LakeTable, sizes: Mapping[str, int]) -> DataFrame:
    """Add the column ``piece`` to rows of a split table, or to rows that will be merged into one."""
    split = table.split
    assert split is not None, table.name
    pieces = [
        (*[part.partition("=")[2] for part in name.split("/")], 1 + (size - 1) // split.rows)
        for name, size in sorted(sizes.items())
        if size > split.rows
    ]
    count = f.lit(1)
    if pieces:
        columns = ", ".join([*[f"{name} string" for name in table.partitions], "_pieces int"])
        rows = rows.join(
            f.broadcast(rows.sparkSession.createDataFrame(pieces, columns)), list(table.partitions), "left"
        )
        count = f.coalesce(f.col("_pieces"), count)
    return rows.withColumn(PIECE, f.pmod(f.xxhash64(*split.by), count).cast("int")).drop("_pieces")


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


def name_files(root: Path, token: str) -> dict[str, list[Path]]:
    """Give the files that Spark wrote unique names; return them in order, by partition. "." is the table itself."""
    for piece in list(root.rglob(f"{PIECE}=*")):
        (file,) = piece.glob("*.parquet")  # fails if rows were not partitioned by piece
        file.rename(piece.parent / f"{int(piece.name.partition('=')[2]):05d}.parquet")
        shutil.rmtree(piece)
    found: dict[str, list[Path]] = {}
    for file in sorted(root.rglob("*.parquet")):
        leaf = found.setdefault(file.parent.relative_to(root).as_posix(), [])
        leaf.append(file.rename(file.with_name(f"{len(leaf):05d}-{token}.parquet")))
    return found


def add_action(file: Path, partition: str, table: LakeTable) -> AddAction:
    """Return the action that adds a file to a Delta table, with the statistics of its order and time columns."""
    meta = pq.read_metadata(file)
    wanted = {*table.order, "ts", *([table.split.counted] if table.split else [])}
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
