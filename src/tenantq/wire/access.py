"""Requests and replies about keys and grants."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from tenantq.domain.access import GRANTS_SOMETHING, Action, PlatformAction, QueuePatterns, Role
from tenantq.domain.limits import KeyName, PrincipalName, WallTime
from tenantq.domain.schema_rules import at_least_one, given
from tenantq.domain.validation import documented, items
from tenantq.wire.base_types import Wire, WireReply

_RoleText = Annotated[str, documented(Role)]  # the service checks roles and actions: it may know more than a client
_ActionText = Annotated[str, documented(Action)]


class GrantRequest(Wire, frozen=True, kw_only=True):
    """What a principal may do in the tenant. It replaces the stored grant."""

    json_rules: ClassVar[Any] = GRANTS_SOMETHING
    role: _RoleText | None = None
    actions: tuple[_ActionText, ...] = ()
    queues: QueuePatterns = ("*",)
    expires_at: WallTime | None = None


class CreateKeyRequest(GrantRequest, frozen=True, kw_only=True):
    """Create an API key with a role or actions, for some queues, until some time."""

    name: KeyName


class CreatePlatformKeyRequest(Wire, frozen=True, kw_only=True):
    """Create an API key of the platform: for an administrator, or for single actions of the platform."""

    json_rules: ClassVar[Any] = GRANTS_SOMETHING
    name: KeyName
    role: Literal["platform-admin"] | None = None
    actions: tuple[Annotated[str, documented(PlatformAction)], ...] = ()
    queues: Annotated[tuple[Literal["*"], ...], items(1, 1)] = ("*",)  # the platform has no queues
    expires_at: WallTime | None = None


class CreatedKey(WireReply, frozen=True, kw_only=True):
    """A new key. Secret and token are shown only once."""

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
    suspended_until: int | None = None  # because of an alert
    last_used_at: int | None


class KeysReply(WireReply, frozen=True, kw_only=True):
    """A tenant's keys."""

    keys: list[KeyItem]


class GrantItem(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A stored grant."""

    principal: str
    role: str | None
    actions: tuple[str, ...]
    queues: tuple[str, ...]
    expires_at: int | None
    reviewed_at: int | None = None  # when it was created or last reviewed


class CredentialGrant(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """What a credential allows in its tenant."""

    role: str | None
    actions: tuple[str, ...]
    queues: tuple[str, ...]
    expires_at: int | None


class WhoAmIReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """The caller's credential, without stored grants. ``tenant`` is null for a credential of the platform."""

    principal: str
    tenant: str | None
    grants: list[CredentialGrant]
    expires_at: int | None


class GrantsReply(WireReply, frozen=True, kw_only=True):
    """A tenant's stored grants."""

    grants: list[GrantItem]


class RevokeTokenRequest(Wire, frozen=True, kw_only=True):
    """Refuse a JSON web token before it expires: by its id (``jti``) or all of a principal's."""

    json_rules: ClassVar[Any] = at_least_one(given("token_id"), given("principal"))
    token_id: PrincipalName | None = None
    principal: PrincipalName | None = None
    until: WallTime  # when the token expires anyway
