"""The records of a journal to read, by segment. Each record is read from exactly one segment.

Only segments with a manifest count. If two overlap, the later one is read from where the earlier one ends.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql.datasource import InputPartition

from tenantq.errors import Invalid, StoreDamaged
from tenantq.journal.export_target import ExportTarget, open_target
from tenantq.journal.manifest import SCHEMA_VERSION, Manifest, manifest_names, read_manifest
from tenantq.journal.signing import PublicKey
from tenantq.journal.target_url import local_path
from tenantq.pipeline.connector.options import JournalOptions

_READERS: Final = 16  # manifests that are read at a time
_OPEN_COST_BYTES: Final = 1 << 20
"""The cost of opening a segment, when segments are packed into tasks."""


class RecordRange(msgspec.Struct, frozen=True, order=True):
    """The records of a shard from ``first`` to ``last`` that are read from one segment, known from the manifest's name."""

    shard: str
    first: int
    last: int
    name: str  # the manifest's


class SegmentPart(msgspec.Struct, frozen=True):
    """A range with its manifest."""

    span: RecordRange
    manifest: Manifest

    @property
    def is_whole(self) -> bool:
        """Whether it has every record of the segment."""
        return self.span.first == self.manifest.first_seq and self.span.last == self.manifest.last_seq


class SegmentParts(InputPartition):
    """The parts of segments that one task reads."""

    def __init__(self, parts: Sequence[SegmentPart]) -> None:
        super().__init__(None)
        self.parts = list(parts)


def open_journal(url: str) -> ExportTarget:
    """Return the target that a journal is in; raise Invalid if its directory does not exist."""
    path = local_path(url)
    if path is not None and not path.is_dir():
        raise Invalid(f"option journal: {path} is not a directory. Give the directory that contains {'manifest/'!r}")
    return open_target(url)


def record_ranges(target: ExportTarget) -> list[RecordRange]:
    """Return the ranges of all segments by shard and record, without opening a manifest."""
    found: list[RecordRange] = []
    for name in manifest_names(target):
        _, _, rest = name.partition("/shard=")
        shard, _, file = rest.partition("/")
        first, _, last = file.removesuffix(".json").partition("-")
        if not (shard and first.isdigit() and last.isdigit()):
            raise Invalid(f"{name}: is not the name of a manifest. Remove the file.")
        found.append(RecordRange(shard, int(first), int(last), name))
    return without_overlaps(found)


def without_overlaps(found: Iterable[RecordRange]) -> list[RecordRange]:
    """Return ranges that have each record once: later ranges leave out what earlier ones have."""
    kept: list[RecordRange] = []
    for span in sorted(found, key=lambda one: (one.shard, one.first, -one.last)):
        end = kept[-1].last if kept and kept[-1].shard == span.shard else 0
        if span.last > end:
            kept.append(msgspec.structs.replace(span, first=max(span.first, end + 1)))
    return kept


class ManifestReader:
    """Reads and checks manifests, each once."""

    def __init__(self, target: ExportTarget, options: JournalOptions) -> None:
        self._target = target
        self._key = PublicKey.load(Path(options.public_key)) if options.public_key is not None else None
        self._known: dict[str, Manifest] = {}

    def read(self, wanted: Sequence[RecordRange]) -> list[SegmentPart]:
        """Return the ranges with their manifests, in the same order."""
        new = [span.name for span in wanted if span.name not in self._known]
        with ThreadPoolExecutor(_READERS) as pool:
            self._known.update(zip(new, pool.map(self._read, new), strict=True))
        return [SegmentPart(span, self._known[span.name]) for span in wanted]

    def read_one(self, wanted: RecordRange) -> SegmentPart:
        """Return a range with its manifest."""
        return self.read([wanted])[0]

    def _read(self, name: str) -> Manifest:
        manifest = read_manifest(self._target, name)
        if manifest.name != name:
            raise StoreDamaged(f"{name}: the manifest belongs under {manifest.name}; restore the journal")
        if manifest.schema != SCHEMA_VERSION:
            raise Invalid(
                f"{name}: schema version {manifest.schema}, this program reads {SCHEMA_VERSION}; update tenantq"
            )
        if self._key is not None and not self._key.verifies(manifest.signature, manifest.signed_text()):
            raise StoreDamaged(f"{name}: the signature does not match publicKey. Run `tenantq audit verify`.")
        return manifest

    def forget(self, keep: Iterable[RecordRange]) -> None:
        """Forget all manifests but these."""
        names = {span.name for span in keep}
        self._known = {name: manifest for name, manifest in self._known.items() if name in names}


def pack(parts: Iterable[SegmentPart], partition_bytes: int) -> list[InputPartition]:
    """Return tasks of about ``partition_bytes`` each. Neighbours stay together, and no segment is split."""
    tasks: list[InputPartition] = []
    gathered: list[SegmentPart] = []
    size = 0
    for part in parts:
        cost = part.manifest.size + _OPEN_COST_BYTES
        if gathered and size + cost > partition_bytes:
            tasks.append(SegmentParts(gathered))
            gathered, size = [], 0
        gathered.append(part)
        size += cost
    if gathered:
        tasks.append(SegmentParts(gathered))
    return tasks
