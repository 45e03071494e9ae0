"""A server on a remote store: one process that owns many shards, and serves requests for all of them."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tenantq.cluster.addresses import opened
from tenantq.cluster.front import FrontAdmission, FrontService
from tenantq.cluster.host import ShardHost
from tenantq.cluster.host_fleet import FleetWaits
from tenantq.cluster.hosted_node import HostContext, HostedNode
from tenantq.cluster.layout import shard_dir
from tenantq.cluster.link_certificate import LinkCertificate, is_loopback
from tenantq.cluster.member_links import MemberLinks
from tenantq.cluster.membership import Membership
from tenantq.cluster.shard_calls import ShardCalls
from tenantq.cluster.shared_keys import share_keys
from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.domain.cluster_view import Member
from tenantq.domain.placement import Topology, TopologyShard
from tenantq.errors import Invalid, StoreFailed, TenantqError
from tenantq.gates.certificate import CertificateMap
from tenantq.gates.json_web_token import JwtVerifier
from tenantq.gates.turns import Turns
from tenantq.runtime.clock import SystemClock
from tenantq.runtime.tls import check_tls
from tenantq.server.shard_runtime import ShardRuntime
from tenantq.server.transports import Transports
from tenantq.service.server_status import VERSION
from tenantq.settings import OFF, shown_address, shown_url, split_address
from tenantq.sqs.cooldowns import Cooldowns
from tenantq.store.directory_lock import DirectoryLock
from tenantq.store.redis.address import parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from tenantq.cluster.registry import Registry
    from tenantq.cluster.shard_spec import Sockets
    from tenantq.domain.cluster_view import Cluster, ClusterView
    from tenantq.settings import ServerSettings
    from tenantq.store.interface import Store

log = logging.getLogger("tenantq")

START_MS: Final = 20_000
"""How long a starting server waits until all shards have owners, before it accepts requests."""

LOOK_S: Final = 0.02

CLAIM_MS: Final = 1_000
"""How long a shard's thread waits for its last owner to give it up, before it is asked whether it should still do so."""

MEMBER_DIR: Final = "member"
"""The part of the data directory that belongs to one process."""


EXTRA: Final[dict[str, type]] = {"sqs_purges": Cooldowns, "sqs_deletions": Cooldowns}
"""Facets besides those of the service."""


class HostServer:
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
        """Prepare. With ``sockets`` it is one ``process`` of several of the same server.

        ``opened`` is called when it takes part in the cluster. ``show_token`` shows a generated administrator's token;
        ``port`` is known then.
        """
        self.settings = settings
        self.clock = SystemClock()
        self.transports = Transports(settings, self.clock, rpc_default)
        self._home = Path(settings.data_dir)
        self._process = process
        self._member_dir = self._home / (MEMBER_DIR if process == 0 else f"{MEMBER_DIR}-{process}")
        self._sockets = sockets
        self._opened = opened
        if sockets is not None:
            self.transports.use(sockets.http, sockets.rpc)
        self._admin_token, self._show_token = admin_token, show_token
        self.cluster: Cluster  # once the server has started
        self._registry: Registry | None = None
        self._background: set[asyncio.Task[None]] = set()
        self.membership: Membership | None = None
        self._links: MemberLinks | None = None
        self._shown: tuple[ClusterView | None, Topology] | None = None  # the topology of a view
        self._lock: DirectoryLock | None = None
        self._jwt: JwtVerifier | None = None
        self.host: ShardHost | None = None
        self.front: FrontService

    @property
    def port(self) -> int:
        """The HTTP port, once the server has started."""
        return self.transports.port

    @property
    def rpc_port(self) -> int | None:
        """The Cap'n Proto port, once the server has started, if it serves that."""
        return self.transports.rpc_port

    async def failed(self) -> None:
        """Never return: a failed store stops shards, not the process."""
        await asyncio.Event().wait()

    async def start(self) -> None:
        """Join the cluster, own shards, and serve. If it raises, nothing stays open."""
        settings = self.settings
        if settings.tls is not None:
            check_tls(settings.tls)
        try:
            self._lock = DirectoryLock(_created(self._member_dir))
            if self._sockets is None:
                self.transports.open()
            turns = Turns(asyncio.get_running_loop())
            context, links = await self._open_host(turns)
            service = self.front.as_service()
            extra: Any = self.front
            self.transports.prepare(service, turns, extra.sqs_purges, extra.sqs_deletions)
            await self._join(context, links)
            self.front.status.membership = self.membership
            self._opened()
            await self.transports.start(service, turns)
        except BaseException:
            await self.close(grace_ms=0)
            raise
        gc.collect()
        gc.freeze()

    async def _open_host(self, turns: Turns) -> tuple[HostContext, MemberLinks]:
        settings, clock = self.settings, self.clock
        loop = asyncio.get_running_loop()
        registry = self._registry = open_registry(settings)
        self.cluster = await asyncio.to_thread(registry.create, settings.cluster.shards, settings.cluster.regions)
        keys, audit_key = await asyncio.to_thread(
            share_keys, registry, self._home, settings.cluster.secret, self._admin_token
        )
        self.host = host = ShardHost(self._make_shard, clock, type(loop))
        calls = ShardCalls(host, clock, self.cluster.shards)
        placements = TenantPlacements(registry, self.cluster)
        await placements.refresh()
        secret = keys.key_for("links between servers").hex()
        waits = FleetWaits(loop)
        links = MemberLinks(secrets.token_hex(8), secret, calls, EXTRA, turns, waits, clock, self._in_background)
        calls.remote = links
        context = self._context = HostContext(host, calls, placements, links, self._topology, clock)
        context.on_fleet_work = waits.signal
        self._jwt = JwtVerifier(settings.jwt, clock) if settings.jwt is not None else None
        admission = FrontAdmission(
            context,
            keys,
            self._jwt,
            CertificateMap(settings.certificates) if settings.certificates is not None else None,
            anonymous_default=settings.gates.anonymous_default and not settings.strict_tenancy,
        )
        self.front = FrontService(
            context,
            admission,
            waits,
            links,
            EXTRA,
            self._in_background,
            server=audit_key.public.id,
            durability=settings.shard.durability,
        )
        return context, links

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

    def _make_shard(self, number: int) -> HostedNode:
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
            open_store=lambda shard: self._open_store(data_dir, shard),
        )
        extra = {
            "sqs_purges": Cooldowns(clock, settings.sqs.purge_pause_ms),
            "sqs_deletions": Cooldowns(clock, settings.sqs.recreate_pause_ms),
        }
        return HostedNode(
            number, runtime, self._context, extra, lambda: runtime.bootstrap(self._admin_token, self._show_token)
        )

    async def _open_store(self, data_dir: Path, shard: str) -> Store:
        """Open the store of a shard, blocking its thread only. Raises StoreLocked while another server owns it."""
        from tenantq.store.redis.store import RedisStore  # noqa: PLC0415  # needs redis, which is an extra

        settings = self.settings
        assert settings.store is not None
        return RedisStore(
            data_dir,
            parse_address(settings.store),
            settings.redis,
            shard,
            durability=settings.shard.durability,
            wait_ms=CLAIM_MS,
        )

    # ---- shards ----

    async def _join(self, context: HostContext, links: MemberLinks) -> None:
        """Take part in the cluster, and return when all shards have owners, or after a while."""
        settings = self.settings
        host, port = split_address("cluster.peer", settings.cluster.peer)
        address = shown_address("cluster.peer", settings.cluster.peer, port + self._process if port else 0)
        sock = opened("cluster.peer", address)[0]
        certificate = None if is_loopback(host) else LinkCertificate(self._member_dir)
        await links.open(sock, certificate)
        member = Member(
            id=links.id,
            peer_address=shown_address("cluster.peer", settings.cluster.peer, sock.getsockname()[1]),
            url=settings.cluster.url or shown_url(settings, self.port),
            rpc=self._rpc_shown(),
            region=settings.shard.region or "",
            capacity=settings.cluster.capacity,
            version=VERSION,
        )
        assert self._registry is not None
        membership = Membership(self._registry, context.host, self.clock, member)
        membership.on_change(self._view_changed)
        links.hurry = membership.hurry
        self._links = links
        await membership.start()
        self.membership = membership
        until_ms = self.clock.monotonic_ms() + START_MS
        while self._missing() and self.clock.monotonic_ms() < until_ms:
            if context.host.fault is not None:
                raise context.host.fault
            await asyncio.sleep(LOOK_S)
        if missing := self._missing():
            log.warning("shards without an owner: %s", ", ".join(map(str, missing)))

    def _missing(self) -> list[int]:
        """Return the shards that nobody owns, as far as this server knows."""
        assert self.membership is not None
        view, owned = self.membership.view, self._context.host.owned()
        return [shard for shard in range(view.cluster.shards) if shard not in owned and view.owner_of(shard) is None]

    def _rpc_shown(self) -> str:
        transports = self.transports
        if transports.rpc_port is None or transports.rpc_address in {None, OFF}:
            return ""
        return shown_address("rpc", str(transports.rpc_address), transports.rpc_port)

    def _view_changed(self, view: ClusterView) -> None:
        placements, calls = self._context.placements, self._context.calls
        self.cluster = placements.cluster = view.cluster
        calls.count = view.cluster.shards
        if self._links is not None:
            self._links.update(view)
        if view.directory_version != placements.version:
            self._in_background(placements.refresh())

    # ---- stopping ----

    async def drain(self, grace_ms: int | None = None) -> None:
        """Stop accepting requests and finish those in flight; see ``Transports.drain``."""
        await self.transports.drain(grace_ms)

    async def close(self, grace_ms: int | None = None) -> None:
        """Finish requests in flight and give all shards up. A second call forces the end."""
        await self.drain(grace_ms)
        self.transports.close()
        if self.membership is not None:
            membership, self.membership = self.membership, None
            await membership.drain(self.settings.grace_ms if grace_ms is None else grace_ms)
            await membership.close()
            self._registry = None
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        if self.host is not None:
            await self.host.close()
        if self._links is not None:
            await self._links.close()
        if self._jwt is not None:
            self._jwt.close()
        if self._registry is not None:
            self._registry.close()
        if self._lock is not None:
            self._lock.close()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), TenantqError):
            log.warning("work in the background failed: %s", error)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _created(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def open_registry(settings: ServerSettings) -> Registry:
    """Return the cluster's rows in the store of the settings. Raises Invalid if its library is missing."""
    try:
        from tenantq.store.redis.registry import RedisRegistry  # noqa: PLC0415  # needs redis, which is an extra
    except ImportError as error:
        raise Invalid("store: Redis needs its client library: install tenantq[redis]") from error
    assert settings.store is not None
    return RedisRegistry(parse_address(settings.store), settings.redis, settings.shard.durability)
