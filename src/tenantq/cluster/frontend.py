"""The service of a process with many shards, as its transports use it. It belongs to no shard."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from importlib.metadata import version
from typing import Any, Final, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tenantq.cluster.cluster_placement import ClusterPlacement
from tenantq.cluster.credentials import NoKeys
from tenantq.cluster.fleet_poll import ClusterFleetPolls
from tenantq.cluster.fleet_waits import FleetWaits
from tenantq.cluster.hosted_node import HostContext
from tenantq.cluster.membership import Membership
from tenantq.cluster.metrics_merge import METRICS_MS, gather_metrics
from tenantq.cluster.placement_admin import PlacementAdmin
from tenantq.cluster.registry import Registry
from tenantq.cluster.routed_service import FACETS, routed, routed_methods
from tenantq.cluster.shard_routing import ShardRouting
from tenantq.cluster.tenant_creation import TenantCreation
from tenantq.domain.access import Principal
from tenantq.errors import ShardDown, TenantqError, Unavailable
from tenantq.gates.authenticate import Authenticator
from tenantq.gates.authorize import Authorizer
from tenantq.gates.certificate import CertificateMap
from tenantq.gates.json_web_token import JwtVerifier
from tenantq.gates.key_maker import KeyMaker
from tenantq.gates.signature import Signatures, SignedRequest
from tenantq.journal.record import entry_of
from tenantq.service.admission import Admission, own_tenant
from tenantq.service.call import Call
from tenantq.service.metrics.metrics import reader_of, write_collected
from tenantq.service.metrics.text import MetricsText
from tenantq.service.residency import wrong_region
from tenantq.service.server_status import ServerStatus
from tenantq.service.service import Service
from tenantq.store.crash_recovery import FORMAT
from tenantq.store.shard_directories import HOME
from tenantq.wire.cluster import ClusterReply, ClusterShardItem, MemberItem, TenantMoveItem
from tenantq.wire.topology import ShardItem, TopologyReply

VERSION: Final = version("tenantq")


class FrontendFacet:
    """A facet whose methods are executed by the owner of their tenant."""

    def __init__(
        self,
        name: str,
        kind: type,
        routing: ShardRouting,
        context: HostContext,
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        for method, function in routed_methods(name, kind):
            setattr(self, method, routed(name, method, None, routing, context.calls, like=function))
        for method, function in vars(kind).items():
            if inspect.isfunction(function) and method.startswith("note_") and not hasattr(self, method):
                setattr(self, method, _noted(f"{name}.{method}", context, routing, background))


def _noted(
    path: str, context: HostContext, routing: ShardRouting, background: Callable[[Coroutine[Any, Any, None]], None]
) -> Callable[..., None]:
    """Return a method that has some shard journal a note, without waiting for it."""

    async def note(call: Call, *arguments: Any) -> None:
        await context.calls.call(routing.number, path, call, *arguments)

    return lambda call, *arguments: background(note(call, *arguments))


class NoGrants:
    """The stored grants of transports without a shard: none."""

    version = 0

    def grants(self, _tenant: str, _principal: str) -> tuple[()]:
        """Return nothing."""
        return ()

    def tenants_of(self, _: str) -> tuple[()]:
        """Return nothing."""
        return ()


class MisplacedTenants:
    """The tenants that do not allow the region of this server, by the directory. Their owners decide for each call."""

    def __init__(self, context: HostContext) -> None:
        self._context = context

    def __bool__(self) -> bool:
        return self._context.calls.region is not None

    def __contains__(self, tenant: str) -> bool:
        return bool(self.regions(tenant))

    def regions(self, tenant: str) -> tuple[str, ...]:
        """Return the regions that a tenant allows if this server's is none of them; otherwise nothing."""
        row = self._context.placements.row(tenant)
        return row.regions if row is not None and self._context.calls.region not in row.regions else ()


class FrontendResidency:
    """The residency of transports without a shard."""

    def __init__(self, context: HostContext) -> None:
        self.misplaced = MisplacedTenants(context)


class FrontendAdmission:
    """Finds out who calls. The owner of a tenant authenticates and authorizes calls about it."""

    def __init__(
        self,
        context: HostContext,
        keys: KeyMaker,
        jwt: JwtVerifier | None,
        certificates: CertificateMap | None,
        *,
        anonymous_default: bool,
    ) -> None:
        self._context = context
        self.keys = keys
        self.residency = FrontendResidency(context)
        self.authenticator = Authenticator(
            NoKeys(), context.clock, jwt, certificates, anonymous_default=anonymous_default
        )
        self.directory = context.directory(self._fallback)
        self.authenticator.other_shards = context.credentials(None, self.directory)
        self.signatures = Signatures(self.authenticator, keys, context.clock)
        self._authorizer = Authorizer(NoGrants(), context.clock)

    def _fallback(self) -> int:
        thread = self._context.host.fallback()
        return thread.number if thread is not None else 0

    def check_residency_early(self, call: Call, tenant: str | None, _action: str, _queue: str | None) -> None:
        """Raise WrongRegion before the body is read. The caller may learn it only if the owner of the tenant says so too."""
        if tenant is None:
            principal = self.authenticator.cached(call.bearer, call.certificate)
            tenant = own_tenant(principal) if principal is not None else ""
        regions, region = self.residency.misplaced.regions(tenant), self._context.calls.region
        if regions and region is not None:
            raise wrong_region(tenant, regions, region)

    async def identify(self, call: Call, _: str) -> Principal:
        """Return the caller's principal; raise Unauthenticated, and have it noted, if the credential is not valid."""
        try:
            return await self.authenticator.authenticate(call.bearer, call.certificate)
        except ShardDown:
            raise  # a shard would look in the same places, and wait as long
        except TenantqError:
            found: Principal = await self._context.calls.call(self._fallback(), "access.log_in", call)
            return found

    async def sign_in(self, call: Call, signed: SignedRequest, action: str) -> str:
        """Return the token of the key that signed a request; raise SignatureRefused, and have it noted, if the signature is wrong."""
        try:
            return await self.signatures.token(signed)
        except ShardDown:
            raise  # as above
        except TenantqError:
            token: str = await self._context.calls.call(self._fallback(), "sqs_lookup.sign_in", call, signed, action)
            return token

    async def authorize_platform(self, call: Call, action: str) -> None:
        """Raise, and have it noted, if the caller may not do this with the platform.

        It is decided without a shard, so that a store that does not answer cannot delay it.
        """
        principal = await self.identify(call, action)
        if not self._authorizer.allowed(principal, "", action):
            await self._context.calls.call(self._fallback(), "admission.authorize", call, "", action, None)


class FrontendMetrics:
    """The figures of this process besides those of its shards."""

    def __init__(self, context: HostContext) -> None:
        self._context = context
        self._collectors: list[Collector] = [self]
        self.membership: Membership | None = None  # once the server takes part in the cluster

    def include(self, other: Collector) -> None:
        """Include the figures of another part."""
        self._collectors.append(other)

    async def text(self) -> bytes:
        """Return all figures in the text format of Prometheus."""
        text = MetricsText()
        await write_collected(text, self._collectors)
        return await text.encoded()

    def collect(self) -> Iterable[Metric]:
        """Yield the figures of this member of the cluster."""
        owned = len(self._context.host.owned())
        yield GaugeMetricFamily("tenantq_cluster_owned_shards", "Shards that this member owns.", value=owned)
        membership = self.membership
        if membership is None:
            return
        view = membership.view
        info = GaugeMetricFamily(
            "tenantq_cluster_member_info", "This member: always 1.", labels=["member", "region", "version"]
        )
        info.add_metric([membership.id, membership.region, VERSION], 1)
        yield info
        yield GaugeMetricFamily("tenantq_cluster_members", "Members alive.", value=len(view.members))
        unowned = sum(view.owner_of(shard) is None for shard in range(view.cluster.shards))
        yield GaugeMetricFamily("tenantq_cluster_unowned_shards", "Shards that no member owns.", value=unowned)
        yield GaugeMetricFamily(
            "tenantq_cluster_registry_up", "Whether this member reaches the registry.", value=not membership.problem
        )
        yield CounterMetricFamily(
            "tenantq_cluster_handovers", "Shards released to a successor.", value=membership.handovers
        )
        took = membership.handovers_took
        yield HistogramMetricFamily(
            "tenantq_cluster_handover_seconds",
            "Time without an owner of shards released to a successor.",
            buckets=took.cumulative(),
            sum_value=took.sum_us / 1_000_000,
        )
        yield CounterMetricFamily("tenantq_cluster_takeovers", "Shards acquired.", value=membership.takeovers)


class FrontendStatus:
    """Status of this process and its shards."""

    def __init__(
        self, context: HostContext, admission: FrontendAdmission, metrics: FrontendMetrics, server: str, durability: str
    ) -> None:
        self._context = context
        self._admission = admission
        self._metrics = metrics
        self._server = server
        self.durability = durability
        self.placement: PlacementAdmin | None = None
        self.membership: Membership | None = None  # once the server takes part in the cluster

    def readiness(self) -> dict[str, Any]:
        """Return whether requests can be served, and which shards this process owns. No credential is needed."""
        shards: dict[str, Any] = {}
        for thread in sorted(self._context.host.threads(), key=lambda one: one.number):
            doubtful = thread.shard.loop.is_doubtful
            reason = "the store does not answer, and another server may own it by now" if doubtful else ""
            shards[str(thread.number)] = {"status": "failed" if reason else "ready", "reason": reason}
        refusals = self.membership.refusals if self.membership is not None else {}
        shards |= {str(shard): {"status": "failed", "reason": why} for shard, why in sorted(refusals.items())}
        reason = self._unready(shards)
        return {
            "status": "failed" if reason else "ready",
            "ready": not reason,
            "reason": reason,
            "durability": self.durability,
            "version": VERSION,
            "owned_shards": shards,
        }

    def _unready(self, shards: Mapping[str, Mapping[str, str]]) -> str:
        """Return why no request can be served; empty if some can."""
        calls = self._context.calls
        if self.membership is None:
            return "this server has not joined its cluster yet"
        if shards and all(one["reason"] for one in shards.values()):
            return next(iter(shards.values()))["reason"]
        if not shards and not any(map(calls.is_reachable, range(calls.count))):
            return "no shard has an owner in reach"
        return ""

    async def metrics(self, call: Call) -> bytes:
        """Return the metrics of this process and of its shards in the text format of Prometheus."""
        await self._admission.authorize_platform(call, "metrics")
        principal = await self._admission.identify(call, "metrics")
        return await self.own_metrics(reader_of(call.caller(principal.id)))

    async def own_metrics(self, reader: str) -> bytes:
        """Return these metrics, for a caller that was authorized; see ``Metrics.text``."""
        self._metrics.membership = self.membership
        owned = sorted(thread.number for thread in self._context.host.threads())
        return await self._metrics.text() + await gather_metrics(
            self._ask_metrics, reader, {shard: str(shard) for shard in owned}
        )

    async def _ask_metrics(self, shard: int, reader: str, name: str, share: int) -> bytes:
        calls = self._context.calls
        text: bytes = await calls.query(shard, "status.metrics_local", reader, name, share, timeout_ms=METRICS_MS)
        return text

    async def cluster(self, call: Call) -> ClusterReply:
        """Return the members and shards of the cluster."""
        await self._admission.authorize_platform(call, "get_cluster")
        return await self._reply()

    async def _reply(self) -> ClusterReply:
        moves = await self.placement.moves() if self.placement is not None else []
        return cluster_reply(self.joined(), moves)

    async def drain_member(self, call: Call, member_id: str, *, drain: bool) -> ClusterReply:
        """Drain a member, or undo a drain. Raises NotFound if it is not alive."""
        await self._admission.authorize_platform(call, "drain_member")
        principal = await self._admission.identify(call, "drain_member")
        membership = self.joined()
        await membership.request_drain(member_id, drain=drain)
        caller = call.caller(principal.id)
        details = f"member {member_id}: {'drain' if drain else 'take shards again'}"
        entry = entry_of("drain_member", "", caller, details)
        await self._context.calls.query(HOME, "peer.note_entries", [entry])
        return await self._reply()

    def joined(self) -> Membership:
        """Return the membership. Raises Unavailable before the server has joined its cluster."""
        if self.membership is None:
            raise Unavailable("this server has not joined its cluster yet. Try again later.")
        return self.membership

    async def topology(self, call: Call) -> TopologyReply:
        """Return the shards of the cluster, to every valid credential."""
        await self._admission.identify(call, "topology")
        return TopologyReply(
            shards=[
                ShardItem(name=one.name, region=one.region, address=one.address)
                for one in self._context.topology().shards
            ],
            server=self._server,
            version=VERSION,
            format=FORMAT,
            now=self._context.clock.wall_ms(),
            encryption=True,
        )


class FrontendShards:
    """Where clients reach shards."""

    has_others = True

    def __init__(self, routing: ShardRouting, context: HostContext) -> None:
        self._routing = routing
        self._context = context

    def owner_address(self, call: Call, tenant: str | None, queue: str | None) -> str:
        """Return where clients reach the owner of the queue, or without one of the tenant.

        Empty if that is this process, or not known.
        """
        owner = self._routing.known_owner(call, tenant, queue)
        if owner is None or self._context.host.thread(owner) is not None:
            return ""
        return self._routing.directory.topology.shards[owner].address

    def readiness(self) -> dict[str, Any]:
        """Return nothing: the status has it all."""
        return {}


class FrontendService:
    """The facets of a process with many shards."""

    def __init__(
        self,
        context: HostContext,
        admission: FrontendAdmission,
        waits: FleetWaits,
        extra: Mapping[str, type],
        background: Callable[[Coroutine[Any, Any, None]], None],
        registry: Registry,
        *,
        server: str,
        durability: str,
    ) -> None:
        """Prepare. ``extra`` are further facet classes, by name."""
        self.routing = routing = ShardRouting(admission.directory, admission)
        for name, kind in {**FACETS, **extra}.items():
            setattr(self, name, FrontendFacet(name, kind, routing, context, background))
        self.admission = admission
        cast("Any", admission).authorize = routed(
            "admission", "authorize", None, routing, context.calls, like=Admission.authorize
        )
        self.metrics = FrontendMetrics(context)
        self.status = FrontendStatus(context, admission, self.metrics, server, durability)
        cast("Any", self.status).tenant_metrics = routed(
            "status", "tenant_metrics", None, routing, context.calls, like=ServerStatus.tenant_metrics
        )
        placement = ClusterPlacement(context, registry, self.status.joined)
        self.placement = PlacementAdmin(
            context.placements,
            context.calls,
            admission,
            placement,
            background,
        )
        self.status.placement = self.placement
        self.other_shards = FrontendShards(routing, context)
        self.fleet = ClusterFleetPolls(
            context.calls,
            admission.directory,
            context.memory,
            waits,
            context.members,
            admission.authenticator,
            context.clock,
            background,
        )
        tenants: Any = getattr(self, "tenants")  # noqa: B009  # set above, by name
        tenants.put = TenantCreation(
            context.placements, context.calls, routing, admission, lambda: placement.served
        ).put
        access: Any = getattr(self, "access")  # noqa: B009  # as above
        access.log_in = lambda call: admission.identify(call, "login")
        lookup: Any = getattr(self, "sqs_lookup")  # noqa: B009  # as above
        lookup.sign_in = admission.sign_in

    def as_service(self) -> Service:
        """Return it as transports know it."""
        return cast("Service", self)


def cluster_reply(membership: Membership, tenant_moves: list[TenantMoveItem]) -> ClusterReply:
    """Return the cluster as a member sees it."""
    view = membership.view
    owners = {shard: view.owner_of(shard) for shard in range(view.cluster.shards)}
    moves = view.moves
    members = [
        MemberItem(
            id=one.id, url=one.url, peer_address=one.peer_address, region=one.region, version=one.version,
            joined_at=one.joined_at, capacity=one.capacity, load=round(one.load, 3), draining=one.draining,
            shards=sum(owner is one for owner in owners.values()), assigner=one.id == view.assigner,
        )
        for one in sorted(view.members.values(), key=lambda member: (member.joined_at, member.id))
    ]  # fmt: skip
    shards = [
        ClusterShardItem(
            number=shard,
            region=view.cluster.region_of(shard),
            owner=owner.id if owner is not None else None,
            epoch=owner.owned[shard] if owner is not None else None,
            moving_to=moves.get(shard),
            load=round(owner.loads.get(shard, 0.0), 3) if owner is not None else 0.0,
        )
        for shard, owner in owners.items()
    ]
    return ClusterReply(
        id=view.cluster.id,
        this_member=membership.id,
        problem=membership.problem,
        members=members,
        shards=shards,
        moves=tenant_moves,
    )
