"""Exports of a spread tenant's queues on other shards. Each is a stream: a summary, the files of an archive, and its manifest."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

import msgspec

from tenantq.errors import Unavailable
from tenantq.service.export_archive import Archive
from tenantq.wire.exports import ExportManifest


class PartSummary(msgspec.Struct, frozen=True):
    """The first piece of a part."""

    queues: int
    messages: int


class PieceStream(Protocol):
    """The pieces of a part, in order."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the iterator."""

    async def aclose(self) -> None:
        """Stop the export of the part."""


class PartExport:
    """The export of one part. Always close it."""

    def __init__(self, stream: PieceStream) -> None:
        self._stream, self._pieces = stream, aiter(stream)

    async def summary(self) -> PartSummary:
        """Return how much the part has. Call it once, before ``files``. Raises Unavailable if the part ends early."""
        return msgspec.json.decode(await self._next(), type=PartSummary)

    async def files(self, archive: Archive) -> AsyncIterator[bytes]:
        """Yield the files of the part, and list them in an archive. Raises Unavailable if the part ends early."""
        last = await self._next()
        async for piece in self._pieces:
            yield last
            last = piece
        try:
            manifest = msgspec.json.decode(last, type=ExportManifest)
        except msgspec.DecodeError as error:  # it is a file, so the manifest is missing
            raise _ended_early() from error
        archive.include(manifest.files, manifest.counts)

    async def _next(self) -> bytes:
        piece = await anext(self._pieces, None)
        if piece is None:
            raise _ended_early()
        return piece

    async def aclose(self) -> None:
        """Stop the export of the part."""
        await self._stream.aclose()


class PartExports:
    """The exports of a tenant's parts on other shards."""

    def __init__(self, parts: Sequence[PartExport], check_places: Callable[[], Awaitable[None]]) -> None:
        """Prepare. ``check_places`` raises Unavailable if queues have moved between shards since the first export began."""
        self.parts, self.check_places = parts, check_places

    async def aclose(self) -> None:
        """Stop all of them, even if stopping one fails."""
        await close_all(self.parts)


async def close_all(parts: Iterable[PartExport]) -> None:
    """Stop the exports of several parts. If some fail to stop, the others stop anyway; then raise an error."""
    async with AsyncExitStack() as closing:
        for one in parts:
            closing.push_async_callback(one.aclose)


def _ended_early() -> Unavailable:
    return Unavailable("the export of a part of the tenant ended early. Try again later.")
