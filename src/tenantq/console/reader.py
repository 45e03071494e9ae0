"""Asks the server, through the SDK, for what is on the screen and nothing else.

A refresh takes at most ``REFRESH_REQUESTS_MAX`` requests, however many tenants and queues there are: the list of tenants with their
figures, in pages, a long one only now and then; then queues, quotas and settings of the one tenant that is shown. The security panel takes at most ``SECURITY_REQUESTS_MAX``, less
often. Contents are looked at only when somebody asks for them, for each such look is in the audit trail.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from tenantq.client.async_client import FIGURES_PAGE
from tenantq.console.answers import NOT_GRANTED, NotGranted, granted, known
from tenantq.console.overview import TenantLine, listed_lines, own_line
from tenantq.console.security import KEY_PRINCIPAL
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.errors import NotFound
from tenantq.wire import AuditReply, EncryptionReply, GrantItem, KeyItem, QueueReply, TenantReply, UsageReply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from tenantq.client import AsyncClient, AsyncTenant
    from tenantq.console.security import AuditFilter
    from tenantq.runtime.clock import Clock

T = TypeVar("T")

TENANTS_MAX: Final = 1_000
QUEUES_MAX: Final = 1_000
UNNAMED: Final = "(own tenant)"
"""What a tenant is called whose name the credential may not learn."""

LISTED_OFTEN_MAX: Final = 200
REFRESH_REQUESTS_MAX: Final = TENANTS_MAX // FIGURES_PAGE + 3
SECURITY_REQUESTS_MAX: Final = 4
AUDIT_PAGE: Final = 100
PERMISSIONS_TENANTS_MAX: Final = 200
_PERMISSIONS_AT_ONCE: Final = 4


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant that is shown: what the credential may see of it."""

    name: str
    facts: TenantReply | NotGranted
    usage: UsageReply | NotGranted
    queues: list[QueueReply] | NotGranted


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One refresh."""

    tenants: list[TenantLine]
    everyone: bool  # the credential sees all tenants
    view: TenantView | None  # None: there is no tenant to show
    at_ms: int  # monotonic
    wall_ms: int


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """What the security panel shows of a tenant."""

    tenant: str
    audit: AuditReply | NotGranted
    keys: list[KeyItem] | NotGranted
    grants: list[GrantItem] | NotGranted
    encryption: EncryptionReply | NotGranted


class Permission(msgspec.Struct, frozen=True):
    """Something that a principal may do in a tenant, by a grant or because the key is the tenant's own."""

    tenant: str
    grant: GrantItem
    key_name: str | None = None  # of a key that is the tenant's own


class Reader:
    """Reads for one console."""

    def __init__(self, client: AsyncClient, clock: Clock, tenant: str | None = None) -> None:
        self._client = client
        self._clock = clock
        self._named = tenant  # by whoever started the console
        self._everyone = True  # until the server says otherwise
        self._refused: set[tuple[str, str]] = (
            set()
        )  # what is not granted, and where: asking again would fill the audit trail
        self._own: str | None = tenant
        self._seen: dict[str, TenantLine] = {}
        self._listed_last: list[TenantReply] | None = None

    def ask_again(self) -> None:
        """Ask also for what was not granted before: grants change."""
        self._everyone = True
        self._refused.clear()

    async def look(self, selected: str | None, *, anew: bool = True) -> Snapshot:
        """Return the tenants, and the queues, quotas and settings of ``selected``, else of the credential's own.

        A list of more than ``LISTED_OFTEN_MAX`` tenants is read only where it is wanted ``anew``; else it is that of before.
        """
        if anew or self._listed_last is None or len(self._listed_last) <= LISTED_OFTEN_MAX:
            self._listed_last = await self._listed()
        listed = self._listed_last
        view: TenantView | None
        if listed is None:
            view = await self._own_view(selected)
            lines = self._visited(view)
        else:
            lines = listed_lines(listed)
            facts = {tenant.name: tenant for tenant in listed}
            name = selected or (self._named if self._named in facts else _first(lines))
            if name is not None and name not in facts and len(listed) < TENANTS_MAX:
                raise NotFound(f"there is no tenant {name}", tenant=name)
            view = await self._view(name, facts.get(name)) if name is not None else None
        return Snapshot(
            tenants=lines,
            everyone=listed is not None,
            view=view,
            at_ms=self._clock.monotonic_ms(),
            wall_ms=self._clock.wall_ms(),
        )

    def _visited(self, view: TenantView) -> list[TenantLine]:
        """Return the tenants that were looked at so far, as they were then: nobody tells where a credential is granted."""
        line = own_line(view.name, view.facts, view.usage, view.queues)
        lines = {**self._seen, line.name: line}
        if not all(isinstance(part, NotGranted) for part in (view.facts, view.usage, view.queues)):
            self._seen = lines
        ordered = [lines[name] for name in sorted(lines)]
        return [msgspec.structs.replace(one, number=number) for number, one in enumerate(ordered, 1)]

    async def _listed(self) -> list[TenantReply] | None:
        """Return all tenants, or None where the credential is not the platform's."""
        if not self._everyone:
            return None
        tenants = await granted(self._client.tenants(figures=True, limit=TENANTS_MAX))
        self._everyone = not isinstance(tenants, NotGranted)
        return known(tenants)

    async def _own_view(self, selected: str | None) -> TenantView:
        name = selected or self._own
        if name is None:
            facts = await self._ask("own", "", self._client.own_tenant)
            if isinstance(facts, NotGranted):  # its name stands in the credential, which only the server reads
                queues = await self._ask("own queues", "", lambda: self._client.queues(limit=QUEUES_MAX))
                return TenantView(name=UNNAMED, facts=facts, usage=NOT_GRANTED, queues=queues)
            self._own = facts.name
            return await self._view(facts.name, facts)
        return await self._view(name, None)

    async def _view(self, name: str, facts: TenantReply | None) -> TenantView:
        tenant = self._client.tenant(name)
        usage, queues = await asyncio.gather(
            self._ask("usage", name, tenant.usage),
            self._ask("queues", name, lambda: tenant.queues(limit=QUEUES_MAX)),
        )
        found: TenantReply | NotGranted = facts if facts is not None else await self._ask("facts", name, tenant.get)
        return TenantView(name=name, facts=found, usage=usage, queues=queues)

    async def security(self, name: str, wanted: AuditFilter) -> Security:
        """Return the newest rows of the audit trail, keys, grants and encryption of a tenant."""
        tenant = self._client.tenant(name)
        audit, keys, grants, encryption = await asyncio.gather(
            self._ask("audit", name, lambda: self.audit(tenant, wanted)),
            self._ask("keys", name, tenant.keys),
            self._ask("grants", name, tenant.grants),
            self._ask("encryption", name, tenant.encryption),
        )
        return Security(tenant=name, audit=audit, keys=keys, grants=grants, encryption=encryption)

    async def _ask(self, what: str, tenant: str, call: Callable[[], Awaitable[T]]) -> T | NotGranted:
        """Return what a call returns, but do not call again for what was not granted once."""
        if (what, tenant) in self._refused:
            return NOT_GRANTED
        answer = await granted(call())
        if isinstance(answer, NotGranted):
            self._refused.add((what, tenant))
        return answer

    async def audit(self, tenant: AsyncTenant, wanted: AuditFilter, cursor: str | None = None) -> AuditReply:
        """Return a page of the trail of a tenant, or of everything."""
        owner = self._client.platform() if wanted.platform else tenant
        asked: dict[str, Any] = wanted.asked(self._clock.wall_ms())
        return await owner.audit(**asked, limit=AUDIT_PAGE, cursor=cursor)

    async def permissions(self, principal: str, tenants: Iterable[str]) -> list[Permission]:
        """Return what a principal may do in these tenants, a few of which are asked at a time."""
        turns = asyncio.Semaphore(_PERMISSIONS_AT_ONCE)

        async def of(name: str) -> list[Permission]:
            async with turns:
                return await self._permissions_in(principal, name)

        found = await asyncio.gather(*(of(name) for name in tenants))
        return [one for part in found for one in part]

    async def _permissions_in(self, principal: str, name: str) -> list[Permission]:
        tenant = self._client.tenant(name)
        grants = await _unless_gone(granted(tenant.grants())) or []
        found = [Permission(name, grant) for grant in grants if grant.principal == principal]
        if principal.startswith(KEY_PRINCIPAL):
            for key in await _unless_gone(granted(tenant.keys())) or []:
                if f"{KEY_PRINCIPAL}{key.key_id}" == principal and key.revoked_at is None:
                    own = GrantItem(
                        principal=principal,
                        role=key.role,
                        actions=key.actions,
                        queues=key.queues,
                        expires_at=key.expires_at,
                    )
                    found.append(Permission(name, own, key.name))
        return found


def _first(lines: list[TenantLine]) -> str | None:
    """Return the tenant to begin with: not the default one where there are others."""
    names = [line.name for line in lines]
    return next((name for name in names if name != DEFAULT_TENANT), DEFAULT_TENANT if names else None)


async def _unless_gone(call: Awaitable[list[Any] | NotGranted]) -> list[Any] | None:
    """Return a list, or None where it is not granted or the tenant was deleted meanwhile."""
    try:
        return known(await call)
    except NotFound:
        return None
