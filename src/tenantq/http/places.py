"""Where a request belongs: which shard has the tenant that it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenantq.cluster.layout import HOME
from tenantq.errors import Forbidden, Unauthenticated
from tenantq.http.scope import AT_HOME, BY_CREDENTIAL, BY_TENANT, FLEET
from tenantq.service.admission import own_tenant

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenantq.cluster.directory import Directory
    from tenantq.http.request import Request
    from tenantq.http.route import Route
    from tenantq.service import Call
    from tenantq.service.admission import Admission

TENANTS_REMEMBERED_MAX: Final = 10_000
"""Credentials whose tenant is remembered, to know where their requests go; whether they hold is the owner's question each time."""


class Places:
    """What one of several shards knows of where requests belong.

    Of the routes it tells which are ``of_one_tenant``, ``of_fleets``, that is of tenants of several shards, and ``making_tenants``.
    """

    def __init__(self, routes: Iterable[Route], directory: Directory, admission: Admission) -> None:
        self.number = directory.number
        self._directory = directory
        self._admission = admission
        scopes = self._scopes = {route: route.scope for route in routes}
        self.of_one_tenant = frozenset(one for one in scopes if scopes[one] in {BY_TENANT, BY_CREDENTIAL})
        self.of_fleets = frozenset(one for one in scopes if scopes[one] == FLEET)
        self.making_tenants = frozenset(one for one in scopes if one.action == "put_tenant")
        self._tenant_of: dict[str, str] = {}  # by bearer

    def known(self, request: Request) -> int | None:
        """Return the shard that a request belongs to, any shard for those of fleets; None: it takes a question."""
        assert request.route is not None
        scope = self._scopes[request.route]
        if scope == BY_TENANT:
            assert request.tenant is not None
            return self._running(request.tenant)
        if scope == BY_CREDENTIAL:
            bearer = request.call.bearer
            tenant = self._tenant_of.get(bearer) if bearer is not None else None
            return None if tenant is None else self._running(tenant)
        return HOME if scope == AT_HOME else self.number

    async def find(self, request: Request) -> int:
        """Return the shard that a request belongs to where that is not known at once; ShardDown, if that does not run.

        Only somebody with a good credential is told so: whether a name is a tenant of that shard or nobody's is alike then.
        """
        if request.route in self.making_tenants and self._directory.is_known(HOME):
            return HOME
        tenant = await self._own_tenant(request.call)
        if tenant is None:
            return self.number  # where it is refused
        if request.tenant is not None:
            self._directory.check_whole()  # else it may be a tenant of a shard that does not run
            named = self._directory.find(request.tenant)
            if named is not None:  # it came back just now
                return named
        shard = self._directory.find(tenant)
        if shard is None:
            self._directory.check_whole()
            return self.number
        if request.tenant is None:
            self._directory.check_reachable(tenant)
        return shard if self._directory.is_known(shard) else self.number

    def has(self, tenant: str | None) -> bool:
        """Tell whether a tenant is this shard's."""
        return tenant is not None and self._directory.find(tenant) == self.number

    def is_here(self, tenant: str | None, bearer: str | None) -> bool:
        """Tell whether it is known already that a call that came by another transport is this shard's own."""
        name = tenant if tenant is not None else self._tenant_of.get(bearer or "")
        return name is not None and self._directory.find(name) == self.number

    async def shard_for(self, tenant: str | None, call: Call) -> int:
        """Return the shard of a tenant, None: of the credential's own, for a call that came by another transport; ShardDown."""
        named = tenant
        if named is not None and self._directory.find(named) is None:
            self._directory.check_whole()
            named = None  # it is refused where the credential's own tenant is
        name = named if named is not None else self._tenant_of.get(call.bearer or "") or await self._own_tenant(call)
        shard = self._directory.find(name) if name is not None else None
        if shard is None or name is None:
            return self.number
        self._directory.check_reachable(name)
        return shard

    def _running(self, tenant: str) -> int | None:
        shard = self._directory.find(tenant)
        return shard if shard is not None and self._directory.is_known(shard) else None

    async def _own_tenant(self, call: Call) -> str | None:
        """Return the tenant of a credential; None: it is none, or not of one tenant."""
        try:
            bearer = self._admission.unproved_bearer(call.bearer)  # only to know where it is proved
            principal = await self._admission.authenticator.authenticate(bearer, call.certificate)
        except (Unauthenticated, Forbidden):
            return None
        tenant = own_tenant(principal)
        if call.bearer is not None:
            if len(self._tenant_of) >= TENANTS_REMEMBERED_MAX:
                self._tenant_of.clear()
            self._tenant_of[call.bearer] = tenant
        return tenant
