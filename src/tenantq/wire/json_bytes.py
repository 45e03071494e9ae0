"""Bytes in JSON: text where they are UTF-8, base64 where they are not."""

from __future__ import annotations

import binascii
from typing import Final

from tenantq.errors import Invalid

SHORT_BYTES: Final = 1_024
"""What is no longer than this is text wherever it can be: even a full request of such bodies keeps its bounds."""

_LONG: Final = bytes(code for code in range(32) if code not in b"\b\t\n\f\r")


def bytes_of(text: str | None, base64: str | None, field: str) -> bytes:
    """Return the bytes of ``field`` or ``field``_base64; raise Invalid unless exactly one is given, and is well formed."""
    if base64 is None:
        if text is None:
            raise Invalid(f"{field}: give {field} (text) or {field}_base64")
        return text.encode()
    if text is not None:
        raise Invalid(f"{field}: give {field} or {field}_base64, not both")
    try:
        return binascii.a2b_base64(base64.encode(), strict_mode=True)
    except ValueError as error:
        raise Invalid(f"{field}_base64: is not base64 in the standard alphabet with padding") from error


def bloats(data: bytes) -> bool:
    """Tell whether more than an eighth is of characters that JSON writes as six."""
    return len(data) - len(data.translate(None, _LONG)) > len(data) // 8


def text_or_base64(data: bytes) -> tuple[str | None, str | None]:
    """Return (text, None) for UTF-8, else (None, base64); also for UTF-8 that would be much longer as JSON text."""
    if len(data) > SHORT_BYTES and bloats(data):
        return None, binascii.b2a_base64(data, newline=False).decode("ascii")
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, binascii.b2a_base64(data, newline=False).decode("ascii")
