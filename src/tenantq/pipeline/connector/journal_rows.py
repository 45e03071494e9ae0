"""Rows of segments as Arrow batches: the wanted columns and records, filtered with the help of file statistics."""

import hashlib
import io
from collections.abc import Iterator
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tenantq.errors import StoreDamaged
from tenantq.journal.export_target import ExportTarget
from tenantq.journal.segment import SCHEMA
from tenantq.pipeline.bronze.rows import RowRules
from tenantq.pipeline.bronze.segment_check import verdict
from tenantq.pipeline.connector.options import JournalOptions
from tenantq.pipeline.connector.pushdown import PushedFilters
from tenantq.pipeline.connector.record_ranges import SegmentPart, open_journal

BATCH_ROWS: Final = 10_000
_ADVICE: Final = "see `tenantq audit verify`, and restore the journal"


class JournalRows:
    """Reads parts of a journal, in any process."""

    def __init__(self, options: JournalOptions, schema: StructType, pushed: PushedFilters) -> None:
        self._options = options
        self._schema = schema
        self._pushed = pushed

    def read(self, parts: list[SegmentPart]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of segment parts, in order."""
        target = open_journal(self._options.journal)
        columns = to_arrow_schema(self._schema, timezone="UTC")
        for part in parts:
            for batch in self._rows(target, part, columns.names):
                if batch.num_rows:
                    yield batch.cast(columns)

    def _rows(self, target: ExportTarget, part: SegmentPart, names: list[str]) -> Iterator[pa.RecordBatch]:
        file = part.manifest.file
        wanted = self._pushed.expression()
        if not part.is_whole:
            seq = pc.field("seq")
            records = (seq >= part.span.first) & (seq <= part.span.last)
            wanted = records if wanted is None else wanted & records
        try:
            with self._opened(target, part) as opened:
                fragment = ds.ParquetFileFormat().make_fragment(opened)
                if fragment.physical_schema.names != SCHEMA.names:
                    raise StoreDamaged(f"{file}: the columns differ from those of a segment; {_ADVICE}")
                scanner = fragment.scanner(columns=names, filter=wanted, batch_size=BATCH_ROWS, use_threads=False)
                yield from scanner.to_batches()
        except FileNotFoundError as error:
            raise StoreDamaged(f"{file}: the segment that a manifest names is missing; {_ADVICE}") from error
        except (pa.ArrowException, OSError) as error:
            raise StoreDamaged(f"{file}: not readable as Parquet: {str(error)[:200]}; {_ADVICE}") from error

    def _opened(self, target: ExportTarget, part: SegmentPart) -> BinaryIO:
        """Return the segment's file, verified as the options ask for."""
        manifest = part.manifest
        if self._options.verify == "none":
            return target.open(manifest.file)
        if self._options.verify == "full":
            found, _ = verdict(target, manifest.name, None, RowRules())
            if found["reason"]:
                raise StoreDamaged(f"{manifest.file}: {found['reason']}: {found['details']}; {_ADVICE}")
        data = target.read(manifest.file)
        if hashlib.sha256(data).hexdigest() != manifest.sha256:
            raise StoreDamaged(f"{manifest.file}: the file differs from its manifest; {_ADVICE}")
        return io.BytesIO(data)
