"""The copy of a move: a queue's export goes into the target part by part, as it comes, with one part in memory."""

from __future__ import annotations

import hashlib
import tarfile
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.errors import Invalid
from tenantq.wire import ExportedKey, ExportedMessage, ExportedResult, ExportedTenant, ExportManifest, ImportRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.migration.sides import Side

_BLOCK: Final = tarfile.BLOCKSIZE
_FILE_BYTES_MAX: Final = 64 << 20
_KINDS: Final[dict[str, type]] = {
    "messages": ExportedMessage,
    "results": ExportedResult,
    "idempotency": ExportedKey,
}


class Copied(msgspec.Struct, kw_only=True):
    """What became of a queue's export."""

    messages: int = 0
    bytes: int = 0  # of the export
    parts: int = 0
    skipped: int = 0  # parts that the target had already
    unreadable: int = 0  # messages that the source cannot open


class Files:
    """Takes a tar apart while it comes: every whole file goes to ``take`` with its name."""

    def __init__(self, take: Callable[[str, bytes], None]) -> None:
        self._take = take
        self._buffer = bytearray()
        self._head: tarfile.TarInfo | None = None
        self.whole = False  # the end was reached

    def feed(self, piece: bytes) -> None:
        """Take the next piece."""
        self._buffer += piece
        while not self.whole:
            if self._head is None:
                if len(self._buffer) < _BLOCK:
                    return
                self._begin(bytes(self._buffer[:_BLOCK]))
                del self._buffer[:_BLOCK]
                continue
            size = self._head.size
            padded = size + -size % _BLOCK
            if len(self._buffer) < padded:
                return
            name, data = self._head.name, bytes(self._buffer[:size])
            del self._buffer[:padded]
            self._head = None
            self._take(name, data)

    def _begin(self, block: bytes) -> None:
        if not block.strip(b"\0"):
            self.whole = True
            return
        try:
            self._head = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except tarfile.TarError as error:
            raise Invalid(f"what came is no export: {error}") from error
        if self._head.size > _FILE_BYTES_MAX:
            raise Invalid(f"what came is no export: {self._head.name} is too large to be a part of one")


class QueueCopy:
    """One queue on its way. ``tell`` gets messages and bytes as they arrive."""

    def __init__(self, source: Side, target: Side, queue: str, tell: Callable[[int, int], None]) -> None:
        self._source = source
        self._target = target
        self._queue = queue
        self._tell = tell
        self._export = ""
        self._had = 0  # parts that the target has already
        self._hashes: dict[str, str] = {}
        self._manifest: ExportManifest | None = None
        self.done = Copied()

    def run(self) -> Copied:
        """Bring everything over that is not there yet; raise where either side breaks off, or what came is not what was sent."""
        files = Files(self._file)
        with self._source.calling():
            self._source.tenant.export(files.feed, queue=self._queue)
        manifest = self._manifest
        if not files.whole or manifest is None:
            raise Invalid(f"source {self._source.url}: the export of queue {self._queue} is not whole")
        if {file.name: file.sha256 for file in manifest.files} != self._hashes or manifest.export != self._export:
            raise Invalid(f"source {self._source.url}: the export of queue {self._queue} is not what its manifest says")
        self.done.unreadable = manifest.counts.get("unreadable", 0)
        return self.done

    def _file(self, name: str, data: bytes) -> None:
        self.done.bytes += len(data)
        if name == "manifest.json":
            self._manifest = _decoded(data, ExportManifest, name)
            return
        self._hashes[name] = hashlib.sha256(data).hexdigest()
        if name == "tenant.json":
            self._export = _decoded(data, ExportedTenant, name).export
            with self._target.calling():
                self._had = self._target.queue(self._queue).digest(export=self._export).part
            return
        kind = name.rpartition("/")[2].rpartition("-")[0]
        if kind in _KINDS:
            self._part(kind, name, data)

    def _part(self, kind: str, name: str, data: bytes) -> None:
        self.done.parts += 1
        lines = data.splitlines()
        if kind == "messages":
            self.done.messages += len(lines)
        if self.done.parts <= self._had:
            self.done.skipped += 1
        else:
            decoded = [_decoded(line, _KINDS[kind], name) for line in lines]
            fields: dict[str, Any] = {kind: decoded}
            part = ImportRequest(export=self._export, part=self.done.parts, **fields)
            with self._target.calling():
                self._target.tenant.import_part(self._queue, part)
        self._tell(self.done.messages, self.done.bytes)


def _decoded(data: bytes, kind: type[Any], name: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"what came is no export: {name}: {error}") from error
