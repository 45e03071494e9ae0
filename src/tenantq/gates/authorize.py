"""Authorization: grants decide what a principal may do; everything else is denied.

- Grants in a credential apply to its own tenant; stored grants apply to the tenant in which they are stored.
- Actions of the platform require a credential of the platform. The role platform-admin, stored in a tenant or in a tenant's
  credential, means tenant-admin in that tenant.
- The platform's administrator may do everything in all tenants.
"""

from collections.abc import Collection, Iterator
from typing import Final, Protocol

from tenantq.domain.access import MATRIX, Grant, Principal, check_grant
from tenantq.errors import Forbidden
from tenantq.runtime.bounded_dict import BoundedDict
from tenantq.runtime.clock import Clock

PLATFORM_ACTIONS: Final = MATRIX["platform-admin"] - MATRIX["tenant-admin"]
DECISIONS_MAX: Final = 65_536
TENANT_LISTS_MAX: Final = 64
ANONYMOUS: Final = "anonymous"  # gets no grants beyond what the server allows everyone
_DENIED: Final = 0
_ALWAYS: Final = 1 << 62


class GrantSource(Protocol):
    """The store of grants, as authorization uses it."""

    @property
    def version(self) -> int:
        """A number that grows with every change of grants."""

    def grants(self, tenant: str, principal: str) -> tuple[Grant, ...]:
        """Return the grants stored for a principal in a tenant; none if the tenant does not exist."""

    def tenants_of(self, principal: str) -> Collection[str]:
        """Return the tenants where a grant is stored for a principal."""


class Authorizer:
    """Decides, and caches decisions until grants change or expire."""

    def __init__(self, source: GrantSource, clock: Clock, *, decisions_max: int = DECISIONS_MAX) -> None:
        self._source = source
        self._clock = clock
        self._version = source.version
        # By identity of the principal, which is cheaper than by value. Each entry keeps its principal alive, so that
        # the identity is not reused. The number is the wall time at which the permission ends.
        self._decisions: BoundedDict[tuple[int, str, str, str | None], tuple[int, Principal]] = BoundedDict(
            decisions_max
        )
        self._tenants: BoundedDict[tuple[int, str, str | None], tuple[int, Principal, list[str] | None]] = BoundedDict(
            TENANT_LISTS_MAX
        )

    def check(self, principal: Principal, tenant: str, action: str, queue: str | None = None) -> None:
        """Raise Forbidden unless ``principal`` may do this. The text does not reveal whether the tenant exists."""
        if not self.allowed(principal, tenant, action, queue):
            where = "" if queue is None else f" on queue '{queue[:80]}'"
            text = f"action '{action}'{where} is not allowed for this credential. Ask an administrator for a grant."
            raise Forbidden(text, tenant=tenant, queue=queue)

    def allowed(self, principal: Principal, tenant: str, action: str, queue: str | None = None) -> bool:
        """Return whether ``principal`` may do this; ``queue`` None means that the action concerns no single queue."""
        if self._version != self._source.version:
            self._forget()
        what = (id(principal), tenant, action, queue)
        decision = self._decisions.get(what)
        if decision is not None and decision[0] == _ALWAYS:
            return True
        now = self._clock.wall_ms()
        if decision is None or _DENIED < decision[0] <= now:
            decision = (self._until(principal, tenant, action, queue, now), principal)
            self._decisions[what] = decision
        return decision[0] != _DENIED

    def is_stranger(self, principal: Principal, tenant: str) -> bool:
        """Return whether ``principal`` belongs neither to the tenant nor to the platform and has no grant in the tenant."""
        return principal.tenant not in {None, tenant} and tenant not in self._source.tenants_of(principal.id)

    def tenants_for(self, principal: Principal, action: str, queue: str | None = None) -> list[str] | None:
        """Return the tenants where ``principal`` may do this, sorted; None: in every tenant."""
        if self._version != self._source.version:
            self._forget()
        now = self._clock.wall_ms()
        what = (id(principal), action, queue)
        known = self._tenants.get(what)
        if known is None or known[0] <= now:
            known = self._find_tenants(principal, action, queue, now)
            self._tenants[what] = known
        return None if known[2] is None else list(known[2])

    def patterns(self, principal: Principal, tenant: str, action: str) -> tuple[str, ...] | None:
        """Return the queue patterns for which ``principal`` may do this in ``tenant``; None: for all queues."""
        now = self._clock.wall_ms()
        held = [own for own in self._counting(principal, tenant, action, now) if own.allows(action, None, now)]
        found = tuple(dict.fromkeys(pattern for own in held for pattern in own.queues))
        return None if "*" in found else found

    def check_may_grant(self, principal: Principal, tenant: str, grant: Grant) -> None:
        """Raise Forbidden if ``grant`` exceeds the principal's own permissions in ``tenant``: actions, queues or time.

        Raise Invalid if it is malformed. ``check`` decides whether the principal may create grants or keys at all.
        """
        check_grant(grant)
        now = self._clock.wall_ms()
        given = set(grant.actions) | MATRIX.get(grant.role or "", frozenset())
        for action in sorted(given):
            held = [own for own in self._counting(principal, tenant, action, now) if own.allows(action, None, now)]
            for queues in grant.queues:
                if not any(_lasts(own, grant) and any(covers(mine, queues) for mine in own.queues) for own in held):
                    raise Forbidden(
                        f"A grant cannot exceed your own permissions: action '{action}' is not allowed for you on these "
                        "queues for that long. Ask an administrator with more permissions.",
                        tenant=tenant,
                    )

    def _until(self, principal: Principal, tenant: str, action: str, queue: str | None, now: int) -> int:
        """Return the wall time at which the permission ends, or _DENIED."""
        counting = self._counting(principal, tenant, action, now)
        until = max((_end(grant.expires_at) for grant in counting if grant.allows(action, queue, now)), default=_DENIED)
        return min(until, _end(principal.expires_at))

    def _counting(self, principal: Principal, tenant: str, action: str, now: int) -> Iterator[Grant]:
        """Yield the principal's grants that count for an action in a tenant, expired ones among them."""
        if _end(principal.expires_at) <= now:
            return
        of_platform = action in PLATFORM_ACTIONS
        if principal.tenant is None:
            yield from (grant for grant in principal.grants if of_platform or grant.role == "platform-admin")
        elif principal.tenant == tenant and not of_platform:
            yield from principal.grants
        if not of_platform and principal.id != ANONYMOUS:
            yield from self._source.grants(tenant, principal.id)

    def _find_tenants(
        self, principal: Principal, action: str, queue: str | None, now: int
    ) -> tuple[int, Principal, list[str] | None]:
        if principal.is_platform_admin:
            until = self._until(principal, "", action, queue, now)
            if until != _DENIED:
                return until, principal, None
        own = () if principal.tenant is None else (principal.tenant,)
        found, ends = [], [_ALWAYS]
        for tenant in sorted({*own, *self._source.tenants_of(principal.id)}):
            until = self._until(principal, tenant, action, queue, now)
            if until != _DENIED:
                found.append(tenant)
                ends.append(until)
        return min(ends), principal, found

    def _forget(self) -> None:
        self._version = self._source.version
        self._decisions.clear()
        self._tenants.clear()


def _end(expires_at: int | None) -> int:
    return _ALWAYS if expires_at is None else expires_at


def _lasts(own: Grant, other: Grant) -> bool:
    """Return whether ``own`` ends no earlier than ``other``."""
    return _end(own.expires_at) >= _end(other.expires_at)


def covers(pattern: str, other: str) -> bool:
    """Return whether ``pattern`` matches every queue that ``other`` matches. It may be False by mistake, but never True.

    The pattern is laid over the letters of the other one: only a star takes in a star.
    """
    at, place, star, taken = 0, 0, -1, 0
    while place < len(other):
        if at < len(pattern) and pattern[at] == "*":
            star, taken = at, place
            at += 1
        elif at < len(pattern) and other[place] != "*" and pattern[at] in {other[place], "?"}:
            at, place = at + 1, place + 1
        elif star >= 0:
            taken += 1
            at, place = star + 1, taken
        else:
            return False
    return not pattern[at:].strip("*")
