"""Rows of segments as Arrow batches: the wanted columns, the wanted records, filtered where the file's statistics help."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tenantq.errors import Invalid, StoreDamaged
from tenantq.journal.segment import SCHEMA
from tenantq.pipeline.bronze.segment_check import verdict
from tenantq.pipeline.connector.record_ranges import open_journal
from tenantq.pipeline.schemas import SEGMENT_ROW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

    from tenantq.journal.export_target import ExportTarget
    from tenantq.pipeline.connector.options import JournalOptions
    from tenantq.pipeline.connector.pushdown import Pushed
    from tenantq.pipeline.connector.record_ranges import Stretch

BATCH_ROWS: Final = 10_000
_ADVICE: Final = "see `tenantq audit verify`, and restore the journal"


def check_schema(schema: StructType) -> StructType:
    """Return a schema of journal columns, or raise Invalid naming the column that is none."""
    for field in schema.fields:
        if field.name not in SEGMENT_ROW.names:
            raise Invalid(
                f"schema: the journal has no column {field.name[:80]!r}; it has {', '.join(SEGMENT_ROW.names)}"
            )
        kind = SEGMENT_ROW[field.name].dataType
        if field.dataType != kind:
            raise Invalid(f"schema: {field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}")
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow columns that Spark expects for journal columns."""
    kinds = {"link": pa.binary(), "ts": pa.timestamp("us", tz="UTC")}
    return pa.schema(
        [pa.field(one.name, kinds.get(one.name, SCHEMA.field(one.name).type), nullable=one.nullable) for one in schema]
    )


class JournalRows:
    """Reads stretches of a journal, in whatever process it is."""

    def __init__(self, options: JournalOptions, schema: StructType, pushed: Pushed) -> None:
        self._options = options
        self._schema = schema
        self._pushed = pushed

    def read(self, stretches: list[Stretch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of stretches, in order."""
        target = open_journal(self._options.journal)
        columns = arrow_schema(self._schema)
        for stretch in stretches:
            for batch in self._rows(target, stretch, columns.names):
                if batch.num_rows:
                    yield batch.cast(columns)

    def _rows(self, target: ExportTarget, stretch: Stretch, names: list[str]) -> Iterator[pa.RecordBatch]:
        file = stretch.manifest.file
        wanted = self._pushed.expression()
        if not stretch.is_whole:
            seq = pc.field("seq")
            records = (seq >= stretch.span.first) & (seq <= stretch.span.last)
            wanted = records if wanted is None else wanted & records
        try:
            with self._opened(target, stretch) as opened:
                fragment = ds.ParquetFileFormat().make_fragment(opened)
                if fragment.physical_schema.names != SCHEMA.names:
                    raise StoreDamaged(f"{file}: its columns are not those of a segment; {_ADVICE}")
                scanner = fragment.scanner(columns=names, filter=wanted, batch_size=BATCH_ROWS, use_threads=False)
                yield from scanner.to_batches()
        except FileNotFoundError as error:
            raise StoreDamaged(f"{file}: a manifest names this segment, and it is not there; {_ADVICE}") from error
        except (pa.ArrowException, OSError) as error:
            raise StoreDamaged(f"{file}: not readable as Parquet: {str(error)[:200]}; {_ADVICE}") from error

    def _opened(self, target: ExportTarget, stretch: Stretch) -> BinaryIO:
        """Return the segment's file, verified as far as was asked for."""
        manifest = stretch.manifest
        if self._options.verify == "none":
            return target.open(manifest.file)
        if self._options.verify == "full":
            found = verdict(target, manifest.name, None)
            if found["reason"]:
                raise StoreDamaged(f"{manifest.file}: {found['reason']}: {found['details']}; {_ADVICE}")
        data = target.read(manifest.file)
        if hashlib.sha256(data).hexdigest() != manifest.sha256:
            raise StoreDamaged(f"{manifest.file}: the file is not the one that its manifest was written for; {_ADVICE}")
        return io.BytesIO(data)
