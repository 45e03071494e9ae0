"""MD5 digests with which clients verify what they sent and received."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from tenantq.sqs.message_attributes import TypedValue

_TEXT = b"\x01"
_BYTES = b"\x02"


def body_digest(body: bytes) -> str:
    """Return the MD5 of a message's body."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def attributes_digest(attributes: Mapping[str, TypedValue]) -> str:
    """Return the MD5 over attributes in order of their names: lengths, names, types and values."""
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        for text in (name.encode(), value.type.encode()):
            digest.update(len(text).to_bytes(4) + text)
        raw = value.value if isinstance(value.value, bytes) else value.value.encode()
        digest.update((_BYTES if isinstance(value.value, bytes) else _TEXT) + len(raw).to_bytes(4) + raw)
    return digest.hexdigest()
