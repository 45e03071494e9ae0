"""The signature of a request (AWS Signature Version 4), in its headers or, presigned, in its query."""

import contextlib
import posixpath
import re
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from tenantq.errors import SignatureRefused
from tenantq.gates.signature import ALGORITHM, SignedRequest
from tenantq.http.request_head import RequestHead

_TIME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_SCOPE_PARTS: Final = 5
_EXPIRES: Final = re.compile(r"[0-9]{1,6}")
_EXPIRES_S_MAX: Final = 7 * 86_400

_UNSIGNED: Final = b"UNSIGNED-PAYLOAD"
_EMPTY: Final = sha256(b"").hexdigest()


def signed_request(head: RequestHead, body: bytes) -> SignedRequest | SignatureRefused | None:
    """Return the signature of a request, the error if it is malformed, or None if the request is not signed."""
    authorization = head.headers.get(b"authorization")
    raw_query = head.target.partition(b"?")[2]
    try:
        if authorization is not None:
            return _of_header(head, authorization.decode("latin-1"), body)
        if b"X-Amz-Signature=" in raw_query or b"X-Amz-Credential=" in raw_query:
            return _of_query(head, dict(parse_qsl(raw_query.decode("latin-1"), keep_blank_values=True)), body)
    except SignatureRefused as refused:
        return refused
    return None


def _of_header(head: RequestHead, authorization: str, body: bytes) -> SignedRequest:
    scheme, _, rest = authorization.partition(" ")
    if scheme != ALGORITHM:
        raise _incomplete(f"the Authorization header must start with {ALGORITHM}")
    parts = dict(part.strip().split("=", 1) for part in rest.split(",") if "=" in part)
    for name in ("Credential", "SignedHeaders", "Signature"):
        if not parts.get(name):
            raise _incomplete(f"Authorization header requires '{name}' parameter")
    if b"x-amz-security-token" in head.headers:
        raise _no_sessions()
    time = head.headers.get(b"x-amz-date", b"").decode("latin-1")
    return _signed(head, body, parts["Credential"], parts["SignedHeaders"], parts["Signature"], time)


def _of_query(head: RequestHead, query: dict[str, str], body: bytes) -> SignedRequest:
    for name in ("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Date"):
        if not query.get(name):
            raise _incomplete(f"a presigned URL requires the parameter {name}")
    if query["X-Amz-Algorithm"] != ALGORITHM:
        raise _incomplete(f"X-Amz-Algorithm has to be {ALGORITHM}")
    if "X-Amz-Security-Token" in query:
        raise _no_sessions()
    expires = query.get("X-Amz-Expires", "")
    if _EXPIRES.fullmatch(expires) is None or not 1 <= int(expires) <= _EXPIRES_S_MAX:
        raise _incomplete(f"X-Amz-Expires has to be 1 to {_EXPIRES_S_MAX} seconds")
    return _signed(
        head, body, query["X-Amz-Credential"], query["X-Amz-SignedHeaders"], query["X-Amz-Signature"],
        query["X-Amz-Date"], valid_ms=int(expires) * 1_000,
    )  # fmt: skip


def _signed(
    head: RequestHead,
    body: bytes,
    credential: str,
    signed_headers: str,
    signature: str,
    time: str,
    valid_ms: int | None = None,
) -> SignedRequest:
    scope = credential.split("/")
    if len(scope) != _SCOPE_PARTS or scope[4] != "aws4_request":
        raise _incomplete("Credential must have the form key-id/date/region/service/aws4_request")
    key_id, day, region, service, _ = scope
    names = signed_headers.encode(errors="replace").lower().split(b";")  # a header name is ASCII
    if b"host" not in names:
        raise _incomplete("'Host' must be a 'SignedHeader' in the AWS Authorization.")
    for name in head.headers:  # these headers change the request, so an intermediary must not be able to add one
        if name.startswith(b"x-amz-") and name not in names:
            raise _incomplete(f"'{name.decode('latin-1')[:80]}' must be a 'SignedHeader' in the AWS Authorization.")
    return SignedRequest(
        key_id=key_id,
        day=day,
        region=region,
        service=service,
        time=time,
        signed_at=_wall_ms(time),
        signature=signature,
        request_hash=canonical_hash(head, names, body, presigned=valid_ms is not None),
        valid_ms=valid_ms,
    )


def _wall_ms(time: str) -> int:
    if _TIME.fullmatch(time) is not None:
        with contextlib.suppress(ValueError):  # such as a 13th month
            return int(datetime.strptime(time, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1_000)
    raise _incomplete("Date must be in ISO-8601 'basic format', in X-Amz-Date")


def _incomplete(message: str) -> SignatureRefused:
    return SignatureRefused(message, aws_code="IncompleteSignature")


def _no_sessions() -> SignatureRefused:
    return SignatureRefused(
        "The security token included in the request is invalid: tenantq keys have none. Send only key ID and secret.",
        aws_code="InvalidClientTokenId",
    )


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
        raise SignatureRefused("The body does not match the hash in X-Amz-Content-Sha256.")
    return actual
