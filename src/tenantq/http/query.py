"""Paths and queries: from escaped text to typed values."""

import re
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from tenantq.domain.limits import PageSize
from tenantq.domain.validation import build
from tenantq.errors import Invalid
from tenantq.http.problem import malformed

_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_INT_CHARS_MAX: Final = 16


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects a page of a list."""

    cursor: str | None = None  # the ``cursor`` of the previous page
    limit: PageSize = 100


def unescape(raw: bytes) -> str:
    """Return percent-decoded text. Raises HttpError if it is malformed."""
    if _BAD_ESCAPE.search(raw) is not None:
        raise malformed("path or query: a '%' is not followed by two hexadecimal digits")
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise malformed("path or query: must be UTF-8 after percent-decoding") from error


def parse_query(raw: bytes, kind: type[msgspec.Struct] | None) -> Any:
    """Return the query as a ``kind``; raise Invalid naming an unknown, repeated or malformed parameter."""
    if not raw:
        return kind() if kind is not None else None
    known = {field.encode_name: field for field in msgspec.structs.fields(kind)} if kind is not None else {}
    values: dict[str, str | int] = {}
    for part in raw.split(b"&"):
        if not part:
            continue
        name_raw, _, value_raw = part.replace(b"+", b" ").partition(b"=")
        name, value = unescape(name_raw), unescape(value_raw)
        field = known.get(name)
        if field is None:
            allowed = f"Allowed: {', '.join(known)}." if known else "This call has no query parameters."
            raise Invalid(f"{name[:80]}: unknown query parameter. {allowed}")
        if name in values:
            raise Invalid(f"{name}: duplicate query parameter")
        values[name] = _number(name, value) if _takes_number(field.type) else value
    if kind is None:
        return None
    return build(kind, values)


def _takes_number(kind: Any) -> bool:
    inner = msgspec.inspect.type_info(kind)
    options = inner.types if isinstance(inner, msgspec.inspect.UnionType) else (inner,)
    return any(isinstance(one, msgspec.inspect.IntType) for one in options)


def _number(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > _INT_CHARS_MAX:
        raise Invalid(f"{name}: must be a whole number")
    return int(text)
