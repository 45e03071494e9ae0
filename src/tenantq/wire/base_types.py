"""Base types of all JSON objects in requests and replies, and errors."""

from typing import Any, ClassVar

import msgspec

uuid_format = msgspec.Meta(extra_json_schema={"format": "uuid"})


def text_of(bytes_max: int) -> msgspec.Meta:
    """Return the documentation of text. The service checks its bytes, and refuses too many with ``too_large``."""
    return msgspec.Meta(extra_json_schema={"maxLength": bytes_max})


def base64_of(bytes_max: int) -> msgspec.Meta:
    """Return the documentation of bytes in base64."""
    return msgspec.Meta(
        extra_json_schema={
            "contentEncoding": "base64",
            "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
            "maxLength": -(-bytes_max // 3) * 4,
        }
    )


class Wire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A JSON object that a client sends. Unknown fields are refused."""

    json_rules: ClassVar[dict[str, Any]] = {}


class WireReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A JSON object that the server sends. Clients ignore unknown fields, because the server may be newer."""

    json_rules: ClassVar[dict[str, Any]] = {}


class WireError(WireReply, frozen=True, kw_only=True):
    """Why one item of a batch was refused."""

    code: str
    detail: str


class Problem(WireReply, frozen=True, kw_only=True):
    """An error, as application/problem+json."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str = ""
    tenant: str | None = None
    queue: str | None = None
    limit: int | None = None
    current: int | None = None
    retry_after_ms: int | None = None
