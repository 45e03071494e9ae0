"""Keys and grants on the wire."""

from __future__ import annotations

from typing import Literal

from tenantq.wire.kinds import Wire, WireReply


class CreateKeyRequest(Wire, frozen=True, kw_only=True):
    """Make an API key: a role or actions, for some queues, until some time."""

    name: str
    role: str | None = None
    actions: tuple[str, ...] = ()
    queues: tuple[str, ...] = ("*",)
    expires_at: int | None = None


class CreatePlatformKeyRequest(Wire, frozen=True, kw_only=True):
    """Make an API key of the platform: an administrator's, or one for single actions of the platform, until some time."""

    name: str
    role: Literal["platform-admin"] | None = None
    actions: tuple[str, ...] = ()
    queues: tuple[str, ...] = ("*",)  # nothing else: the platform has no queues
    expires_at: int | None = None


class CreatedKey(WireReply, frozen=True, kw_only=True):
    """A new key. Secret and token are shown this once."""

    key_id: str
    secret: str
    token: str


class KeyItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A key, without its secret."""

    key_id: str
    name: str
    role: str | None
    actions: tuple[str, ...]
    queues: tuple[str, ...]
    expires_at: int | None
    created_at: int
    created_by: str
    revoked_at: int | None
    last_used_at: int | None


class KeysReply(WireReply, frozen=True, kw_only=True):
    """A tenant's keys."""

    keys: list[KeyItem]


class GrantRequest(Wire, frozen=True, kw_only=True):
    """What a principal may do in the tenant. Replaces what was stored for it."""

    role: str | None = None
    actions: tuple[str, ...] = ()
    queues: tuple[str, ...] = ("*",)
    expires_at: int | None = None


class GrantItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A stored grant."""

    principal: str
    role: str | None
    actions: tuple[str, ...]
    queues: tuple[str, ...]
    expires_at: int | None


class GrantsReply(WireReply, frozen=True, kw_only=True):
    """A tenant's stored grants."""

    grants: list[GrantItem]


class RevokeTokenRequest(Wire, frozen=True, kw_only=True):
    """Refuse a JSON web token before it expires: by its id (``jti``) or all of a principal's."""

    token_id: str | None = None
    principal: str | None = None
    until: int  # wall clock; when the token would have expired anyway
