"""Reads what is on the screen from the server, through the SDK.

A refresh takes at most ``REFRESH_REQUESTS_MAX`` requests for any number of tenants and queues: pages of the list of tenants with
their figures, then queues, quotas and settings of the shown tenant. A long list is read less often. The security panel takes at
most ``SECURITY_REQUESTS_MAX`` requests, less often. Messages are read only on request, because each peek is in the audit trail.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from tenantq.client import AsyncClient, AsyncTenant
from tenantq.client.async_client import FIGURES_PAGE
from tenantq.console.not_granted import NOT_GRANTED, NotGranted, known, or_not_granted
from tenantq.console.security_rows import KEY_PRINCIPAL, AuditFilter
from tenantq.console.tenant_rows import TenantSummary, own_summary, summaries
from tenantq.domain.limits import PAGE_MAX
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.errors import NotFound
from tenantq.runtime.clock import Clock
from tenantq.wire.access import GrantItem, KeyItem
from tenantq.wire.alerts import AlertItem
from tenantq.wire.compliance import ComplianceReply
from tenantq.wire.queues import QueueReply, WorkerItem
from tenantq.wire.tenants import AuditReply, EncryptionReply, TenantReply, UsageReply

T = TypeVar("T")

TENANTS_MAX: Final = 1_000
QUEUES_MAX: Final = 1_000
UNNAMED: Final = "(own tenant)"
"""Shown instead of the name of a tenant that the credential cannot read."""

LISTED_OFTEN_MAX: Final = 200
REFRESH_REQUESTS_MAX: Final = TENANTS_MAX // FIGURES_PAGE + 3
SECURITY_REQUESTS_MAX: Final = 7
AUDIT_PAGE: Final = 100
PERMISSIONS_TENANTS_MAX: Final = 200
CARRIED: Final = "(token)"
_PERMISSIONS_AT_ONCE: Final = 4


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    """What the credential may see of the shown tenant."""

    name: str
    facts: TenantReply | NotGranted
    usage: UsageReply | NotGranted
    queues: list[QueueReply] | NotGranted


class ConsoleSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one refresh."""

    tenants: list[TenantSummary]
    everyone: bool  # the credential sees all tenants
    view: TenantView | None  # None: no tenant to show
    at_ms: int  # monotonic
    listed_at_ms: int  # when the list of tenants was read, monotonic
    wall_ms: int


class SecurityView(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the security panel."""

    tenant: str
    audit: AuditReply | NotGranted
    keys: list[KeyItem] | NotGranted
    grants: list[GrantItem] | NotGranted
    encryption: EncryptionReply | NotGranted
    workers: list[WorkerItem] | NotGranted
    alerts: list[AlertItem] | NotGranted  # of all tenants, if the credential sees them
    compliance: ComplianceReply | NotGranted


class Permission(msgspec.Struct, frozen=True):
    """A right of a principal in a tenant, from a grant or because the key belongs to the tenant."""

    tenant: str
    grant: GrantItem
    key_name: str | None = None  # of a key of the tenant itself
    from_token: bool = False  # no stored grant explains its successful calls: a JWT or certificate carries the role


class ConsoleReader:
    """Reads for one console, and remembers what is not granted."""

    def __init__(self, client: AsyncClient, clock: Clock, tenant: str | None = None) -> None:
        self._client = client
        self.clock = clock
        self._named = tenant  # on the command line
        self._everyone = True  # until the server says otherwise
        # Reads that are not granted, by tenant. Repeating them would fill the audit trail.
        self._refused: set[tuple[str, str]] = set()
        self._own: str | None = tenant
        self._seen: dict[str, TenantSummary] = {}
        self._listed_last: list[TenantReply] | None = None
        self._listed_at_ms = 0

    def forget_refusals(self) -> None:
        """Read again what was not granted before, because grants change."""
        self._everyone = True
        self._refused.clear()

    async def read(self, selected: str | None, *, relist: bool = True) -> ConsoleSnapshot:
        """Return the tenants, and the queues, quotas and settings of ``selected``, by default of the credential's own tenant.

        A list of more than ``LISTED_OFTEN_MAX`` tenants is read again only with ``relist``.
        """
        if relist or self._listed_last is None or len(self._listed_last) <= LISTED_OFTEN_MAX:
            self._listed_last, self._listed_at_ms = await self._listed(), self.clock.monotonic_ms()
        listed = self._listed_last
        view: TenantView | None
        if listed is None:
            view = await self._own_view(selected)
            tenants = self._visited(view)
        else:
            tenants = summaries(listed)
            facts = {tenant.name: tenant for tenant in listed}
            name = selected or (self._named if self._named in facts else _first(tenants))
            if name is not None and name not in facts and len(listed) < TENANTS_MAX:
                raise NotFound(f"unknown tenant {name}", tenant=name)
            view = await self.view(name, facts.get(name)) if name is not None else None
        return ConsoleSnapshot(
            tenants=tenants,
            everyone=listed is not None,
            view=view,
            at_ms=self.clock.monotonic_ms(),
            listed_at_ms=self._listed_at_ms,
            wall_ms=self.clock.wall_ms(),
        )

    def _visited(self, view: TenantView) -> list[TenantSummary]:
        """Return the tenants shown so far, with their last figures. A credential cannot list the tenants that it has grants in."""
        summary = own_summary(view.name, view.facts, view.usage, view.queues)
        tenants = {**self._seen, summary.name: summary}
        if not all(isinstance(part, NotGranted) for part in (view.facts, view.usage, view.queues)):
            self._seen = tenants
        ordered = [tenants[name] for name in sorted(tenants)]
        return [msgspec.structs.replace(one, number=number) for number, one in enumerate(ordered, 1)]

    async def _listed(self) -> list[TenantReply] | None:
        """Return all tenants, or None if the credential is not a platform administrator's."""
        if not self._everyone:
            return None
        tenants = await or_not_granted(self._client.tenants(figures=True, limit=TENANTS_MAX))
        self._everyone = not isinstance(tenants, NotGranted)
        return known(tenants)

    async def _own_view(self, selected: str | None) -> TenantView:
        name = selected or self._own
        if name is None:
            facts = await self.ask("own", "", self._client.own_tenant)
            if isinstance(facts, NotGranted):  # only the server knows the tenant of a credential
                queues = await self.ask("own queues", "", lambda: self._client.queues(limit=QUEUES_MAX))
                return TenantView(name=UNNAMED, facts=facts, usage=NOT_GRANTED, queues=queues)
            self._own = facts.name
            return await self.view(facts.name, facts)
        return await self.view(name, None)

    async def view(self, name: str, facts: TenantReply | None = None) -> TenantView:
        """Return a tenant with its queues, quotas and settings, without ``facts`` if they were read before."""
        tenant = self._client.tenant(name)
        usage, queues = await asyncio.gather(
            self.ask("usage", name, tenant.usage), self.ask("queues", name, lambda: tenant.queues(limit=QUEUES_MAX))
        )
        found: TenantReply | NotGranted = facts if facts is not None else await self.ask("facts", name, tenant.get)
        return TenantView(name=name, facts=found, usage=usage, queues=queues)

    async def security(self, name: str, wanted: AuditFilter) -> SecurityView:
        """Return the newest rows of the audit trail, keys, grants, encryption, workers and controls of a tenant, and active alerts."""
        tenant = self._client.tenant(name)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "audit": lambda: self.audit(tenant, wanted),
            "keys": tenant.keys,
            "grants": tenant.grants,
            "encryption": tenant.encryption,
            "workers": tenant.workers,
            "alerts": self._all_alerts if self._everyone else tenant.alerts,
            "compliance": tenant.compliance,
        }
        answers = await asyncio.gather(*(self.ask(what, name, call) for what, call in calls.items()))
        return SecurityView(tenant=name, **dict(zip(calls, answers, strict=True)))

    async def _all_alerts(self) -> list[AlertItem]:
        return (await self._client.platform().alerts()).alerts

    async def ask(self, what: str, tenant: str, call: Callable[[], Awaitable[T]]) -> T | NotGranted:
        """Return what a call returns. A call that was not granted is not repeated."""
        if (what, tenant) in self._refused:
            return NOT_GRANTED
        answer = await or_not_granted(call())
        if isinstance(answer, NotGranted):
            self._refused.add((what, tenant))
        return answer

    async def audit(
        self, tenant: AsyncTenant, wanted: AuditFilter, cursor: str | None = None, limit: int = AUDIT_PAGE
    ) -> AuditReply:
        """Return a page of the audit trail of a tenant, or of the platform."""
        owner = self._client.platform() if wanted.platform else tenant
        asked: dict[str, Any] = wanted.asked(self.clock.wall_ms())
        return await owner.audit(**asked, limit=limit, cursor=cursor)

    async def permissions(self, principal: str, tenants: Iterable[str]) -> list[Permission]:
        """Return the rights of a principal in these tenants. A few tenants are read concurrently."""
        turns = asyncio.Semaphore(_PERMISSIONS_AT_ONCE)

        async def of(name: str) -> list[Permission]:
            async with turns:
                return await self._permissions_in(principal, name)

        found = [one for part in await asyncio.gather(*(of(name) for name in tenants)) for one in part]
        if not principal.startswith(KEY_PRINCIPAL):
            found += await self._carried_by_token(principal, {one.tenant for one in found})
        return found

    async def _carried_by_token(self, principal: str, stored: set[str]) -> list[Permission]:
        """Return tenants without a stored grant where a principal succeeded since its access was last revoked there.

        The server does not store the role that a JWT or certificate carries, so its use is the evidence.
        """
        platform = self._client.platform()
        used = await or_not_granted(platform.audit(principal=principal, result="SUCCESS", order="newest"))
        ended = await or_not_granted(platform.audit(action=("delete_grant", "revoke_token"), order="newest"))
        if isinstance(used, NotGranted) or isinstance(ended, NotGranted):
            return []
        revoked = {(row["tenant"], row["ts"]) for row in ended.rows if principal in str(row.get("details") or "")}
        last = {row["tenant"]: row["ts"] for row in reversed(used.rows) if row.get("tenant")}
        grant = GrantItem(principal=principal, role=CARRIED, actions=(), queues=("*",), expires_at=None)
        return [
            Permission(name, grant, from_token=True)
            for name, ts in sorted(last.items())
            if name not in stored and not any(where == name and at >= ts for where, at in revoked)
        ]

    async def audit_rows(self, name: str, wanted: AuditFilter, most: int) -> tuple[list[dict[str, Any]], bool]:
        """Return up to ``most`` rows of the audit trail, newest first, and whether there are more."""
        rows: list[dict[str, Any]] = []
        cursor: str | None = None
        while len(rows) < most:
            page = await self.audit(self._client.tenant(name), wanted, cursor, limit=PAGE_MAX)
            rows += page.rows
            cursor = page.cursor
            if cursor is None:
                return rows, False
        return rows, True

    async def _permissions_in(self, principal: str, name: str) -> list[Permission]:
        tenant = self._client.tenant(name)
        grants = await _unless_gone(or_not_granted(tenant.grants())) or []
        found = [Permission(name, grant) for grant in grants if grant.principal == principal]
        if principal.startswith(KEY_PRINCIPAL):
            for key in await _unless_gone(or_not_granted(tenant.keys())) or []:
                if f"{KEY_PRINCIPAL}{key.key_id}" == principal and key.revoked_at is None:
                    rights = {field: getattr(key, field) for field in ("role", "actions", "queues", "expires_at")}
                    own = GrantItem(principal=principal, **rights)
                    found.append(Permission(name, own, key.name))
        return found


def _first(tenants: list[TenantSummary]) -> str | None:
    """Return the tenant to show first: the default tenant only if there is no other."""
    names = [one.name for one in tenants]
    return next((name for name in names if name != DEFAULT_TENANT), DEFAULT_TENANT if names else None)


async def _unless_gone(call: Awaitable[list[Any] | NotGranted]) -> list[Any] | None:
    """Return a list, or None if it is not granted or the tenant was deleted meanwhile."""
    try:
        return known(await call)
    except NotFound:
        return None
