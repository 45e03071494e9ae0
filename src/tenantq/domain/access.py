"""Who may do what: actions, roles and grants. The matrix of roles and actions is the one table here.

A principal is text: ``key:<key id>``, ``jwt:<subject>``, ``cert:<name>``, ``anonymous`` or ``system``. What it may do in a
tenant is the union of the grants that come with its credential and those stored for it; whatever no grant allows is denied.
"""

from __future__ import annotations

import fnmatch
import re
from functools import lru_cache
from typing import Final, Literal, get_args

import msgspec

from tenantq.domain import limits
from tenantq.domain.message import check_int
from tenantq.errors import Invalid

Role = Literal["platform-admin", "tenant-admin", "operator", "producer", "consumer", "auditor", "viewer"]
ROLES: Final[tuple[str, ...]] = get_args(Role)

Action = Literal[
    # work
    "add", "poll", "ack", "nack", "release", "extend",
    # looking; ``read_body`` is what lets bodies, attributes and result values through
    "peek", "get", "result", "trace", "read_body",
    # mending
    "remove", "purge", "redrive",
    # queues
    "list_queues", "get_queue", "put_queue", "pause_queue", "resume_queue", "delete_queue",
    # the tenant
    "get_tenant", "usage", "audit", "export", "import",
    # its encryption
    "get_encryption", "rotate_keys", "rewrap_keys",
    # access
    "list_keys", "create_key", "revoke_key", "list_grants", "put_grant", "delete_grant", "revoke_token",
    # the platform
    "list_tenants", "put_tenant", "suspend_tenant", "resume_tenant", "delete_tenant", "metrics", "audit_platform",
    "list_platform_keys", "create_platform_key", "revoke_platform_key",
    "hold_tenant", "release_hold", "list_erasures", "create_backup", "list_backups",
]  # fmt: skip
ACTIONS: Final[tuple[str, ...]] = get_args(Action)

_PLATFORM: Final = {
    "list_tenants", "put_tenant", "suspend_tenant", "resume_tenant", "delete_tenant", "metrics", "audit_platform",
    "list_platform_keys", "create_platform_key", "revoke_platform_key",
    "hold_tenant", "release_hold", "list_erasures", "create_backup", "list_backups",
}  # fmt: skip
_LOOK: Final = {"list_queues", "get_queue", "get_tenant", "usage", "get_encryption"}

MATRIX: Final[dict[str, frozenset[str]]] = {
    "platform-admin": frozenset(ACTIONS),
    "tenant-admin": frozenset(ACTIONS) - _PLATFORM,
    "operator": frozenset(
        _LOOK
        | {"peek", "get", "result", "trace", "read_body", "remove", "purge", "redrive"}
        | {"put_queue", "pause_queue", "resume_queue", "delete_queue"}
    ),
    "producer": frozenset({"add", "result", "get_queue", "read_body"}),
    "consumer": frozenset({"poll", "ack", "nack", "release", "extend", "get_queue", "read_body"}),
    "auditor": frozenset(_LOOK | {"audit", "trace", "list_keys", "list_grants"}),
    "viewer": frozenset(_LOOK | {"peek", "get", "result", "trace"}),
}
"""What each role may do inside the tenant it is granted in; ``platform-admin`` may do it in every tenant."""

PRINCIPALS: Final = ("key", "jwt", "cert")
"""The kinds of principals to whom something can be granted, before a colon and who it is."""

PATTERNS_MAX: Final = 32
_PATTERN = re.compile(r"[A-Za-z0-9_.*?-]{1,80}")


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a principal may do in one tenant: a role, single actions, or both."""

    role: str | None = None
    actions: tuple[str, ...] = ()
    queues: tuple[str, ...] = ("*",)  # names, with * and ? as wildcards
    expires_at: int | None = None  # wall clock

    def allows(self, action: str, queue: str | None, now_ms: int) -> bool:
        """Tell whether this grant lets ``action`` through; ``queue`` None: the action concerns no queue."""
        if self.expires_at is not None and self.expires_at <= now_ms:
            return False
        if action not in self.actions and (self.role is None or action not in MATRIX[self.role]):
            return False
        return queue is None or any(matches(pattern, queue) for pattern in self.queues)


def matches(pattern: str, queue: str) -> bool:
    """Tell whether a queue pattern covers a queue's name."""
    return pattern == "*" or _compiled(pattern).match(queue) is not None


@lru_cache(maxsize=4_096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))  # its stars do not backtrack, so no pattern is slow


def check_grant(grant: Grant) -> Grant:
    """Return ``grant`` if it is well formed and grants anything, else raise Invalid naming the field."""
    if type(grant) is not Grant:
        raise Invalid(f"grant: must be a Grant, not {type(grant).__name__}")
    for field in ("actions", "queues"):
        if not isinstance(getattr(grant, field), tuple):
            raise Invalid(f"{field}: must be a list, not {type(getattr(grant, field)).__name__}")
    if grant.role is not None and grant.role not in ROLES:
        raise Invalid(f"role: there is no such role; there are {', '.join(ROLES)}")
    for action in grant.actions:
        if action not in ACTIONS:
            raise Invalid(f"actions: there is no such action; there are {', '.join(ACTIONS)}")
    if grant.role is None and not grant.actions:
        raise Invalid("a grant needs a role or actions")
    if not 1 <= len(grant.queues) <= PATTERNS_MAX:
        raise Invalid(f"queues: {len(grant.queues)} patterns, allowed are 1 to {PATTERNS_MAX}")
    for pattern in grant.queues:
        if type(pattern) is not str or _PATTERN.fullmatch(pattern) is None:
            raise Invalid("queues: a pattern is 1 to 80 characters of A-Z, a-z, 0-9, '_', '-', '.', '*' and '?'")
    if grant.expires_at is not None:
        check_int("expires_at", grant.expires_at, 0, limits.TIME_MS_MAX)
    return grant


def can_be_granted_to(principal: str) -> bool:
    """Tell whether a text names somebody to whom something can be granted; ``anonymous`` and ``system`` are not."""
    kind, _, who = principal.partition(":")
    return kind in PRINCIPALS and bool(who)


class Principal(msgspec.Struct, frozen=True):
    """Who calls, once authenticated."""

    id: str
    tenant: str | None  # the credential's own tenant; None: it belongs to the platform
    grants: tuple[Grant, ...] = ()  # what the credential itself brings, for its own tenant
    expires_at: int | None = None  # wall clock; the credential is not valid afterwards

    @property
    def is_platform_admin(self) -> bool:
        """Whether the credential is one of the platform's administrators, with power in every tenant."""
        return self.tenant is None and any(grant.role == "platform-admin" for grant in self.grants)


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key as it is stored: whoever reads it cannot use it."""

    id: str
    tenant: str | None  # None: it belongs to the platform
    name: str
    grant: Grant
    token_hash: bytes  # SHA-256 of the whole token
    created_at: int
    created_by: str
    revoked_at: int | None = None

    @property
    def principal(self) -> str:
        """What the journal calls the key."""
        return f"key:{self.id}"


class KeyUse(msgspec.Struct, frozen=True):
    """When and from where a key was used last."""

    last_used_at: int
    places: tuple[str, ...] = ()  # networks that are known for it
