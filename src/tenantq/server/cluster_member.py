"""A server on a remote store: one process that owns many shards, and serves requests for all of them."""

import asyncio
import contextlib
import importlib
import logging
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from tenantq.cluster.fleet_waits import FleetWaits
from tenantq.cluster.frontend import FrontendAdmission, FrontendService
from tenantq.cluster.host import ShardHost
from tenantq.cluster.hosted_node import HostContext, HostedNode
from tenantq.cluster.link_certificate import LinkCertificate
from tenantq.cluster.machine import address_towards, machine_id
from tenantq.cluster.member_links import MemberLinks
from tenantq.cluster.membership import Membership
from tenantq.cluster.registry import Registry
from tenantq.cluster.shard_calls import ShardCalls
from tenantq.cluster.shard_memory import ShardMemory
from tenantq.cluster.shard_spec import Sockets
from tenantq.cluster.shared_keys import share_keys
from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.domain.cluster_view import FORMATS, Cluster, ClusterView, Member
from tenantq.domain.placement import Topology, TopologyShard
from tenantq.domain.urls import is_loopback
from tenantq.errors import Invalid, StoreFailed, StoreFormat
from tenantq.gates.certificate import CertificateMap
from tenantq.gates.json_web_token import JwtVerifier
from tenantq.gates.turns import Turns
from tenantq.runtime.clock import SystemClock
from tenantq.runtime.durable_files import write_durably
from tenantq.runtime.futures import BackgroundTasks
from tenantq.server.listen_addresses import opened
from tenantq.server.remote_store import open_remote
from tenantq.server.shard_runtime import ShardRuntime
from tenantq.server.transports import ListeningServer
from tenantq.service.server_status import VERSION
from tenantq.settings import OFF, ServerSettings, shown_address, shown_url, split_address
from tenantq.sqs.cooldowns import COOLDOWNS, sqs_cooldowns
from tenantq.store.address import parse_store, store_hosts
from tenantq.store.directory_lock import DirectoryLock
from tenantq.store.interface import Store
from tenantq.store.local_identity import check_not_embedded
from tenantq.store.shard_directories import shard_dir
from tenantq.store.shard_lease import ReleaseSignal

log = logging.getLogger("tenantq")

START_MS: Final = 20_000
"""How long a starting server waits until all shards have owners, before it accepts requests."""

LOOK_S: Final = 0.02

CLAIM_MS: Final = 3_000
"""How long a shard's thread waits for its last owner to give it up, before it is asked whether it should still do so."""

WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104  # nothing listens on them here

CLUSTER_FILE: Final = "cluster"
"""Keeps the ID of the cluster, so that a server does not join another one under the same name."""

MEMBER_DIR: Final = "member"
"""The part of the data directory that belongs to one process."""


class HostServer(ListeningServer):
    """One server process on a remote store. ``async with HostServer(settings) as server`` serves until the block ends."""

    failure: StoreFailed | None = None  # a failed store stops shards, never the process

    def __init__(
        self,
        settings: ServerSettings,
        *,
        admin_token: str | None = None,
        rpc_default: str | None = None,
        process: int = 0,
        sockets: Sockets | None = None,
        opened: Callable[[], None] = lambda: None,
        show_token: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare. With ``sockets`` it is one ``process`` of several of the same server."""
        super().__init__(
            settings, SystemClock(), admin_token=admin_token, rpc_default=rpc_default, sockets=sockets, opened=opened,
            show_token=show_token,
        )  # fmt: skip
        assert settings.store is not None
        self._remote = open_remote(settings.store, settings.redis, settings.postgres, settings.shard.durability)
        self._home = Path(settings.data_dir)
        self._process = process
        self._member_dir = self._home / (MEMBER_DIR if process == 0 else f"{MEMBER_DIR}-{process}")
        self.cluster: Cluster  # once the server has started
        self._registry: Registry | None = None
        self._background = BackgroundTasks()
        self._in_background = self._background.start
        self.membership: Membership | None = None
        self._links: MemberLinks | None = None
        self._shown: tuple[ClusterView | None, Topology] | None = None  # the topology of a view
        self._lock: DirectoryLock | None = None
        self._peer = ""  # address where other members reach this one, once it has started
        self._peer_socket: socket.socket | None = None
        self._machine = machine_id()
        self._jwt: JwtVerifier | None = None
        self.host: ShardHost | None = None
        self.frontend: FrontendService

    async def failed(self) -> None:
        """Never return: a failed store stops shards, not the process."""
        await asyncio.Event().wait()

    async def _start(self) -> None:
        """Join the cluster, own shards, and serve. What can fail on this machine comes before changes in the store."""
        store = parse_store(str(self.settings.store))
        check_not_embedded(self._home, store)
        self._lock = DirectoryLock(_created(self._member_dir))
        if self._sockets is None:
            self.transports.open()
        self._peer_socket = self._open_peer(store_hosts(store))
        turns = Turns(asyncio.get_running_loop())
        context, links = await self._open_host(turns)
        service = self.frontend.as_service()
        extra: Any = self.frontend
        self.transports.prepare(service, turns, extra.sqs_purges, extra.sqs_deletions)
        await self._join(context, links)
        self.frontend.status.membership = self.membership
        context.platform_keys.start()
        self._opened()
        if self.telemetry is not None:
            self.telemetry.start_metrics(self.frontend.status.own_metrics)
        await self.transports.start(service, turns)

    async def _open_host(self, turns: Turns) -> tuple[HostContext, MemberLinks]:
        settings, clock = self.settings, self.clock
        loop = asyncio.get_running_loop()
        registry = self._registry = self._remote.registry()
        shards, regions = settings.cluster.shards, settings.cluster.regions
        found = await asyncio.to_thread(registry.find)
        self._check_cluster(found)
        if found is not None and shards is not None:
            await asyncio.to_thread(registry.check_growth, shards)
        if found is not None:
            own = Member(id="", peer_address=self._peer, machine=self._machine)
            await asyncio.to_thread(registry.check_join, own)
        self._jwt = JwtVerifier(settings.jwt, clock) if settings.jwt is not None else None
        certificates = CertificateMap(settings.certificates) if settings.certificates is not None else None
        await asyncio.to_thread(registry.create, shards if found is None else None, regions)
        keys, audit_key = await asyncio.to_thread(
            share_keys, registry, self._home, settings.cluster.secrets, self._admin_token
        )
        self.cluster = await asyncio.to_thread(
            registry.create, shards, regions
        )  # a server without the secret adds none
        write_durably(self._home / CLUSTER_FILE, f"{self.cluster.id}\n".encode())
        await asyncio.to_thread(_import_for_shards)
        self.host = host = ShardHost(self._make_shard, clock, type(loop))
        calls = ShardCalls(host, clock, self.cluster.shards)
        calls.region = settings.shard.region if self.cluster.regions else None
        calls.unserved = self._unserved
        placements = TenantPlacements(registry, self.cluster)
        await placements.refresh()
        secret = keys.key_for("links between servers").hex()
        memory, waits = ShardMemory(host, clock), FleetWaits(loop)
        links = MemberLinks(
            secrets.token_hex(8), secret, host, calls, COOLDOWNS, turns, memory, waits, clock, self._in_background
        )
        calls.remote = links
        context = self._context = HostContext(host, calls, placements, memory, links, self._topology, clock)
        context.on_fleet_work = waits.signal
        admission = FrontendAdmission(
            context,
            keys,
            self._jwt,
            certificates,
            anonymous_default=settings.gates.anonymous_default and not settings.strict_tenancy,
        )
        self.frontend = FrontendService(
            context,
            admission,
            waits,
            COOLDOWNS,
            self._in_background,
            registry,
            server=audit_key.public.id,
            durability=settings.shard.durability,
        )
        return context, links

    def _check_cluster(self, found: Cluster | None) -> None:
        """Raise if this server does not belong to the cluster, or has none of its regions, before anything is written."""
        settings, file = self.settings, self._home / CLUSTER_FILE
        known = file.read_text(encoding="ascii", errors="replace").strip() if file.exists() else ""
        if known and (found is None or found.id != known):
            there = f"cluster {found.id}" if found is not None else "no cluster"
            raise StoreFormat(
                f"{self._home} belongs to cluster {known}, but the store has {there} with {self._remote.shown_name}."
                " Check both settings. If the store was emptied or replaced, use a new data directory."
            )
        regions, own = found.regions if found is not None else settings.cluster.regions, settings.shard.region
        if regions and own not in regions:
            raise Invalid(
                f"shard.region: must be one of the cluster's regions ({own or 'not set'}; allowed: {', '.join(regions)})."
            )

    def _topology(self) -> Topology:
        """Return all shards, and where clients reach their owners."""
        cluster, view = self.cluster, self._links.view if self._links is not None else None
        if self._shown is None or self._shown[0] is not view:
            owners = [view.owner_of(shard) if view is not None else None for shard in range(cluster.shards)]
            shards = (
                TopologyShard(str(number), cluster.region_of(number), owner.url if owner is not None else "")
                for number, owner in enumerate(owners)
            )
            self._shown = (view, Topology(tuple(shards)))
        return self._shown[1]

    def _make_shard(self, number: int, released: ReleaseSignal) -> HostedNode:
        """Return a shard. Called in its thread."""
        settings, clock = self.settings, self.clock
        data_dir = shard_dir(self._home, number) if self._process == 0 else self._member_dir / "shards" / str(number)
        runtime = ShardRuntime(
            settings,
            number,
            clock,
            data_dir=data_dir,
            home=self._home,
            is_one_of_many=True,
            open_store=lambda shard: self._open_store(data_dir, shard, released),
        )
        runtime.tracing = self.telemetry.calls if self.telemetry is not None else None
        extra = sqs_cooldowns(settings.sqs, clock)
        return HostedNode(
            number, runtime, self._context, extra, lambda: runtime.bootstrap(self._admin_token, self._show_token)
        )

    async def _open_store(self, data_dir: Path, shard: str, released: ReleaseSignal) -> Store:
        """Open the store of a shard, blocking its thread only. Raises StoreLocked while another server owns it."""
        return self._remote.open_shard(data_dir, shard, CLAIM_MS, released)

    def _open_peer(self, store: tuple[tuple[str, int], ...]) -> socket.socket:
        """Return a socket for the links of other members. Raises Invalid or Unavailable."""
        peer = self.settings.cluster.peer or shown_address("cluster.peer", f"{address_towards(store)}:0", 0)
        host, port = split_address("cluster.peer", peer)
        if host in WILDCARDS:
            raise Invalid(f"cluster.peer: must be an address that other servers can reach, not {peer}.")
        sock = opened("cluster.peer", shown_address("cluster.peer", peer, port + self._process if port else 0))[0]
        self._peer = shown_address("cluster.peer", peer, sock.getsockname()[1])
        return sock

    # ---- shards ----

    async def _join(self, context: HostContext, links: MemberLinks) -> None:
        """Take part in the cluster, and return when all shards in regions with servers have owners, or after a while."""
        settings = self.settings
        host, _ = split_address("cluster.peer", self._peer)
        certificate = None if is_loopback(host) else LinkCertificate(self._member_dir)
        assert self._peer_socket is not None
        await links.open(self._peer_socket, certificate)
        member = Member(
            id=links.id,
            peer_address=self._peer,
            url=settings.cluster.url or shown_url(replace(settings, http=self._reachable(settings.http)), self.port),
            rpc=self._rpc_shown(),
            region=settings.shard.region or "",
            capacity=settings.cluster.capacity,
            version=VERSION,
            format=FORMATS[-1],
            shards=settings.cluster.shards or 0,
            machine=self._machine,
        )
        assert self._registry is not None
        membership = Membership(self._registry, context.host, self.clock, member, links)
        membership.on_change(self._view_changed)
        links.hurry, links.on_owner = membership.hurry, membership.taken
        context.host.on_wait, membership.unreachable = membership.hurry, links.unreachable
        self._links = links
        await membership.start()
        self.membership = membership
        until_ms = self.clock.monotonic_ms() + START_MS
        while self._missing(wanted=True) and self.clock.monotonic_ms() < until_ms:
            if context.host.fault is not None:
                raise context.host.fault
            await asyncio.sleep(LOOK_S)
        if missing := self._missing():
            log.warning("shards without an owner in reach: %s", ", ".join(map(str, missing)))

    def _missing(self, *, wanted: bool = False) -> list[int]:
        """Return the shards without an owner in reach; ``wanted``: only those that a member can own.

        After a crash of all servers, the rows of dead ones still name owners.
        """
        assert self.membership is not None
        view, calls = self.membership.view, self._context.calls
        missing = [one for one in range(view.cluster.shards) if not calls.is_reachable(one)]
        served = {"", *(member.region for member in view.members.values())}
        return [one for one in missing if not wanted or view.cluster.region_of(one) in served]

    def _unserved(self, shard: int) -> str:
        """Return the region of a shard if no server of that region is running; otherwise nothing."""
        if self.membership is None:
            return ""
        view = self.membership.view
        region = view.cluster.region_of(shard)
        return region if all(member.region != region for member in view.members.values()) else ""

    def _reachable(self, address: str) -> str:
        """Return an address that this server listens on; if that is all addresses, the one where other servers reach it."""
        return self._peer if split_address("http", address)[0] in WILDCARDS else address

    def _rpc_shown(self) -> str:
        transports = self.transports
        if transports.rpc_port is None or transports.rpc_address in {None, OFF}:
            return ""
        return shown_address("rpc", self._reachable(str(transports.rpc_address)), transports.rpc_port)

    def _view_changed(self, view: ClusterView) -> None:
        placements, calls = self._context.placements, self._context.calls
        self.cluster = placements.cluster = view.cluster
        calls.count = view.cluster.shards
        if self._links is not None:
            self._links.update(view)
        if view.directory_version != placements.version:
            self._in_background(placements.refresh())
        self._context.look_at_moves()

    # ---- stopping ----

    async def _close(self, grace_ms: int | None) -> None:
        """Give all shards up, and leave the cluster."""
        if self.membership is not None:
            membership, self.membership = self.membership, None
            await membership.drain(self.settings.grace_ms if grace_ms is None else grace_ms)
            await membership.close()
            self._registry = None
            await self._context.platform_keys.close()
        await self._background.finish()
        if self.host is not None:
            await self.host.close()
        if self._links is not None:
            await self._links.close()
        if self._peer_socket is not None:
            self._peer_socket.close()
        if self._jwt is not None:
            self._jwt.close()
        if self._registry is not None:
            self._registry.close()
        if self._lock is not None:
            self._lock.close()


def _import_for_shards() -> None:
    """Import what shards and their first export would import, which takes longer than a handover may."""
    with contextlib.suppress(ImportError):  # an extra; shards say what is missing
        importlib.import_module("tenantq.journal.exporter")
        importlib.import_module("tenantq.journal.segment").encode(())  # pyarrow imports pandas for its first table


def _created(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path
