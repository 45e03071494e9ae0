"""Request bodies in parts or compressed: joined, and inflated with a bound on what comes out."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tenantq.errors import TooLarge
from tenantq.http.body_item_count import check_item_count
from tenantq.http.problem import malformed
from tenantq.http.request import Request
from tenantq.runtime.loop_slices import joined

_GZIP_FRAME: Final = 31
_DEFLATE_RATIO_MAX: Final = 1_032  # what the format can reach
AT_ONCE_BYTES: Final = 256 << 10
"""More than this is inflated on a thread, in steps of this size."""


def inflated_bytes_max(request: Request) -> int:
    """Return the most bytes that the body of a request can have once it is inflated."""
    size = sum(map(len, request.parts)) or len(request.body)
    return min(size * _DEFLATE_RATIO_MAX, request.body_bytes_max) if request.encoding else size


async def unpack(request: Request, items_max: int) -> None:
    """Join the parts of a body, and inflate it if it is compressed. Raises TooLarge, Invalid, or Unavailable for lack of memory."""
    parts, request.parts = request.parts or (request.body,), ()
    if request.encoding:
        request.body = await inflate(parts, request.body_bytes_max, items_max, request.hold_inflated)
        request.encoding = b""
    else:
        request.body = await joined(parts)


async def inflate(parts: Sequence[bytes], bytes_max: int, items_max: int, hold: Callable[[int], None]) -> bytes:
    """Return a gzip body inflated. Raises TooLarge beyond ``bytes_max``, Invalid beyond ``items_max``, a 400 if it is not gzip.

    ``hold`` gets the size of every part before the next is inflated, and may refuse by raising.
    """
    unpacker = zlib.decompressobj(_GZIP_FRAME)
    inflated: list[bytes] = []
    size, commas, checked_commas = 0, 0, items_max
    for data in _pieces(parts):
        while data and size <= bytes_max and not unpacker.unused_data:
            if commas > checked_commas:  # they may be inside strings; it pays to find out before more is inflated
                inflated = [await joined(inflated)]
                await check_item_count(inflated[0], items_max)
                checked_commas = 2 * commas
            part = await asyncio.to_thread(_step, unpacker, data) if inflated else _step(unpacker, data)
            hold(len(part))
            inflated.append(part)
            size += len(part)
            commas += part.count(b",")
            data = unpacker.unconsumed_tail  # noqa: PLW2901  # the rest of the piece
    if size > bytes_max:
        raise TooLarge(f"body: too large once inflated (more than {bytes_max} bytes)")
    if not unpacker.eof or unpacker.unused_data:
        raise malformed("body: must be one complete gzip stream")
    return await joined(inflated)


def _pieces(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the parts, cut where they are long: in every step, zlib copies the input that it has not used."""
    for part in parts:
        for at in range(0, len(part), AT_ONCE_BYTES):
            yield part[at : at + AT_ONCE_BYTES]


def _step(unpacker: zlib._Decompress, data: bytes) -> bytes:
    try:
        return unpacker.decompress(data, AT_ONCE_BYTES)
    except zlib.error as error:
        raise malformed("body: is not gzip, although content-encoding says so") from error
