"""Signed manifests of segments. A segment without one does not count; the last one is the end of the export."""

import re
from datetime import UTC, datetime
from typing import Final

from tenantq.errors import Invalid
from tenantq.journal.export_target import ExportTarget
from tenantq.journal.signing import SignedDocument

SCHEMA_VERSION: Final = 1
"""Version of the columns of segments."""

MANIFESTS: Final = "manifest"
HEAD: Final = "head.json"
_FILE: Final = re.compile(r"date=\d{4}-\d\d-\d\d/hour=\d\d/shard=[^/]+/\d{20}-\d{20}\.parquet")
_LINK: Final = re.compile(r"[0-9a-f]{64}")


class Manifest(SignedDocument, frozen=True, kw_only=True):
    """One segment's manifest."""

    shard: str
    first_seq: int
    last_seq: int
    records: int
    rows: int
    size: int  # bytes of the Parquet file
    sha256: str  # of the Parquet file
    previous_link: str  # hash of the record before the first, hex
    last_link: str  # hash of the last record, hex
    min_ts: int
    max_ts: int
    file: str  # the Parquet file's name
    schema: int = SCHEMA_VERSION

    @property
    def name(self) -> str:
        """The manifest's own file name."""
        return manifest_name(self.shard, self.first_seq, self.last_seq)


class ExportHead(SignedDocument, frozen=True, kw_only=True):
    """The end of a shard's export, signed. It reveals an archive that was truncated."""

    shard: str
    last_seq: int
    last_link: str

    @property
    def name(self) -> str:
        """The head's file name."""
        return head_name(self.shard)


def head_name(shard: str) -> str:
    """Return the file name of a shard's head."""
    return f"{MANIFESTS}/shard={shard}/{HEAD}"


def manifest_name(shard: str, first_seq: int, last_seq: int) -> str:
    """Return the file name of a segment's manifest."""
    return f"{MANIFESTS}/shard={shard}/{span_name(first_seq, last_seq)}.json"


def span_name(first_seq: int, last_seq: int) -> str:
    """Return the range of records as part of a file name that sorts by it."""
    return f"{first_seq:020d}-{last_seq:020d}"


def segment_name(shard: str, ts: int, first_seq: int, last_seq: int) -> str:
    """Return the file name of a segment, by hour, so that a pipeline finds new ones."""
    hour = datetime.fromtimestamp(ts / 1_000, UTC)
    return f"date={hour:%Y-%m-%d}/hour={hour:%H}/shard={shard}/{span_name(first_seq, last_seq)}.parquet"


def read_manifest(target: ExportTarget, name: str) -> Manifest:
    """Return a manifest. Raises Invalid naming the file. Its names and hashes are well-formed, its signature is not verified."""
    manifest = Manifest.parse(target.read(name), f"{name}: not a manifest")
    if _FILE.fullmatch(manifest.file) is None or ".." in manifest.file:
        raise Invalid(f"{name}: not a manifest: its file name is not that of a segment")
    if _LINK.fullmatch(manifest.previous_link) is None or _LINK.fullmatch(manifest.last_link) is None:
        raise Invalid(f"{name}: not a manifest: its hashes are malformed")
    return manifest


def read_head(target: ExportTarget, shard: str) -> ExportHead | None:
    """Return a shard's head, or None. Raises Invalid if it is unreadable."""
    name = head_name(shard)
    try:
        return ExportHead.parse(target.read(name), f"{name}: not a head")
    except FileNotFoundError:
        return None


def manifest_names(target: ExportTarget, shard: str | None = None) -> list[str]:
    """Return the names of all manifests, or those of one shard, in order."""
    under = MANIFESTS if shard is None else f"{MANIFESTS}/shard={shard}"
    return [name for name in target.names(under) if name.endswith(".json") and not name.endswith(f"/{HEAD}")]
