"""Compressed request bodies, inflated with a bound on what comes out."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Final

from tenantq.errors import TooLarge
from tenantq.http.item_limit import check_items
from tenantq.http.problem import malformed
from tenantq.http.request import Request

_GZIP_FRAME: Final = 31
_DEFLATE_RATIO_MAX: Final = 1_032  # what the format can reach
AT_ONCE_BYTES: Final = 256 << 10
"""More than this is inflated on a thread, in steps of this size."""


def inflated_bytes_max(request: Request) -> int:
    """Return the most bytes that the body of a request can have once it is inflated."""
    size = len(request.body)
    return min(size * _DEFLATE_RATIO_MAX, request.body_bytes_max) if request.encoding else size


async def unpack(request: Request, items_max: int) -> None:
    """Inflate the body of a request if it is compressed. Raises TooLarge, Invalid, or Unavailable if it would take too much memory."""
    if request.encoding:
        request.body = await inflate(request.body, request.body_bytes_max, items_max, request.listener.holder(request))
        request.encoding = b""


async def inflate(body: bytes | bytearray, bytes_max: int, items_max: int, hold: Callable[[int], None]) -> bytearray:
    """Return a gzip body inflated. Raises TooLarge beyond ``bytes_max``, Invalid beyond ``items_max``, a 400 if it is not gzip.

    ``hold`` gets the size of every part before the next is inflated, and may refuse by raising.
    """
    unpacker = zlib.decompressobj(_GZIP_FRAME)
    inflated = bytearray(_step(unpacker, body))
    hold(len(inflated))
    commas, checked_commas = inflated.count(b","), items_max
    while unpacker.unconsumed_tail and not unpacker.eof and len(inflated) <= bytes_max:
        if commas > checked_commas:  # they may be inside strings; it pays to find out before more is inflated
            await check_items(inflated, items_max)
            checked_commas = 2 * commas
        part = await asyncio.to_thread(_step, unpacker, unpacker.unconsumed_tail)
        hold(len(part))
        commas += part.count(b",")
        inflated += part
    if len(inflated) > bytes_max:
        raise TooLarge(f"body: too large once inflated (more than {bytes_max} bytes)")
    if not unpacker.eof or unpacker.unused_data:
        raise malformed("body: must be one complete gzip stream")
    return inflated


def _step(unpacker: zlib._Decompress, data: bytes | bytearray) -> bytes:
    try:
        return unpacker.decompress(data, AT_ONCE_BYTES)
    except zlib.error as error:
        raise malformed("body: is not gzip, although content-encoding says so") from error
