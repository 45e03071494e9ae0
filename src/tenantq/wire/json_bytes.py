"""Bytes in JSON: text if they are UTF-8, otherwise base64."""

import binascii
from collections.abc import Iterator
from typing import Final

from tenantq.errors import Invalid

SHORT_BYTES: Final = 1_024
"""Shorter bytes become text whenever they are UTF-8: even a full batch of them stays within its limits."""

_PIECE_CHARS: Final = 256 << 10
_LONG: Final = bytes(code for code in range(32) if code not in b"\b\t\n\f\r")


def bytes_of(text: str | None, base64: str | None, field: str) -> bytes:
    """Return the bytes of ``field`` or ``field``_base64. Raises Invalid unless exactly one is given and valid."""
    if base64 is None:
        if text is None:
            raise Invalid(f"{field}: give {field} (text) or {field}_base64")
        return text.encode()
    if text is not None:
        raise Invalid(f"{field}: give {field} or {field}_base64, not both")
    return b"".join(base64_pieces(base64, field))


def base64_pieces(base64: str, field: str) -> Iterator[bytes]:
    """Yield the bytes of ``field``_base64 in pieces: a megabyte takes milliseconds. Raises Invalid if it is not valid."""
    for at in range(0, len(base64), _PIECE_CHARS):
        piece = base64[at : at + _PIECE_CHARS]
        try:
            decoded = binascii.a2b_base64(piece, strict_mode=True)
        except ValueError:
            decoded = b""
        if len(decoded) < len(piece) // 4 * 3 - (2 if at + len(piece) == len(base64) else 0) or not decoded:
            raise Invalid(f"{field}_base64: must be base64 in the standard alphabet, with padding")
        yield decoded


def bloats(data: bytes) -> bool:
    """Return whether more than an eighth of the bytes are characters that JSON escapes with six."""
    return len(data) - len(data.translate(None, _LONG)) > len(data) // 8


def text_or_base64(data: bytes) -> tuple[str | None, str | None]:
    """Return (text, None) for UTF-8, or (None, base64), also for UTF-8 that would be much longer as JSON text."""
    if len(data) > SHORT_BYTES and bloats(data):
        return None, binascii.b2a_base64(data, newline=False).decode("ascii")
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, binascii.b2a_base64(data, newline=False).decode("ascii")
