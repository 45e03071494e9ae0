"""A backup's manifest: what it holds, file by file, signed. A directory without one is no backup."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.cluster.layout import DIRECTORY
from tenantq.errors import Invalid, NotFound, StoreDamaged
from tenantq.journal.signing import SignedDocument

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tenantq.journal.signing import PublicKey

FORMAT: Final = 1
MANIFEST: Final = "backup.json"
CHUNK_BYTES: Final = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class BackupFile(msgspec.Struct, frozen=True):
    """One file of a backup."""

    size: int
    sha256: str


class BackupManifest(SignedDocument, frozen=True, kw_only=True):
    """What a backup is and what it holds."""

    format: int
    product: str
    version: str  # of the program that made it
    name: str
    shard: str
    created_at: int  # wall clock, when the store's state was taken
    last_seq: int  # the last journal record that it holds
    last_link: str  # that record's hash, hex
    first_seq: int  # the first journal record that the store still had
    segments_upto: int  # exported segments up to this record are in the backup; 0: none
    data_keys: str  # the file, beside the backups, that has the wrapped data keys
    files: dict[str, BackupFile]  # by path inside the backup

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files.values())


def check_backup_name(name: str) -> str:
    """Return ``name`` if a backup can be called that, else raise Invalid."""
    if type(name) is not str or _NAME.fullmatch(name) is None:
        raise Invalid("name: 1 to 80 characters of A-Z, a-z, 0-9, '.', '_' and '-', the first a letter or digit")
    if name == DIRECTORY:
        raise Invalid(f"name: {DIRECTORY!r} is where the backups of the other shards are; choose another")
    return name


def read_backup_manifest(directory: Path) -> BackupManifest:
    """Return a backup's manifest; raise NotFound where there is no backup, StoreDamaged where it is unreadable."""
    file = directory / MANIFEST
    try:
        raw = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{directory} holds no backup: there is no {MANIFEST}") from error
    try:
        manifest = msgspec.json.decode(raw, type=BackupManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"{file}: is no manifest of a backup: {error}") from error
    if manifest.product != "tenantq" or manifest.format != FORMAT:
        raise Invalid(f"{file}: is of format {manifest.format}; this program reads format {FORMAT}")
    for name in manifest.files:
        if name.startswith("/") or ".." in name.split("/"):
            raise StoreDamaged(f"{file}: names a file outside the backup")
    return manifest


def hash_file(path: Path) -> BackupFile:
    """Return a file's size and hash."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return BackupFile(size, digest.hexdigest())


def verify_backup(
    directory: Path, key: PublicKey | None = None, progress: Callable[[int, int], None] | None = None
) -> BackupManifest:
    """Return the manifest if every file is as it was written, else raise StoreDamaged naming the first that is not.

    With ``key``, the manifest has to be signed by it. ``progress`` is told bytes looked at, and of how many.
    """
    manifest = read_backup_manifest(directory)
    if key is not None and not manifest.is_signed_by(key):
        raise StoreDamaged(f"{directory / MANIFEST}: is not signed by key {key.id}")
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    for name in sorted(found - set(manifest.files) - {MANIFEST}):
        raise StoreDamaged(f"{directory / name}: is not in the backup's manifest; it was put there later")
    done = 0
    for name, expected in sorted(manifest.files.items()):
        path = directory / name
        if name not in found:
            raise StoreDamaged(f"{path}: is missing from the backup")
        if hash_file(path) != expected:
            raise StoreDamaged(f"{path}: is not as it was written; take another backup")
        done += expected.size
        if progress is not None:
            progress(done, manifest.size)
    return manifest
