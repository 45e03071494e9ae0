"""The Parquet files of a partition: how rows are divided into files, how files are named, and what their footers say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql.types import StructType

    from tenantq.pipeline.tables import LakeTable

_NO_TEXT: Final = "\0"  # never a date, file name, reason or shard
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
    never = f.col([*keys, wanted[0].name][0]).eqNullSafe(f.lit(_NO_TEXT))
    shaped = [
        f.when(never, f.lit(None).cast(column.dataType)).otherwise(f.col(column.name)).alias(column.name)
        for column in wanted
    ]
    return rows.select(*shaped, *keys)


def partition_names(root: Path, table: LakeTable) -> set[str]:
    """Return the directories below ``root`` that hold files, relative; "." is the root itself."""
    found = {file.parent.relative_to(root).as_posix() for file in root.rglob("*.parquet")}
    return found - {"."} if table.partitions else found


def name_files(root: Path, table: LakeTable) -> set[str]:
    """Give the files that Spark wrote names that do not depend on tasks; return the partitions."""
    for stray in [*root.rglob("*.crc"), *root.rglob("_SUCCESS")]:
        stray.unlink()
    for piece in list(root.rglob(f"{PIECE}=*")):
        (file,) = piece.iterdir()  # fails if rows were not partitioned by piece
        file.rename(piece.parent / f"{int(piece.name.partition('=')[2]):05d}.parquet")
        piece.rmdir()
    leaves = partition_names(root, table)
    for leaf in leaves:
        for number, file in enumerate(sorted((root / leaf).glob("*.parquet"))):
            file.rename(file.with_name(f"{number:05d}.parquet"))
    return leaves


def column_chunks(file: Path, column: str) -> list[Any]:
    """Return what a file's footer says about a column, per row group."""
    meta = pq.read_metadata(file)
    at = meta.schema.names.index(column)
    return [meta.row_group(number).column(at) for number in range(meta.num_row_groups)]


def same_rows(one: Path, other: Path) -> bool:
    """Tell whether two partitions, or two files, have the same rows in the same order, file by file.

    Bytes are no measure: what else is in a Parquet file depends on the process and the version that wrote it.
    """
    if one.is_dir() and other.is_dir():
        names = {file.name for file in one.iterdir()}
        return names == {file.name for file in other.iterdir()} and all(
            same_rows(one / name, other / name) for name in names
        )
    if one.is_dir() or not other.is_file():
        return False
    if one.suffix != ".parquet":
        return one.read_bytes() == other.read_bytes()
    files = (pq.ParquetFile(one), pq.ParquetFile(other))
    metas = [file.metadata for file in files]
    if (metas[0].num_rows, metas[0].num_row_groups) != (metas[1].num_rows, metas[1].num_row_groups):
        return False
    groups = range(metas[0].num_row_groups)
    return all(files[0].read_row_group(at).equals(files[1].read_row_group(at)) for at in groups)
