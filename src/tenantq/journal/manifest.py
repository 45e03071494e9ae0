"""Manifests: what a segment holds, signed. A segment without one does not count; the last one says how far the export is."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.errors import Invalid

if TYPE_CHECKING:
    from tenantq.journal.export_target import ExportTarget

SCHEMA_VERSION: Final = 1
"""Of the segments' columns; grows when they change."""

MANIFESTS: Final = "manifest"
HEAD: Final = "head.json"
_FILE: Final = re.compile(r"date=\d{4}-\d\d-\d\d/hour=\d\d/shard=[^/]+/\d{20}-\d{20}\.parquet")
_LINK: Final = re.compile(r"[0-9a-f]{64}")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
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
    key_id: str = ""
    signature: str = ""

    def signed_text(self) -> bytes:
        """Return the bytes that are signed: everything but the signature."""
        return msgspec.json.encode(msgspec.structs.replace(self, signature=""), order="sorted")

    @property
    def name(self) -> str:
        """The manifest's own file name."""
        return f"{MANIFESTS}/shard={self.shard}/{span_name(self.first_seq, self.last_seq)}.json"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """How far a shard's export was when it was last written, signed: an archive cut off at its end falls short of it."""

    shard: str
    last_seq: int
    last_link: str
    key_id: str = ""
    signature: str = ""

    def signed_text(self) -> bytes:
        """Return the bytes that are signed."""
        return msgspec.json.encode(msgspec.structs.replace(self, signature=""), order="sorted")

    @property
    def name(self) -> str:
        """The head's file name."""
        return f"{MANIFESTS}/shard={self.shard}/{HEAD}"


def span_name(first_seq: int, last_seq: int) -> str:
    """Return the part of a file's name that tells which records it holds, and sorts."""
    return f"{first_seq:020d}-{last_seq:020d}"


def segment_name(shard: str, ts: int, first_seq: int, last_seq: int) -> str:
    """Return a segment's file name: by hour, so that a pipeline finds what is new."""
    hour = datetime.fromtimestamp(ts / 1_000, UTC)
    return f"date={hour:%Y-%m-%d}/hour={hour:%H}/shard={shard}/{span_name(first_seq, last_seq)}.parquet"


def read_manifest(target: ExportTarget, name: str) -> Manifest:
    """Return a manifest, or raise Invalid naming the file. What it says of itself is not verified, but can be used safely."""
    try:
        manifest = msgspec.json.decode(target.read(name), type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{name}: is no manifest: {error}") from error
    if _FILE.fullmatch(manifest.file) is None or ".." in manifest.file:
        raise Invalid(f"{name}: is no manifest: it names a file that cannot be a segment")
    if _LINK.fullmatch(manifest.previous_link) is None or _LINK.fullmatch(manifest.last_link) is None:
        raise Invalid(f"{name}: is no manifest: its hashes are none")
    return manifest


def read_head(target: ExportTarget, shard: str) -> Head | None:
    """Return a shard's head, or None; raise Invalid if it is unreadable."""
    name = f"{MANIFESTS}/shard={shard}/{HEAD}"
    try:
        return msgspec.json.decode(target.read(name), type=Head)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{name}: is no head: {error}") from error


def manifest_names(target: ExportTarget, shard: str | None = None) -> list[str]:
    """Return the names of manifests, of one shard or all, in order."""
    under = MANIFESTS if shard is None else f"{MANIFESTS}/shard={shard}"
    return [name for name in target.names(under) if name.endswith(".json") and not name.endswith(f"/{HEAD}")]
