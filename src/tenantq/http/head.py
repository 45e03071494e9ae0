"""What the headers of a request say, as far as they mean anything here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from tenantq.http.problem import Refusal

if TYPE_CHECKING:
    from tenantq.http.request import Request

_NAMES: Final = (
    b"Authorization", b"Host", b"Content-Type", b"Content-Length", b"Content-Encoding", b"Transfer-Encoding",
    b"Accept-Encoding", b"Expect", b"X-Request-Id", b"User-Agent", b"Connection",
)  # fmt: skip
_USELESS: Final = (b"Accept", b"accept", b"Accept-Language", b"Cache-Control", b"Origin", b"Referer")

SIGNED: Final = "AWS4-HMAC-SHA256"
"""The scheme of a signed request. In a call such a request is known by it and the key's id, until the signature is checked."""

KNOWN: Final = {spelling: name.lower() for name in _NAMES for spelling in (name, name.lower(), name.upper())}
"""The usual spellings of headers, to be spared lower-casing them; empty for those that are common and mean nothing."""
KNOWN[b"X-Request-ID"] = b"x-request-id"
KNOWN.update(dict.fromkeys(_USELESS, b""))

ONCE: Final = frozenset(
    (
        b"authorization",
        b"host",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"transfer-encoding",
        b"expect",
    )
)
"""Given twice, these leave in doubt what is meant."""

NEVER_REPEATED: Final = frozenset((b"x-request-id", b"transfer-encoding", b"expect"))
"""A head with one of these is not worth remembering, or cannot be."""


def bearer_of(authorization: bytes) -> str:
    """Return the token; of any other scheme the whole text, which is no token, so that it is refused as one.

    Of a signed request, whose text is another each time, the part that tells whose it is.
    """
    text = authorization.decode("latin-1")
    scheme, _, token = text.partition(" ")
    token = token.strip()
    if scheme.lower() == "bearer" and token:
        return token
    key_id = signing_key_id(authorization)
    return f"{scheme} {key_id}" if key_id is not None else text


def signing_key_id(authorization: bytes) -> str | None:
    """Return the id of the key that signed a request (AWS Signature Version 4), as its header says; None: it says none."""
    if not authorization.startswith(SIGNED.encode()):
        return None
    _, found, rest = authorization.partition(b"Credential=")
    return rest.partition(b"/")[0].decode("latin-1") if found else None


def presigning_key_id(raw_query: bytes) -> str | None:
    """Return the id of the key that a presigned URL names; None: it names none."""
    _, found, rest = raw_query.partition(b"X-Amz-Credential=")
    if not found:
        return None
    credential = unquote_to_bytes(rest.partition(b"&")[0])
    return credential.partition(b"/")[0].decode("latin-1") or None


def check_content(request: Request, headers: dict[bytes, bytes]) -> None:
    """Note how the body is encoded; raise Refusal if it is of a type or an encoding that is not understood."""
    kind = headers.get(b"content-type")
    if kind is not None:
        kind, _, parameters = kind.lower().partition(b";")
        parameters = parameters.replace(b" ", b"").replace(b'"', b"")
        if kind.strip() != b"application/json" or parameters not in {b"", b"charset=utf-8"}:
            raise Refusal(415, "invalid", "content-type: must be application/json, in UTF-8")
    coding = headers.get(b"content-encoding")
    if coding is not None:
        coding = coding.lower()
        if coding not in {b"gzip", b"x-gzip", b"identity", b""}:
            accepted = b"Accept-Encoding: gzip\r\n"
            raise Refusal(415, "invalid", "content-encoding: only gzip is understood", headers=accepted)
        request.encoding = b"gzip" if coding.endswith(b"gzip") else b""
