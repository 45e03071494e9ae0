"""An export on this machine: a tar file or a directory, verified against its manifest."""

import hashlib
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import msgspec

from tenantq.errors import Invalid
from tenantq.wire.exports import ExportedFile, ExportManifest

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
_FILE_BYTES_MAX: Final = 64 << 20


class ExportFile:
    """An open export: ``with ExportFile(path) as export``. Raises Invalid if the path is not an export."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tar: tarfile.TarFile | None = None
        self._members: dict[str, tarfile.TarInfo] = {}

    def __enter__(self) -> Self:
        try:
            if not self.path.is_dir():
                self._tar = tarfile.open(self.path, "r:")
                self._members = {member.name: member for member in self._tar.getmembers() if member.isfile()}
            self.manifest = self._read_manifest()
        except (OSError, tarfile.TarError) as error:
            self.close()
            why = error.strerror if isinstance(error, OSError) and error.strerror else "not a tar file, or truncated"
            raise Invalid(f"{self.path}: {why}") from error
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Close the file."""
        if self._tar is not None:
            self._tar.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_manifest(self) -> ExportManifest:
        try:
            manifest = msgspec.json.decode(self._read(MANIFEST), type=ExportManifest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"{self.path}: {MANIFEST} cannot be read: {error}") from error
        if manifest.product != "tenantq" or manifest.format != FORMAT:
            raise Invalid(f"{self.path}: unsupported format {manifest.format}; this version reads format {FORMAT}")
        return manifest

    def read(self, file: ExportedFile) -> list[bytes]:
        """Return the lines of a file. Raises Invalid if it differs from the manifest."""
        data = self._read(file.name)
        if len(data) != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
            raise Invalid(f"{self.path}: {file.name} does not match its hash in the manifest")
        lines = data.splitlines()
        if len(lines) != file.lines:
            raise Invalid(f"{self.path}: {file.name} has {len(lines)} lines, but the manifest lists {file.lines}")
        return lines

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Raise Invalid if a file is missing, changed or unknown."""
        total, done = sum(file.size for file in self.manifest.files), 0
        known = {file.name for file in self.manifest.files}
        counts: dict[str, int] = {}
        for file in self.manifest.files:
            counts[file.kind] = counts.get(file.kind, 0) + len(self.read(file))
            done += file.size
            if progress is not None:
                progress(done, total)
        if counts != {kind: count for kind, count in self.manifest.counts.items() if kind != "unreadable"}:
            raise Invalid(f"{self.path}: the counts in the manifest do not add up")
        for name in sorted(set(self._names()) - known - {MANIFEST}):
            raise Invalid(f"{self.path}: {name} is not in the manifest")

    def _names(self) -> list[str]:
        if self._tar is not None:
            return list(self._members)
        return [path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if path.is_file()]

    def _read(self, name: str) -> bytes:
        """Return the content of a file. Raises Invalid if it is missing, too large or outside the export."""
        missing = Invalid(f"{self.path}: {name} is missing; the export is incomplete")
        if self._tar is None:
            path = self.path / name
            if ".." in Path(name).parts or Path(name).is_absolute() or not path.is_file():
                raise missing
            if path.stat().st_size > _FILE_BYTES_MAX and name != MANIFEST:
                raise Invalid(f"{self.path}: {name} is too large for a part of an export")
            return path.read_bytes()
        member = self._members.get(name)
        stream = self._tar.extractfile(member) if member is not None else None
        if member is None or stream is None:
            raise missing
        if member.size > _FILE_BYTES_MAX and name != MANIFEST:
            raise Invalid(f"{self.path}: {name} is too large for a part of an export")
        return stream.read()
