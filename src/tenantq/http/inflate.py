"""Compressed request bodies, inflated with a bound on what comes out."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Final

from tenantq.errors import TooLarge
from tenantq.http.problem import malformed
from tenantq.http.request import Request

_GZIP_FRAME: Final = 31
AT_ONCE_BYTES: Final = 256 << 10
"""More than this is inflated off the event loop, so that nobody else waits for it."""


async def unpack(request: Request) -> None:
    """Have the body of a request as it was before it was compressed, if it was; within what its call takes and the listener can hold."""
    if request.encoding:
        request.body = await inflate(request.body, request.body_bytes_max, request.listener.holder(request))
        request.encoding = b""


async def inflate(body: bytes, bytes_max: int, hold: Callable[[int], None]) -> bytes:
    """Return a gzip body inflated; TooLarge beyond ``bytes_max``, a 400 if it is not gzip.

    ``hold`` is told of every part's size before the next is inflated, and may refuse by raising.
    """
    unpacker = zlib.decompressobj(_GZIP_FRAME)
    parts = [_step(unpacker, body)]
    size = len(parts[0])
    hold(size)
    while unpacker.unconsumed_tail and not unpacker.eof:
        if size > bytes_max:
            raise TooLarge(f"body: is larger than {bytes_max} bytes once inflated, the limit of this call")
        part = await asyncio.to_thread(_step, unpacker, unpacker.unconsumed_tail)
        size += len(part)
        hold(len(part))
        parts.append(part)
    if size > bytes_max:
        raise TooLarge(f"body: is larger than {bytes_max} bytes once inflated, the limit of this call")
    if not unpacker.eof or unpacker.unused_data:
        raise malformed("body: is not one whole gzip stream")
    return b"".join(parts)


def _step(unpacker: zlib._Decompress, data: bytes) -> bytes:
    try:
        return unpacker.decompress(data, AT_ONCE_BYTES)
    except zlib.error as error:
        raise malformed("body: is not gzip, as content-encoding says") from error
