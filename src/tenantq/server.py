"""The composition root: wires store, engine, gates, service and listener into one running server."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tenantq.backup.backups import Backups
from tenantq.backup.restore import RESTORED, take_note
from tenantq.cluster.layout import HOME, first_tenant_id, shard_count, shard_dir
from tenantq.cluster.node import ClusterNode
from tenantq.domain.message import SYSTEM
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict, Invalid, TenantqError
from tenantq.gates.certificate import CertificateMap
from tenantq.gates.json_web_token import JwtVerifier
from tenantq.gates.key_maker import KeyMaker
from tenantq.gates.turns import Turns
from tenantq.http.listener import HttpListener
from tenantq.http.routes import ROUTES
from tenantq.http.standby import StandbyListener
from tenantq.journal.checkpoint import Checkpointer
from tenantq.journal.export_target import open_target
from tenantq.journal.record import JournalEntry
from tenantq.journal.segment_index import SegmentIndex
from tenantq.journal.signing import PublicKeys, SigningKey
from tenantq.runtime.clock import Clock, SystemClock, sleep_ms
from tenantq.runtime.listener import open_sockets
from tenantq.runtime.tls import check_tls
from tenantq.service import Admission, MessageEncryption, Service, open_encryption
from tenantq.service.self_checks import (
    AuditIntegrity,
    IsolationProbe,
    KeyHealthCheck,
    QuotaAccuracy,
    SelfChecks,
)
from tenantq.settings import OFF, ServerSettings, split_address
from tenantq.sqs import SqsEndpoint
from tenantq.sqs.cooldowns import Cooldowns
from tenantq.store.redis.address import parse_address

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from tenantq.cluster.shard_spec import ShardSpec, Sockets
    from tenantq.journal.exporter import Exporter
    from tenantq.rpc.listener import RpcListener
    from tenantq.store.interface import Store

log = logging.getLogger("tenantq")


class Server:
    """One server process. ``async with Server(settings) as server`` serves until the block ends."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        admin_token: str | None = None,
        clock: Clock | None = None,
        rpc_default: str | None = None,
        spec: ShardSpec | None = None,
        sockets: Sockets | None = None,
        opened: Callable[[], None] = lambda: None,
        show_token: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare; with a ``spec`` it is one shard of several, listens on ``sockets``, and tells when the others can find it.

        ``show_token`` shows the token of an administrator that is made up, at a time when ``port`` is known; where it raises,
        the start fails, and there is no such administrator.
        """
        self.settings = settings
        self._spec = spec
        self._sockets = sockets
        self._opened = opened
        self._show_token = show_token
        self._home = Path(settings.data_dir if spec is None else spec.home_dir)  # where what all shards share lies
        self._node: ClusterNode | None = None  # of a server with several shards
        self.clock = clock or SystemClock()
        self.port = 0  # where it listens, once started
        self.rpc_port: int | None = None  # ... and for Cap'n Proto, if it does
        self.rpc_address = (
            settings.rpc if settings.rpc is not None else rpc_default
        )  # one that was not set may be in use
        self.opening = ""  # the setting whose address is being opened
        number = spec.number if spec is not None else HOME
        self.shard = Shard(
            Path(settings.data_dir),
            settings=settings.shard,
            clock=self.clock,
            open_store=self._open_redis if settings.store is not None else None,
            name=str(number),
            first_tenant_id=first_tenant_id(number),
        )
        self._admin_token = admin_token
        self._http_sockets: tuple[socket.socket, ...] = sockets.http if sockets is not None else ()
        self._rpc_sockets: tuple[socket.socket, ...] = sockets.rpc if sockets is not None else ()
        self._background: set[asyncio.Task[None]] = set()
        self._admission: Admission | None = None
        self._service: Service | None = None
        self._standby: StandbyListener | None = None
        self._listener: HttpListener | None = None
        self._rpc_listener: RpcListener | None = None
        self._exporter: Exporter | None = None
        self._checkpointer: Checkpointer | None = None
        self._jwt: JwtVerifier | None = None
        self._encryption: MessageEncryption | None = None
        self._backups: Backups | None = None

    async def start(self) -> None:
        """Open the store and the addresses, let the administrator in, and serve; whatever fails, nothing stays open.

        Nobody is served before there is an administrator, and none is made before everything is there that can fail.
        """
        settings = self.settings
        if settings.tls is not None:
            check_tls(settings.tls)
        if self._spec is None and (count := shard_count(self._home)) > 1:
            raise Conflict(f"{self._home} has {count} shards, and one process serves one: use tenantq serve")
        jwt = JwtVerifier(settings.jwt, self.clock) if settings.jwt is not None else None
        certificates = CertificateMap(settings.certificates) if settings.certificates is not None else None
        self._jwt = jwt
        try:
            await self.shard.open()
        finally:
            await self._end_standby()
        try:
            self._admission = Admission(
                self.shard, self.clock, settings.gates, self._in_background, jwt=jwt, certificates=certificates,
                keys=KeyMaker.load_or_make(self._home),
            )  # fmt: skip
            self._audit_key = SigningKey.load_or_make(self._home)
            segments = self._make_index()
            self._exporter = self._make_exporter(segments)
            self._backups = self._make_backups(self._audit_key)
            self._encryption = open_encryption(self.shard, self._home, self.clock, settings.kms, settings.vault)
            if self._spec is not None:
                self._node = ClusterNode(self._spec, self.shard, self.clock, self._in_background)
            self.service = self._service = Service(
                self.shard,
                self._admission,
                self.clock,
                self._encryption,
                exporter=self._exporter,
                segments=segments,
                backups=self._backups,
                signing_key=self._audit_key,
                other_shards=self._node.other_shards if self._node is not None else None,
            )
            await self._note_restore()
            self._in_background(self.service.erasures.finish_pending())
            if self._exporter is not None:
                await self._exporter.start()
            self._checkpointer = Checkpointer(
                self.shard.journal, self._audit_key, self.clock, settings.audit, self._in_background
            )
            self._checkpointer.start()
            self.service.status.checks = self._make_checks(self._admission, self._encryption)
            self.service.status.checks.start()
            if self._sockets is None:
                self._open_addresses()
            if self._spec is None or self._spec.number == HOME:
                await self.service.access.bootstrap(self._admin_token, self._show_token)
            turns = Turns(asyncio.get_running_loop())
            service = self._node.join(self.service, turns) if self._node is not None else self.service
            self._listener = self._http_listener(service, turns)
            if self._node is not None and self._sockets is not None:
                await self._node.open(self._sockets.peers, self._opened)
            await self._start_rpc(service, turns)
            await self._listener.start_on(self._http_sockets, settings.tls)
        except BaseException:
            await self.close(grace_ms=0)
            raise
        # What exists now lives as long as the server: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()

    async def _open_redis(self, shard: str) -> Store:
        """Open the shard's store in Redis; while another server owns it, stand by."""
        try:
            from tenantq.store.redis.standby import open_when_free  # noqa: PLC0415  # needs redis, which is an extra
        except ImportError as error:
            raise Invalid("store: Redis needs its client library: install tenantq[redis]") from error
        settings = self.settings
        assert settings.store is not None
        return await open_when_free(
            Path(settings.data_dir),
            parse_address(settings.store),
            settings.redis,
            shard,
            durability=settings.shard.durability,
            standing_by=self._stand_by,
        )

    async def _stand_by(self, holder: str) -> None:
        """Say over HTTP that this server is alive and not ready; where the address is in use, only the log says it."""
        await self._end_standby()
        host, port = split_address("http", self.settings.http)
        if port == 0:
            return  # nobody could know which
        listener = StandbyListener(holder)
        try:
            await listener.start(host, port, self.settings.tls)
        except OSError as error:
            log.warning("nothing answers over HTTP while this server stands by: %s", error.strerror)
            return
        self._standby = listener

    async def _end_standby(self) -> None:
        standby, self._standby = self._standby, None
        if standby is not None:
            await standby.close()

    def _http_listener(self, service: Service, turns: Turns) -> HttpListener:
        settings, routes = self.settings, ROUTES
        if settings.sqs.enabled:
            purges = Cooldowns(self.clock, settings.sqs.purge_pause_ms)
            deletions = Cooldowns(self.clock, settings.sqs.recreate_pause_ms)
            if self._node is not None:
                purges = self._node.routed("sqs_purges", purges)
                deletions = self._node.routed("sqs_deletions", deletions)
            routes = (*ROUTES, *SqsEndpoint(service, self.clock, purges, deletions).routes())
        listener = HttpListener(service, settings.listener, clock=self.clock, turns=turns, routes=routes)
        service.metrics.include(listener.metrics)
        return listener

    def _open_addresses(self) -> None:
        """Take the addresses; a connection waits there until it is served."""
        self.opening = "http"
        self._http_sockets = tuple(open_sockets(*split_address("http", self.settings.http)))
        self.port = self._http_sockets[0].getsockname()[1]
        self.opening = "rpc"
        self._rpc_sockets = self._open_rpc()
        if self._rpc_sockets:
            self.rpc_port = self._rpc_sockets[0].getsockname()[1]

    def _open_rpc(self) -> tuple[socket.socket, ...]:
        """Take the address for Cap'n Proto; where nobody asked for it and it cannot be had, say so and go on without."""
        address, asked = self.rpc_address, self.settings.rpc is not None
        if address is None or address == OFF:
            return ()
        if find_spec("capnp") is None:
            missing = "Cap'n Proto needs pycapnp: install tenantq[rpc]"
            if asked:
                raise Invalid(f'rpc: {missing}, or set rpc = "off"')
            log.info('no Cap\'n Proto on %s. %s, or set rpc = "off"', address, missing)
            return ()
        try:
            return tuple(open_sockets(*split_address("rpc", address)))
        except OSError as error:
            if asked:
                raise
            why = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
            log.warning(
                'no Cap\'n Proto on %s: %s. Choose another address with --rpc, or set rpc = "off"', address, why
            )
            return ()

    async def _start_rpc(self, service: Service, turns: Turns) -> None:
        """Listen for Cap'n Proto, if its address is open."""
        if not self._rpc_sockets:
            return
        from tenantq.rpc.listener import RpcListener  # noqa: PLC0415  # needs pycapnp, which is an extra

        listener = RpcListener(service, self.settings.rpc_listener, clock=self.clock, turns=turns)
        await listener.start_on(self._rpc_sockets, self.settings.tls)
        self._rpc_listener = listener
        service.metrics.include(listener.metrics)

    async def drain(self, grace_ms: int | None = None) -> None:
        """Give notice, then take no more requests, and finish those in flight. A second call forces their end.

        Who names ``grace_ms`` has a reason to hurry: then there is no notice.
        """
        if grace_ms is None and self._listener is not None and self._listener.is_ready:
            self._listener.announce_closing()
            if self.settings.notice_ms:
                await sleep_ms(self.clock, self.settings.notice_ms)
        grace_ms = self.settings.grace_ms if grace_ms is None else grace_ms
        listeners = [one for one in (self._listener, self._rpc_listener) if one is not None]
        await asyncio.gather(*(listener.close(grace_ms) for listener in listeners))

    async def close(self, grace_ms: int | None = None) -> None:
        """Finish requests in flight, journal what is held back, and close the store. A second call forces the end."""
        await self.drain(grace_ms)
        for sock in (*self._http_sockets, *self._rpc_sockets):  # of a start that failed; else they are closed
            sock.close()
        if self._node is not None:
            node, self._node = self._node, None
            await node.close()
        if self._service is not None:
            service, self._service = self._service, None
            if service.status.checks is not None:
                service.status.checks.close()
            await service.close()
        if self._admission is not None:
            admission, self._admission = self._admission, None
            try:
                await admission.close()
            except TenantqError as error:
                log.warning("the last refusals could not be journaled: %s", error)
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        if self._checkpointer is not None:
            checkpointer, self._checkpointer = self._checkpointer, None
            await checkpointer.close()
        if self._backups is not None:
            await self._backups.close()
        if self._exporter is not None and self.shard.failure is None:
            exporter, self._exporter = self._exporter, None
            await exporter.close()
        if self._jwt is not None:
            self._jwt.close()
        if self._encryption is not None:
            await self._encryption.close()
        await self.shard.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _make_backups(self, key: SigningKey) -> Backups:
        data_dir, home = Path(self.settings.data_dir).absolute(), self._home.absolute()
        given = self.settings.backup_dir
        directory = Path(given) if given is not None else home.with_name(f"{home.name}-backups")
        if self._spec is not None:
            directory = shard_dir(directory, self._spec.number)
        reserve_bytes = self.settings.shard.disk_reserve_bytes
        return Backups(self.shard, directory, data_dir, key, reserve_bytes=reserve_bytes, home=home)

    async def _note_restore(self) -> None:
        """Journal, once, that what follows goes on from a backup."""
        data_dir = Path(self.settings.data_dir)
        note = take_note(data_dir)
        if note is not None:
            told = f"{note.backup}: up to record {note.last_seq}"
            await self.shard.journal.note([JournalEntry("restore_backup", "", "", SYSTEM.principal, details=told)])
            (data_dir / RESTORED).unlink()

    def _make_checks(self, admission: Admission, encryption: MessageEncryption) -> SelfChecks:
        """Return what checks the server itself now and then."""
        settings, shard = self.settings.checks, self.shard
        checks = (
            IsolationProbe(self.service, shard),
            KeyHealthCheck(encryption.keys_in_use, encryption.try_key),
            QuotaAccuracy(shard, settings.tenants, settings.rows),
            AuditIntegrity(shard, PublicKeys.of(self._home), settings.records),
        )
        return SelfChecks(checks, shard, admission, self.clock, settings, self._in_background)

    def _make_index(self) -> SegmentIndex:
        """Return what knows which segments there are, for the audit query; also where nothing more is exported."""
        where = self.settings.export.target
        target = open_target(where if where is not None else self._home / "journal")
        return SegmentIndex(target, self.shard.name)

    def _make_exporter(self, segments: SegmentIndex) -> Exporter | None:
        """Return what exports the journal, or None where it is switched off or its libraries are not installed."""
        settings = self.settings.export
        if not settings.enabled:
            return None
        try:
            from tenantq.journal.exporter import Exporter  # noqa: PLC0415  # needs pyarrow, which is an extra
        except ImportError:
            log.warning("the journal is kept but not exported: install tenantq[parquet], or set export.enabled = false")
            return None
        return Exporter(self.shard.journal, segments.target, self._audit_key, self.clock, settings, segments)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` beside the requests; a failure is logged, and the shard's own failure stops the server anyway."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work in the background failed: %s", error)
