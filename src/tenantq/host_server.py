"""A server on a remote store: one process that owns many shards, and serves requests for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tenantq.cluster.front import FrontAdmission, FrontService
from tenantq.cluster.host import ShardHost
from tenantq.cluster.host_credentials import NoOtherMembers
from tenantq.cluster.host_fleet import FleetWaits
from tenantq.cluster.hosted_node import HostContext, HostedNode
from tenantq.cluster.layout import shard_dir
from tenantq.cluster.shard_calls import ShardCalls
from tenantq.cluster.shared_keys import share_keys
from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.domain.placement import Topology, TopologyShard
from tenantq.errors import Invalid, StoreFailed, StoreLocked, TenantqError
from tenantq.gates.certificate import CertificateMap
from tenantq.gates.json_web_token import JwtVerifier
from tenantq.gates.turns import Turns
from tenantq.runtime.clock import SystemClock
from tenantq.runtime.tls import check_tls
from tenantq.shard_runtime import ShardRuntime
from tenantq.sqs.cooldowns import Cooldowns
from tenantq.store.directory_lock import DirectoryLock
from tenantq.store.redis.address import parse_address
from tenantq.transports import Transports

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from tenantq.cluster.registry import Registry
    from tenantq.domain.cluster_view import Cluster
    from tenantq.settings import ServerSettings
    from tenantq.store.interface import Store

log = logging.getLogger("tenantq")

RETRY_S: Final = 0.25
"""Delay before this server tries again to own a shard."""

MEMBER_DIR: Final = "member"
"""The part of the data directory that belongs to one process."""


class HostServer:
    """One server process on a remote store. ``async with HostServer(settings) as server`` serves until the block ends."""

    failure: StoreFailed | None = None  # a failed store stops shards, never the process

    def __init__(
        self,
        settings: ServerSettings,
        *,
        admin_token: str | None = None,
        rpc_default: str | None = None,
        show_token: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare. ``show_token`` shows a generated administrator's token; ``port`` is known then."""
        self.settings = settings
        self.clock = SystemClock()
        self.transports = Transports(settings, self.clock, rpc_default)
        self._home = Path(settings.data_dir)
        self._admin_token, self._show_token = admin_token, show_token
        self.cluster: Cluster  # once the server has started
        self._registry: Registry | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._acquiring: asyncio.Task[None] | None = None
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
            self._lock = DirectoryLock(_created(self._home / MEMBER_DIR))
            self.transports.open()
            context = await self._open_host()
            turns = Turns(asyncio.get_running_loop())
            service = self.front.as_service()
            extra: Any = self.front
            self.transports.prepare(service, turns, extra.sqs_purges, extra.sqs_deletions)
            await self._acquire_first(context)
            self._acquiring = asyncio.get_running_loop().create_task(self._keep_acquiring(context))
            await self.transports.start(service, turns)
        except BaseException:
            await self.close(grace_ms=0)
            raise
        gc.collect()
        gc.freeze()

    async def _open_host(self) -> HostContext:
        settings, clock = self.settings, self.clock
        loop = asyncio.get_running_loop()
        registry = self._registry = open_registry(settings)
        self.cluster = await asyncio.to_thread(registry.create, settings.cluster.shards, settings.cluster.regions)
        keys, audit_key = await asyncio.to_thread(share_keys, registry, self._home, settings.cluster.secret)
        self.host = host = ShardHost(self._make_shard, clock, type(loop))
        calls = ShardCalls(host, clock, self.cluster.shards)
        placements = TenantPlacements(registry, self.cluster)
        await placements.refresh(at_once=True)
        context = self._context = HostContext(host, calls, placements, NoOtherMembers(), self._topology, clock)
        waits = FleetWaits(loop)
        context.on_fleet_work = waits.signal
        self._jwt = JwtVerifier(settings.jwt, clock) if settings.jwt is not None else None
        admission = FrontAdmission(
            context,
            keys,
            self._jwt,
            CertificateMap(settings.certificates) if settings.certificates is not None else None,
            anonymous_default=settings.gates.anonymous_default,
        )
        self.front = FrontService(
            context,
            admission,
            waits,
            {"sqs_purges": Cooldowns, "sqs_deletions": Cooldowns},
            self._in_background,
            server=audit_key.public.id,
            durability=settings.shard.durability,
        )
        return context

    def _topology(self) -> Topology:
        cluster = self.cluster
        return Topology(
            tuple(TopologyShard(str(number), cluster.region_of(number)) for number in range(cluster.shards))
        )

    def _make_shard(self, number: int) -> HostedNode:
        """Return a shard. Called in its thread."""
        settings, clock = self.settings, self.clock
        data_dir = shard_dir(self._home, number)
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
            data_dir, parse_address(settings.store), settings.redis, shard, durability=settings.shard.durability
        )

    # ---- shards ----

    async def _acquire_first(self, context: HostContext) -> None:
        """Try to own every shard. Raises why the server cannot start if none can be owned for another reason than its owner."""
        attempts = [context.host.acquire(shard) for shard in range(self.cluster.shards)]
        found = await asyncio.gather(*attempts, return_exceptions=True)
        failures = [one for one in found if isinstance(one, BaseException)]
        fatal = [one for one in failures if not isinstance(one, StoreFailed)]
        if len(failures) == self.cluster.shards:
            fatal += [one for one in failures if not isinstance(one, StoreLocked)]
        if fatal:
            raise fatal[0]

    async def _keep_acquiring(self, context: HostContext) -> None:
        """Own the shards that this server lost, or that their owner gave up."""
        while True:
            await asyncio.sleep(RETRY_S)
            missing = [shard for shard in range(self.cluster.shards) if context.host.thread(shard) is None]
            found = await asyncio.gather(*map(context.host.acquire, missing), return_exceptions=True)
            for shard, one in zip(missing, found, strict=True):
                if isinstance(one, BaseException) and not isinstance(one, StoreLocked):
                    log.warning("shard %d cannot be opened: %s", shard, one)

    # ---- stopping ----

    async def drain(self, grace_ms: int | None = None) -> None:
        """Stop accepting requests and finish those in flight; see ``Transports.drain``."""
        await self.transports.drain(grace_ms)

    async def close(self, grace_ms: int | None = None) -> None:
        """Finish requests in flight and give all shards up. A second call forces the end."""
        await self.drain(grace_ms)
        self.transports.close()
        if self._acquiring is not None:
            acquiring, self._acquiring = self._acquiring, None
            acquiring.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await acquiring
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        if self.host is not None:
            await self.host.close()
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
