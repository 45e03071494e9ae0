"""The signed manifest of a backup, with all its files. A directory without one is not a backup."""

import hashlib
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from tenantq.errors import Invalid, NotFound, StoreDamaged
from tenantq.journal.export_target import DirectoryTarget
from tenantq.journal.manifest import Manifest, manifest_names, read_manifest
from tenantq.journal.signing import PublicKey, SignedDocument
from tenantq.store.shard_directories import DIRECTORY

FORMAT: Final = 1
MANIFEST: Final = "backup.json"
JOURNAL: Final = "journal"
CHUNK_BYTES: Final = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class BackupFile(msgspec.Struct, frozen=True):
    """One file of a backup."""

    size: int
    sha256: str


class BackupManifest(SignedDocument, frozen=True, kw_only=True):
    """The content of a backup."""

    format: int
    product: str
    version: str  # of the program that created it
    name: str
    shard: str
    created_at: int  # wall clock of the checkpoint
    last_seq: int  # the last journal record in it
    last_link: str  # that record's hash, hex
    first_seq: int  # the first journal record in the store
    segments_upto: int  # the backup has exported segments up to this record; 0: none
    data_keys: str  # the file of wrapped data keys next to the backups
    files: dict[str, BackupFile]  # by path inside the backup
    segments_link: str | msgspec.UnsetType = msgspec.UNSET  # hash of record ``segments_upto`` in the store, hex

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files.values())


def check_backup_name(name: str) -> str:
    """Return ``name``. Raises Invalid if it cannot name a backup."""
    if type(name) is not str or _NAME.fullmatch(name) is None:
        raise Invalid("name: 1 to 80 characters of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter or digit")
    if name == DIRECTORY:
        raise Invalid(f"name: {DIRECTORY!r} is reserved for the backups of other shards. Choose another name.")
    return name


def read_backup_manifest(directory: Path) -> BackupManifest:
    """Return a backup's manifest. Raises NotFound if there is none, StoreDamaged if it is unreadable."""
    file = directory / MANIFEST
    try:
        raw = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{directory}: not a backup: {MANIFEST} is missing") from error
    manifest = BackupManifest.parse(raw, f"{file}: not a backup manifest", StoreDamaged)
    if manifest.product != "tenantq" or manifest.format != FORMAT:
        raise Invalid(f"{file}: unsupported backup format {manifest.format} (supported: {FORMAT})")
    for name in manifest.files:
        if name.startswith("/") or ".." in name.split("/"):
            raise StoreDamaged(f"{file}: lists a file outside the backup")
    return manifest


def hash_file(path: Path) -> BackupFile:
    """Return a file's size and hash."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
        return BackupFile(stream.tell(), digest.hexdigest())


def verify_backup(
    directory: Path,
    key: PublicKey | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    segments_elsewhere: bool = False,
) -> BackupManifest:
    """Verify all files and the journal, and return the manifest. Raises StoreDamaged naming the first problem.

    With ``key``, the manifest must be signed by it. ``progress`` is called with the bytes checked and the total. The journal must
    have no gap between segments and store, unless ``segments_elsewhere`` has the missing ones.
    """
    manifest = read_backup_manifest(directory)
    if key is not None and not manifest.is_signed_by(key):
        raise StoreDamaged(f"{directory / MANIFEST}: is not signed by key {key.id}")
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    for name in sorted(found - set(manifest.files) - {MANIFEST}):
        raise StoreDamaged(f"{directory / name}: not listed in the backup's manifest. The file was added later.")
    done = 0
    for name, expected in sorted(manifest.files.items()):
        path = directory / name
        if name not in found:
            raise StoreDamaged(f"{path}: missing from the backup")
        if hash_file(path) != expected:
            raise StoreDamaged(f"{path}: differs from what was backed up. Use another backup.")
        done += expected.size
        if progress is not None:
            progress(done, manifest.size)
    if manifest.segments_upto and not segments_elsewhere:
        end = check_segments(directory / JOURNAL, manifest)
        if end.last_link != (manifest.segments_link or end.last_link):
            raise StoreDamaged(f"{directory}: the segments are of another journal: record {end.last_seq} differs")
    return manifest


def check_segments(journal: Path, manifest: BackupManifest) -> Manifest:
    """Return the last segment. Raises StoreDamaged unless the segments follow each other and reach the store's first record."""
    target = DirectoryTarget(journal)
    segments = [read_manifest(target, name) for name in manifest_names(target, manifest.shard)]
    for before, one in pairwise(segments):
        if (one.first_seq, one.previous_link) != (before.last_seq + 1, before.last_link):
            raise StoreDamaged(
                f"{journal / one.file}: does not follow the segment that ends at record {before.last_seq}"
            )
    if not segments or segments[-1].last_seq + 1 < manifest.first_seq:
        first = segments[-1].last_seq + 1 if segments else 1
        raise StoreDamaged(
            f"{journal}: journal records {first:,} to {manifest.first_seq - 1:,} are neither in a segment nor in the store."
            " Restore with --segments and the location of the exported journal, or take another backup"
        )
    return segments[-1]
