"""Routing: which shard owns the tenant that a call is about."""

from typing import Final, Protocol

from tenantq.domain.placement import Topology
from tenantq.errors import Forbidden, Unauthenticated
from tenantq.gates.authenticate import Authenticator
from tenantq.runtime.bounded_dict import BoundedDict
from tenantq.service.admission import own_tenant
from tenantq.service.call import Call
from tenantq.store.shard_directories import HOME

TENANTS_CACHED_MAX: Final = 10_000
"""Credentials whose tenant is cached to route their calls. The owner still authenticates each call."""

PLATFORM: Final = ""
"""In place of a tenant: calls about all tenants, which the first shard answers."""


class RoutingDirectory(Protocol):
    """Which shard has which tenant, as the router sees it."""

    @property
    def number(self) -> int:
        """The shard that refuses calls that no shard can answer; of a shard, it is the shard itself."""

    @property
    def topology(self) -> Topology:
        """All shards, and where clients reach them."""

    def find(self, tenant: str, queue: str | None = None) -> int | None:
        """Return the shard of a tenant, or of its queue if the tenant is spread over shards; None if it is not known."""

    def is_known(self, shard: int) -> bool:
        """Return whether a shard runs."""

    async def refresh(self) -> None:
        """Read what has changed, because a tenant is not known."""

    def check_all_run(self) -> None:
        """Raise ShardDown if an unknown name may be a tenant of a shard that does not run."""

    def check_reachable(self, tenant: str) -> None:
        """Raise ShardDown for a tenant whose shard does not run."""


class Credentials(Protocol):
    """Finds the principal of a credential."""

    authenticator: Authenticator


class ShardRouting:
    """Finds the owner of a call. ``tenant`` None means the credential's own tenant."""

    def __init__(self, directory: RoutingDirectory, admission: Credentials) -> None:
        self.directory = directory
        self._admission = admission
        self._tenant_of: BoundedDict[str, str] = BoundedDict(TENANTS_CACHED_MAX)  # by bearer

    @property
    def number(self) -> int:
        """The shard that refuses calls that no shard can answer."""
        return self.directory.number

    def known_owner(self, call: Call, tenant: str | None, queue: str | None = None) -> int | None:
        """Return the owner if it is known at once and runs; None: ask ``find_owner``."""
        name = tenant if tenant is not None else self._tenant_of.get(call.bearer or "")
        if name is None:
            return None
        if name == PLATFORM:
            return HOME
        shard = self.directory.find(name, queue)
        return shard if shard is not None and self.directory.is_known(shard) else None

    async def find_owner(self, call: Call, tenant: str | None, queue: str | None = None) -> int:
        """Return the owner; raise ShardDown if it does not run.

        Only callers with a valid credential get ShardDown, and for unknown names as well as for tenants of that shard: nobody
        else can tell them apart. A call that no shard can answer belongs to the shard that refuses it and notes that.
        """
        own = await self._own_tenant(call)
        if own is None:
            return self.number
        if (tenant or own) and self.directory.find(tenant or own) is None:
            await self.directory.refresh()
        if tenant is not None:
            self.directory.check_all_run()  # else it may be a tenant of a shard that does not run
            named = self.directory.find(tenant, queue)
            if named is not None:  # its shard came back just now
                return named
        shard = self.directory.find(own, queue if tenant is None else None)
        if shard is None:
            self.directory.check_all_run()
            return self.number
        if tenant is None:
            self.directory.check_reachable(own)
        return shard if self.directory.is_known(shard) else self.number

    def owns(self, tenant: str) -> bool:
        """Return whether this shard owns a tenant."""
        return self.directory.find(tenant) == self.number

    def owner_address(self, call: Call, tenant: str | None, queue: str | None) -> str:
        """Return where clients reach the owner directly; empty if that is this shard, or not known."""
        owner = self.known_owner(call, tenant, queue)
        return "" if owner is None or owner == self.number else self.directory.topology.shards[owner].address

    async def _own_tenant(self, call: Call) -> str | None:
        """Return the tenant of a credential; None if it is not valid."""
        try:
            principal = await self._admission.authenticator.authenticate(call.bearer, call.certificate)
        except (Unauthenticated, Forbidden):
            return None
        tenant = own_tenant(principal)
        if call.bearer is not None:
            self._tenant_of[call.bearer] = tenant
        return tenant
