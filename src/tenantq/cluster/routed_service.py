"""The service of a server with several shards: the facets of one shard, with calls for other shards' tenants forwarded."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from tenantq.cluster.fleet_poll import ClusterFleetPolls
from tenantq.cluster.peer_calls import PeerCalls
from tenantq.cluster.shard_routing import PLATFORM, ShardRouting
from tenantq.cluster.tenant_creation import TenantCreation
from tenantq.service import Service
from tenantq.service.call import Call

FACETS: Final = (
    "messages", "settlement", "message_reads", "queues", "redrives", "tenants", "legal_holds", "erasures", "encryption",
    "access", "audit", "backups", "exports", "sqs_lookup", "status",
)  # fmt: skip
ANY_SHARD: Final = frozenset(("status.topology", "access.log_in"))
"""Answered by the shard that is asked."""

BY_CREDENTIAL: Final = frozenset(("sqs_lookup",))
"""Facets whose methods without a tenant are about the credential's own."""


class RoutedFacet:
    """A facet whose asynchronous methods are executed by the owner of their tenant. Everything else is the local facet's."""

    def __init__(self, name: str, local: object, routing: ShardRouting, calls: PeerCalls) -> None:
        self._local = local
        for method in vars(type(local)):
            if method.startswith("_") or method.endswith("_local") or f"{name}.{method}" in ANY_SHARD:
                continue
            bound = getattr(local, method)
            if inspect.iscoroutinefunction(bound) and "call" in inspect.signature(bound).parameters:
                setattr(self, method, _routed(name, method, bound, routing, calls))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)


def _routed(
    facet: str, name: str, local: Callable[..., Awaitable[Any]], routing: ShardRouting, calls: PeerCalls
) -> Callable[..., Awaitable[Any]]:
    """Return a method that calls ``local`` for this shard's tenants, and the owner of the tenant for others."""
    path = f"{facet}.{name}"
    has_tenant = "tenant" in inspect.signature(local).parameters
    fixed = None if facet in BY_CREDENTIAL else PLATFORM

    def route(call: Call, *arguments: Any, **options: Any) -> Awaitable[Any]:
        tenant = (arguments[0] if arguments else options["tenant"]) if has_tenant else fixed
        owner = routing.known_owner(call, tenant)
        if owner == routing.number:
            return local(call, *arguments, **options)
        return forward(owner, call, tenant, arguments, options)

    async def forward(
        owner: int | None, call: Call, tenant: str | None, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if owner is None:
            owner = await routing.find_owner(call, tenant)
        if owner == routing.number:
            return await local(call, *arguments, **options)
        return await calls.call(owner, path, call, *arguments, **options)

    return route


def routed_service(
    service: Service, routing: ShardRouting, calls: PeerCalls, fleet: ClusterFleetPolls, creation: TenantCreation
) -> Service:
    """Return the service as transports of this shard use it."""
    routed = copy.copy(service)
    for name in FACETS:
        setattr(routed, name, RoutedFacet(name, getattr(service, name), routing, calls))
    routed.admission = cast("Any", RoutedAdmission(service, routing, calls))
    routed.fleet = cast("Any", fleet)
    cast("Any", routed.tenants).put = creation.put
    return routed


class RoutedAdmission:
    """The admission of this shard, except that the owner of a tenant authorizes calls about it."""

    def __init__(self, service: Service, routing: ShardRouting, calls: PeerCalls) -> None:
        self._local = service.admission
        self.authorize = _routed("admission", "authorize", service.admission.authorize, routing, calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)
