"""What every JSON object that goes over HTTP has in common, and how errors are told."""

from __future__ import annotations

import msgspec


class Wire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A JSON object that a client sends."""


class WireReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A JSON object that the server sends. A client passes over fields it does not know: the server may be newer."""


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
