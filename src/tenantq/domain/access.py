"""Principals, actions, roles and grants.

A principal is text: ``key:<key id>``, ``jwt:<subject>``, ``cert:<name>``, ``anonymous`` or ``system``. It may do in a tenant
what the grants of its credential and its stored grants allow together. Everything else is denied.
"""

from __future__ import annotations

import fnmatch
import re
from functools import lru_cache
from typing import Annotated, Final, Literal, get_args

import msgspec

from tenantq.domain.limits import WallTime
from tenantq.domain.names import QueuePattern
from tenantq.domain.schema_rules import at_least_one, given
from tenantq.domain.validation import items, matching, validated
from tenantq.errors import Invalid

Role = Literal["platform-admin", "tenant-admin", "operator", "producer", "consumer", "auditor", "viewer"]
ROLES: Final[tuple[str, ...]] = get_args(Role)

TenantAction = Literal[
    # work
    "add", "poll", "ack", "nack", "release", "extend",
    # reading; ``read_body`` shows bodies, attributes and result values
    "peek", "get", "result", "trace", "read_body",
    # repair
    "remove", "purge", "redrive",
    # queues
    "list_queues", "get_queue", "put_queue", "pause_queue", "resume_queue", "delete_queue",
    # the tenant
    "get_tenant", "usage", "get_metrics", "audit", "export", "import",
    # templates
    "list_templates", "put_template", "delete_template",
    # encryption
    "get_encryption", "rotate_keys", "rewrap_keys",
    # access
    "list_keys", "create_key", "revoke_key", "list_grants", "put_grant", "delete_grant", "review_grant", "revoke_token",
]  # fmt: skip
PlatformAction = Literal[
    "list_tenants", "put_tenant", "suspend_tenant", "resume_tenant", "delete_tenant", "metrics", "audit_platform",
    "list_platform_keys", "create_platform_key", "revoke_platform_key",
    "hold_tenant", "release_hold", "list_erasures", "create_backup", "list_backups", "test_backup", "get_cluster", "drain_member",
    "place_tenant", "grow_cluster", "list_containments", "release_containment",
    "list_signups", "approve_signup", "reject_signup",
]  # fmt: skip
Action = Literal[TenantAction, PlatformAction]
AuditResult = Literal["SUCCESS", "DENIED", "ERROR"]  # of a journaled call
ACTIONS: Final[tuple[str, ...]] = get_args(Action)

_READ: Final = {"list_queues", "get_queue", "get_tenant", "usage", "get_metrics", "get_encryption", "list_templates"}

MATRIX: Final[dict[str, frozenset[str]]] = {
    "platform-admin": frozenset(ACTIONS),
    "tenant-admin": frozenset(get_args(TenantAction)),
    "operator": frozenset(
        _READ
        | {"peek", "get", "result", "trace", "read_body", "remove", "purge", "redrive"}
        | {"put_queue", "pause_queue", "resume_queue", "delete_queue"}
    ),
    "producer": frozenset({"add", "result", "get_queue", "read_body"}),
    "consumer": frozenset({"poll", "ack", "nack", "release", "extend", "get_queue", "read_body"}),
    "auditor": frozenset(_READ | {"audit", "trace", "list_keys", "list_grants", "review_grant"}),
    "viewer": frozenset(_READ | {"peek", "get", "result", "trace"}),
}
"""Actions of each role in the tenant of the grant. ``platform-admin`` applies to every tenant."""

VIEWS: Final = (
    "audit", "audit_platform", "trace", "get_tenant", "usage", "get_encryption", "get_queue", "list_queues", "list_keys",
    "list_grants", "list_templates", "list_tenants", "list_platform_keys", "list_signups", "list_containments",
    "list_erasures", "list_backups",
)  # fmt: skip
"""Reads of configuration and of the audit trail. They are journaled, and not billed."""

PRINCIPALS: Final = ("key", "jwt", "cert")
"""Kinds of principals that can have stored grants: the part before the colon."""

PATTERNS_MAX: Final = 32
QueuePatterns = Annotated[tuple[QueuePattern, ...], items(1, PATTERNS_MAX)]  # names, with * and ? as wildcards
_RoleName = Annotated[str, matching("|".join(ROLES), ", ".join(ROLES))]
_ActionName = Annotated[str, matching("|".join(ACTIONS), ", ".join(ACTIONS))]
GRANTS_SOMETHING: Final = at_least_one(given("role"), given("actions", minItems=1))


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a principal may do in one tenant: a role, single actions, or both."""

    role: _RoleName | None = None
    actions: tuple[_ActionName, ...] = ()
    queues: QueuePatterns = ("*",)
    expires_at: WallTime | None = None

    def allows(self, action: str, queue: str | None, now_ms: int) -> bool:
        """Return whether this grant allows ``action``. ``queue`` is None for actions without a queue."""
        if self.expires_at is not None and self.expires_at <= now_ms:
            return False
        if action not in self.actions and (self.role is None or action not in MATRIX[self.role]):
            return False
        return queue is None or any(matches(pattern, queue) for pattern in self.queues)


def matches(pattern: str, queue: str) -> bool:
    """Return whether a queue pattern covers a queue's name."""
    return pattern == "*" or _compiled(pattern).match(queue) is not None


@lru_cache(maxsize=4_096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))  # fnmatch turns stars into atomic groups, so no pattern backtracks


def check_grant(grant: Grant) -> Grant:
    """Return ``grant`` if it is well formed and grants something. Raises Invalid otherwise."""
    if type(grant) is not Grant:
        raise Invalid(f"grant: must be a Grant, not {type(grant).__name__}")
    validated(grant)
    if grant.role is None and not grant.actions:
        raise Invalid("role, actions: a grant requires one of them")
    return grant


def can_be_granted_to(principal: str) -> bool:
    """Return whether a principal can have stored grants. ``anonymous`` and ``system`` cannot."""
    kind, _, who = principal.partition(":")
    return kind in PRINCIPALS and bool(who)


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller."""

    id: str
    tenant: str | None  # tenant of the credential; None: a credential of the platform
    grants: tuple[Grant, ...] = ()  # of the credential, for its own tenant
    expires_at: int | None = None  # wall clock; end of the credential

    @property
    def is_platform_admin(self) -> bool:
        """Whether the credential is a platform administrator's, which is valid in every tenant."""
        return self.tenant is None and any(grant.role == "platform-admin" for grant in self.grants)


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key as stored. The token cannot be derived from it."""

    id: str
    tenant: str | None  # None: a key of the platform
    name: str
    grant: Grant
    token_hash: bytes  # SHA-256 of the whole token
    created_at: int
    created_by: str
    revoked_at: int | None = None
    suspended_until: int | None = None  # by containment

    @property
    def principal(self) -> str:
        return f"key:{self.id}"

    def is_over(self, now_ms: int) -> bool:
        """Return whether it is revoked or expired."""
        expires_at = self.grant.expires_at
        return self.revoked_at is not None or (expires_at is not None and expires_at <= now_ms)

    def is_suspended(self, now_ms: int) -> bool:
        """Return whether containment suspends it."""
        return self.suspended_until is not None and now_ms < self.suspended_until


class KeyUse(msgspec.Struct, frozen=True):
    """When and from where a key was last used."""

    last_used_at: int
    places: tuple[str, ...] = ()  # known networks
