"""The service of a server with several shards: the facets of one shard, with calls for other shards' tenants forwarded."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Protocol, cast

from tenantq.cluster.fleet_poll import ClusterFleetPolls
from tenantq.cluster.fleet_shares import FleetShares
from tenantq.cluster.member_queries import MemberQueries
from tenantq.cluster.peer_queries import PeerQueries
from tenantq.cluster.remote_method import RemoteMethod, remote_methods
from tenantq.cluster.shard_routing import PLATFORM, ShardRouting
from tenantq.cluster.tenant_creation import TenantCreation
from tenantq.service.access import Access
from tenantq.service.admission import Admission
from tenantq.service.alerts.alerts import Alerts
from tenantq.service.alerts.containment import Containments
from tenantq.service.audit import Audit
from tenantq.service.backups import ServerBackups
from tenantq.service.call import Call
from tenantq.service.compliance import Compliance
from tenantq.service.encryption_keys import EncryptionKeys
from tenantq.service.erasure import Erasures
from tenantq.service.export_import import Exports
from tenantq.service.fleet_poll import FleetPolls
from tenantq.service.legal_hold import LegalHolds
from tenantq.service.message_reads import MessageReads
from tenantq.service.messages import Messages
from tenantq.service.queues import Queues
from tenantq.service.redrives import Redrives
from tenantq.service.server_status import ServerStatus
from tenantq.service.service import Service
from tenantq.service.settlement import Settlement
from tenantq.service.signups import Signups
from tenantq.service.sqs_lookup import SqsLookup
from tenantq.service.templates import Templates
from tenantq.service.tenants import Tenants

FACETS: Final[dict[str, type]] = {
    "messages": Messages,
    "settlement": Settlement,
    "message_reads": MessageReads,
    "queues": Queues,
    "redrives": Redrives,
    "alerts": Alerts,
    "containment": Containments,
    "tenants": Tenants,
    "signups": Signups,
    "templates": Templates,
    "legal_holds": LegalHolds,
    "erasures": Erasures,
    "encryption": EncryptionKeys,
    "access": Access,
    "audit": Audit,
    "backups": ServerBackups,
    "compliance": Compliance,
    "exports": Exports,
    "sqs_lookup": SqsLookup,
    "status": ServerStatus,
}
"""The facets whose calls are forwarded, by their name in the service."""

ANY_SHARD: Final = frozenset(("status.topology", "access.log_in", "sqs_lookup.sign_in"))
"""Answered by the shard that is asked."""

BY_CREDENTIAL: Final = frozenset(("sqs_lookup",))
"""Facets whose methods without a tenant are about the credential's own."""


def shard_methods(
    facets: Mapping[str, type], queries: Mapping[str, type], single: Mapping[str, Callable[..., Any]] = {}
) -> dict[str, RemoteMethod]:
    """Return by path what other processes can call: the methods of every shard, and further ones."""
    called = {"fleet": FleetPolls, **FACETS, **facets}
    answers = {"peer": PeerQueries, "fleet_shares": FleetShares, "member": MemberQueries}
    return remote_methods(called, answers, {"admission.authorize": Admission.authorize}) | remote_methods(
        {}, queries, single
    )


class ForwardedCalls(Protocol):
    """Executes methods on other shards."""

    async def call(self, owner: int, path: str, call: Call | None, /, *arguments: Any, **options: Any) -> Any:
        """Execute a method on another shard and return its result; raise what it raised, or ShardDown."""

    async def call_here(
        self,
        method: Callable[..., Awaitable[Any]],
        owner: int,
        path: str,
        call: Call,
        /,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        """Execute a method of this shard and return its result; follow the tenant if it moves to another one."""


def routed_methods(name: str, facet: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the methods of a facet class that the owner of their tenant executes."""
    for method, function in vars(facet).items():
        if method.startswith("_") or method.endswith("_local") or f"{name}.{method}" in ANY_SHARD:
            continue
        if inspect.iscoroutinefunction(function) and "call" in inspect.signature(function).parameters:
            yield method, function


class RoutedFacet:
    """A facet whose asynchronous methods are executed by the owner of their tenant. Everything else is the local facet's."""

    def __init__(self, name: str, kind: type, local: object, routing: ShardRouting, calls: ForwardedCalls) -> None:
        """``local`` is the facet of this shard, which may share its changes with other parts; ``kind`` is its class."""
        self._local = local
        for method, _ in routed_methods(name, kind):
            setattr(self, method, routed(name, method, getattr(local, method), routing, calls))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)


def routed(
    facet: str,
    name: str,
    local: Callable[..., Awaitable[Any]] | None,
    routing: ShardRouting,
    calls: ForwardedCalls,
    *,
    like: Callable[..., Any] | None = None,
) -> Callable[..., Awaitable[Any]]:
    """Return a method that calls ``local`` for this shard's tenants, and the owner of the tenant for others.

    Without ``local`` every call is forwarded; the method is ``like`` another one then.
    """
    path = f"{facet}.{name}"
    method = local or like
    assert method is not None
    names = [name for name in inspect.signature(method).parameters if name not in {"self", "call"}]
    has_tenant = "tenant" in names
    queue_at = names.index("queue") if "queue" in names else None
    fixed = None if facet in BY_CREDENTIAL else PLATFORM

    def queue_of(arguments: tuple[Any, ...], options: dict[str, Any]) -> str | None:
        if queue_at is None:
            return None
        found = arguments[queue_at] if queue_at < len(arguments) else options.get("queue")
        return found if isinstance(found, str) else None

    def route(call: Call, *arguments: Any, **options: Any) -> Awaitable[Any]:
        tenant = (arguments[0] if arguments else options["tenant"]) if has_tenant else fixed
        owner = routing.known_owner(call, tenant, queue_of(arguments, options))
        if local is not None and owner == routing.number:
            return calls.call_here(local, owner, path, call, *arguments, **options)
        return forward(owner, call, tenant, arguments, options)

    async def forward(
        owner: int | None, call: Call, tenant: str | None, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if owner is None:
            owner = await routing.find_owner(call, tenant, queue_of(arguments, options))
        if local is not None and owner == routing.number:
            return await calls.call_here(local, owner, path, call, *arguments, **options)
        return await calls.call(owner, path, call, *arguments, **options)

    return route


def routed_service(
    service: Service,
    facets: Mapping[str, object],
    routing: ShardRouting,
    calls: ForwardedCalls,
    fleet: ClusterFleetPolls,
    creation: TenantCreation,
) -> Service:
    """Return the service as transports of this shard use it. ``facets`` are by name what executes calls for this shard."""
    found = copy.copy(service)
    for name, kind in FACETS.items():
        setattr(found, name, RoutedFacet(name, kind, facets[name], routing, calls))
    found.admission = cast("Any", RoutedAdmission(service, routing, calls))
    found.fleet = cast("Any", fleet)
    cast("Any", found.tenants).put = creation.put
    return found


class RoutedAdmission:
    """The admission of this shard, except that the owner of a tenant authorizes calls about it."""

    def __init__(self, service: Service, routing: ShardRouting, calls: ForwardedCalls) -> None:
        self._local = service.admission
        self.authorize = routed("admission", "authorize", service.admission.authorize, routing, calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)
