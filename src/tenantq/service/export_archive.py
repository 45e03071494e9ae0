"""The archive of an export: a tar file of JSON lines, written in pieces, with its manifest at the end."""

import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from tenantq.wire.exports import ExportedFile

FORMAT: Final = 1
PART_BYTES: Final = 4 << 20
PART_LINES: Final = 1_000
MANIFEST: Final = "manifest.json"
_BLOCK: Final = tarfile.BLOCKSIZE
END: Final = bytes(2 * _BLOCK)

ArchiveKind = Literal["tenant", "queues", "messages", "results", "idempotency", "keys", "grants", "audit"]
encode_line = msgspec.json.Encoder().encode


class Archive:
    """Turns lines into files of a tar, each bounded in size, and remembers them for the manifest."""

    def __init__(self, at_ms: int, folder: str = "") -> None:
        """Prepare. All files get the time ``at_ms``, and are in ``folder``, which is empty or ends with a slash."""
        self._at_s, self._folder = at_ms // 1_000, folder
        self.files: list[ExportedFile] = []
        self.counts: dict[str, int] = {}

    def parts(self, kind: ArchiveKind, lines: Sequence[object]) -> Iterator[bytes]:
        """Yield the bytes of as many files as the lines need."""
        for part, start in enumerate(range(0, len(lines), PART_LINES), 1):
            yield self.file(kind, f"{kind}-{part:06}.jsonl", lines[start : start + PART_LINES], part=part)

    def file(
        self, kind: ArchiveKind, name: str, lines: Iterable[object], *, queue: str | None = None, part: int = 0
    ) -> bytes:
        """Return the bytes of one file of the tar."""
        name = self._folder + name
        raw = [encode_line(line) for line in lines]
        data = b"".join([line + b"\n" for line in raw])
        digest = hashlib.sha256(data).hexdigest()
        self.counts[kind] = self.counts.get(kind, 0) + len(raw)
        self.files.append(
            ExportedFile(name=name, kind=kind, queue=queue, part=part, lines=len(raw), size=len(data), sha256=digest)
        )
        return self.member(name, data)

    def include(self, files: Iterable[ExportedFile], counts: Mapping[str, int]) -> None:
        """Add the files of another archive to the manifest."""
        self.files += files
        for kind, count in counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + count

    def member(self, name: str, data: bytes) -> bytes:
        """Return a file with its head, filled up to whole blocks."""
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = len(data), self._at_s, 0o600
        buffer = io.BytesIO()
        buffer.write(info.tobuf(tarfile.PAX_FORMAT))
        buffer.write(data)
        buffer.write(bytes(-len(data) % _BLOCK))
        return buffer.getvalue()
