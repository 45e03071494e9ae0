"""Transfers one queue: streams its export into the target part by part, with one part in memory."""

import hashlib
import tarfile
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tenantq.errors import Invalid
from tenantq.migration.endpoint import Endpoint
from tenantq.wire.exports import (
    ExportedKey,
    ExportedMessage,
    ExportedResult,
    ExportedTenant,
    ExportManifest,
    ImportRequest,
)

_BLOCK: Final = tarfile.BLOCKSIZE
_FILE_BYTES_MAX: Final = 64 << 20
_KINDS: Final[dict[str, type]] = {
    "messages": ExportedMessage,
    "results": ExportedResult,
    "idempotency": ExportedKey,
}


class TransferResult(msgspec.Struct, kw_only=True):
    """The result of transferring a queue."""

    messages: int = 0
    bytes: int = 0  # of the export
    parts: int = 0
    skipped: int = 0  # parts that the target already had
    unreadable: int = 0  # messages that the source cannot decrypt


class TarReader:
    """Parses a tar stream. Calls ``take`` with the name and content of every complete file."""

    def __init__(self, take: Callable[[str, bytes], None]) -> None:
        self._take = take
        self._buffer = bytearray()
        self._head: tarfile.TarInfo | None = None
        self.ended = False  # the end of the archive was reached

    def feed(self, piece: bytes) -> None:
        """Parse the next chunk."""
        self._buffer += piece
        while not self.ended:
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
            self.ended = True
            return
        try:
            self._head = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except tarfile.TarError as error:
            raise Invalid(f"the source sent an invalid export: {error}") from error
        if self._head.size > _FILE_BYTES_MAX:
            raise Invalid(f"the source sent an invalid export: {self._head.name} is too large")


class QueueTransfer:
    """The transfer of one queue. ``report`` gets messages and bytes as they arrive."""

    def __init__(self, source: Endpoint, target: Endpoint, queue: str, report: Callable[[int, int], None]) -> None:
        self._source = source
        self._target = target
        self._queue = queue
        self._report = report
        self._export = ""
        self._had = 0  # parts that the target already has
        self._hashes: dict[str, str] = {}
        self._manifest: ExportManifest | None = None
        self.done = TransferResult()

    def run(self) -> TransferResult:
        """Transfer all missing parts. Raises if either side fails, or if the export does not match its manifest."""
        files = TarReader(self._file)
        with self._source.naming_errors():
            self._source.tenant.export(files.feed, queue=self._queue)
        manifest = self._manifest
        if not files.ended or manifest is None:
            raise Invalid(f"source {self._source.url}: the export of queue {self._queue} is incomplete")
        if {file.name: file.sha256 for file in manifest.files} != self._hashes or manifest.export != self._export:
            raise Invalid(f"source {self._source.url}: the export of queue {self._queue} does not match its manifest")
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
            with self._target.naming_errors():
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
            with self._target.naming_errors():
                self._target.tenant.import_part(self._queue, part)
        self._report(self.done.messages, self.done.bytes)


def _decoded(data: bytes, kind: type[Any], name: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"the source sent an invalid export: {name}: {error}") from error
