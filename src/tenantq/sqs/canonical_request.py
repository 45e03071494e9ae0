"""The canonical form of a request, whose hash is signed."""

from __future__ import annotations

import posixpath
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes

from tenantq.errors import SignatureRefused

if TYPE_CHECKING:
    from tenantq.http.request_head import RequestHead

_UNSIGNED: Final = b"UNSIGNED-PAYLOAD"
_EMPTY: Final = sha256(b"").hexdigest()


def canonical_hash(head: RequestHead, names: list[bytes], body: bytes, *, presigned: bool) -> str:
    """Return the SHA-256 of the canonical request, in hexadecimal digits."""
    path, _, raw_query = head.target.partition(b"?")
    parts = [
        head.method,
        _path(path),
        _query(raw_query, presigned=presigned) if raw_query else b"",
        *(name + b":" + b" ".join(head.headers.get(name, b"").split()) for name in names),
        b"",
        b";".join(names),
        _payload(head, names, body),
    ]
    return sha256(b"\n".join(parts)).hexdigest()


def _path(path: bytes) -> bytes:
    if path == b"/":
        return path
    if not path.startswith(b"/"):
        path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
    plain = posixpath.normpath(path.decode("latin-1"))
    if path.endswith(b"/") and not plain.endswith("/"):
        plain += "/"
    return quote("/" + plain.lstrip("/"), safe="/~", encoding="latin-1").encode()


def _query(raw: bytes, *, presigned: bool) -> bytes:
    pairs = []
    for part in raw.split(b"&"):
        name, _, value = part.partition(b"=")
        if not part or (presigned and name == b"X-Amz-Signature"):
            continue
        pairs.append((_encoded(name), _encoded(value)))
    return b"&".join(name + b"=" + value for name, value in sorted(pairs))


def _encoded(raw: bytes) -> bytes:
    return quote(unquote_to_bytes(raw.replace(b"+", b" ")), safe="-_.~").encode()


def _payload(head: RequestHead, names: list[bytes], body: bytes) -> bytes:
    """Return the hash of the body. A hash that the request names must match, unless it declares the body unsigned."""
    named = head.headers.get(b"x-amz-content-sha256")
    if named == _UNSIGNED and b"x-amz-content-sha256" in names:
        return named
    actual = (sha256(body).hexdigest() if body else _EMPTY).encode()
    if named is not None and named.lower() != actual:
        raise SignatureRefused("The body is not the one whose hash X-Amz-Content-Sha256 names.")
    return actual
