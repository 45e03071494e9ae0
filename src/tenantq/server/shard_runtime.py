"""One running shard: its engine, gates and service, and everything that works for it in the background, on one event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenantq.backup.backups import Backups
from tenantq.backup.restore import RESTORED, take_note
from tenantq.domain.message import SYSTEM
from tenantq.engine.shard import Shard
from tenantq.errors import TenantqError
from tenantq.gates.certificate import CertificateMap
from tenantq.gates.json_web_token import JwtVerifier
from tenantq.gates.key_maker import KeyMaker
from tenantq.journal.checkpoint import Checkpointer
from tenantq.journal.export_target import open_target
from tenantq.journal.record import JournalEntry
from tenantq.journal.segment_index import SegmentIndex
from tenantq.journal.segment_retention import SegmentRetention
from tenantq.journal.signing import PublicKeys, SigningKey
from tenantq.journal.target_url import shown_url
from tenantq.runtime.clock import Clock
from tenantq.runtime.futures import BackgroundTasks
from tenantq.service.admission import Admission
from tenantq.service.encryption import MessageEncryption
from tenantq.service.encryption_setup import open_encryption
from tenantq.service.other_shards import OtherShards
from tenantq.service.residency import DataPlace
from tenantq.service.self_checks.audit_integrity import AuditIntegrity
from tenantq.service.self_checks.isolation_probe import IsolationProbe
from tenantq.service.self_checks.key_health import KeyHealthCheck
from tenantq.service.self_checks.quota_accuracy import QuotaAccuracy
from tenantq.service.self_checks.runner import SelfChecks
from tenantq.service.service import Service
from tenantq.settings import ServerSettings
from tenantq.store.interface import OpenStore
from tenantq.store.shard_directories import HOME, first_tenant_id, shard_dir

if TYPE_CHECKING:
    from tenantq.journal.exporter import Exporter
    from tenantq.service.call_tracing import CallTracing

log = logging.getLogger("tenantq")

_KEYRING: Final = threading.Lock()  # shards of one process share a keyring, which the first one creates


class ShardRuntime:
    """Serves one shard to transports and other shards. Use it from one event loop only."""

    def __init__(
        self,
        settings: ServerSettings,
        number: int,
        clock: Clock,
        *,
        data_dir: Path,
        home: Path,
        is_one_of_many: bool = False,
        open_store: OpenStore | None = None,
    ) -> None:
        """Prepare. ``data_dir`` holds the files of this shard, ``home`` those that all shards of the server share."""
        self.settings = settings
        self.number = number
        self._clock = clock
        self._data_dir, self._home = data_dir, home
        self._is_one_of_many = is_one_of_many
        self._is_hosted = open_store is not None  # on a store that several servers share
        self.shard = Shard(
            data_dir,
            settings=settings.shard,
            clock=clock,
            open_store=open_store,
            name=str(number),
            first_tenant_id=first_tenant_id(number),
        )
        self.tracing: CallTracing | None = None
        self.service: Service
        self.exporter: Exporter | None = None
        self.retention: SegmentRetention | None = None  # None: segments are kept forever
        self.background = BackgroundTasks()
        self.in_background = self.background.start
        self._exports_to_end = True
        self._parts = AsyncExitStack()  # closed in reverse order of opening

    async def open(self, other_shards: OtherShards | None = None) -> None:
        """Open the store and start to work. If this raises, call ``close``."""
        settings, clock, parts = self.settings, self._clock, self._parts
        jwt = JwtVerifier(settings.jwt, clock) if settings.jwt is not None else None
        certificates = CertificateMap(settings.certificates) if settings.certificates is not None else None
        parts.push_async_callback(self.shard.close)
        await self.shard.open()
        with _KEYRING:
            encryption = open_encryption(self.shard, self._home, clock, settings.kms, settings.vault)
        parts.push_async_callback(encryption.close)
        if jwt is not None:
            parts.callback(jwt.close)
        key = self._audit_key = SigningKey.load_or_make(self._home)
        segments = self._make_index()
        self.exporter = self._make_exporter(segments)
        parts.push_async_callback(self._close_exporter)
        self._backups = self._make_backups(key)
        parts.push_async_callback(self._backups.close)
        checkpointer = Checkpointer(self.shard.journal, key, clock, settings.audit, self.in_background)
        parts.push_async_callback(lambda: checkpointer.close(to_end=self._exports_to_end))
        parts.push_async_callback(self.background.finish)
        admission = Admission(
            self.shard, clock, settings.gates, self.in_background, jwt=jwt, certificates=certificates,
            keys=KeyMaker.load_or_make(self._home), strict_tenancy=settings.strict_tenancy,
            tracing=self.tracing,
        )  # fmt: skip
        parts.push_async_callback(_write_notes, admission.close)
        admission.residency.enforce(self._data_places())
        self.service = Service(
            self.shard,
            admission,
            clock,
            encryption,
            exporter=self.exporter,
            segments=segments,
            backups=self._backups,
            signing_key=key,
            other_shards=other_shards,
            plans=settings.plans,
            alerts=settings.alerts,
            containment=settings.containment,
            signups=settings.signups,
            metrics=settings.metrics,
            compliance=settings.compliance,
        )
        parts.push_async_callback(self.service.close)
        await self._note_restore()
        self.in_background(self.service.erasures.finish_pending())
        if self.exporter is not None and self._is_hosted:
            self.in_background(self._start_exporter(self.exporter))
        elif self.exporter is not None:
            await self.exporter.start()
        if settings.export.keep_days is not None and self.exporter is not None:
            retention = self.retention = SegmentRetention(
                segments, key, clock, settings.export.keep_days, self.shard.journal.note, self._first_kept
            )
            task = asyncio.create_task(retention.run(self._backups.segments_lock))
            parts.callback(task.cancel)
        checkpointer.start()
        self.service.watch.evaluations.start()
        self.service.compliance.start()
        checks = self.service.status.checks = self._make_checks(admission, encryption)
        checks.start()
        parts.callback(checks.close)

    async def _first_kept(self) -> int | None:
        """Return the first record whose segment must stay, for a legal hold or for a backup without segments."""
        if not self._backups.store_backs_up and await self._backups.needs_segments():
            return 1
        return await self.service.legal_holds.first_held()

    async def _start_exporter(self, exporter: Exporter) -> None:
        """Start the exporter in the background: a handover does not wait for it, and its failure stops no shard."""
        try:
            await exporter.start()
        except TenantqError as error:
            exporter.failure = error.message
            log.error("shard %d does not export its journal: %s", self.number, error.message)  # noqa: TRY400  # it says it
        except Exception as error:
            exporter.failure = str(error) or type(error).__name__
            log.exception("shard %d does not export its journal", self.number)

    async def bootstrap(self, admin_token: str | None, show_token: Callable[[str], None] | None) -> None:
        """Create the first administrator, on the shard that has the platform's keys."""
        if self.number == HOME:
            await self.service.access.bootstrap(admin_token, show_token)

    async def prepare_close(self) -> None:
        """Do, while the shard still serves, what a close without exports would wait for."""
        if self.exporter is not None:
            await self.exporter.close(to_end=False)
        await _write_notes(self.service.admission.write_notes)
        await self.background.finish()

    async def close(self, *, exports: bool = True) -> None:
        """Write pending notes to the journal, sign it, export it to its end, and close the store.

        Without ``exports`` the next owner signs and exports the rest of the journal.
        """
        self._exports_to_end = exports
        await self._parts.aclose()

    async def _close_exporter(self) -> None:
        if self.exporter is not None and self.shard.failure is None:
            await self.exporter.close(to_end=self._exports_to_end)

    def _data_places(self) -> tuple[DataPlace, ...]:
        """Return where this shard keeps data of its tenants."""
        settings = self.settings
        here = settings.shard.region or ""
        places = [DataPlace(what="messages", region=here)]
        if settings.export.enabled:
            target = settings.export.target or str(self._home.absolute() / "journal")
            region = settings.export.region if settings.export.region is not None else here
            places.append(DataPlace(what="journal segments", where=shown_url(target), region=region))
        if settings.store is None:
            region = settings.backup_region if settings.backup_region is not None else here
            places.append(DataPlace(what="backups", where=str(self._backup_directory()), region=region))
        return tuple(places)

    def _backup_directory(self) -> Path:
        home = self._home.absolute()
        given = self.settings.backup_dir
        directory = Path(given) if given is not None else home.with_name(f"{home.name}-backups")
        return shard_dir(directory, self.number) if self._is_one_of_many else directory

    def _make_backups(self, key: SigningKey) -> Backups:
        home, directory = self._home.absolute(), self._backup_directory()
        reserve_bytes = self.settings.shard.disk_reserve_bytes
        return Backups(
            self.shard, directory, self._data_dir.absolute(), key, reserve_bytes=reserve_bytes, home=home,
            store_backs_up=self.settings.store is not None,
        )  # fmt: skip

    async def _note_restore(self) -> None:
        """Journal, once, that the store continues from a backup."""
        note = take_note(self._data_dir)
        if note is not None:
            details = f"{note.backup}: up to record {note.last_seq}"
            await self.shard.journal.note([JournalEntry("restore_backup", "", "", SYSTEM.principal, details=details)])
            (self._data_dir / RESTORED).unlink()

    def _make_checks(self, admission: Admission, encryption: MessageEncryption) -> SelfChecks:
        settings, shard = self.settings.checks, self.shard
        checks = (
            IsolationProbe(self.service, shard),
            KeyHealthCheck(encryption.keys_in_use, encryption.try_key),
            QuotaAccuracy(shard, settings.tenants, settings.rows),
            AuditIntegrity(shard, PublicKeys.of(self._home), settings.records),
        )
        return SelfChecks(checks, shard, admission, self._clock, settings)

    def _make_index(self) -> SegmentIndex:
        """Return the index of exported segments for audit queries, also if nothing more is exported."""
        where = self.settings.export.target
        target = open_target(where if where is not None else self._home / "journal")
        return SegmentIndex(target, self.shard.name)

    def _make_exporter(self, segments: SegmentIndex) -> Exporter | None:
        """Return the exporter of the journal; None if it is disabled or its libraries are not installed."""
        settings = self.settings.export
        if not settings.enabled:
            return None
        try:
            from tenantq.journal.exporter import Exporter  # noqa: PLC0415  # needs pyarrow, which is an extra
        except ImportError:
            log.warning(
                "the journal is not exported. Run pip install '.[parquet]' in the checkout, or set export.enabled = false"
            )
            return None
        return Exporter(self.shard.journal, segments.target, self._audit_key, self._clock, settings, segments)


async def _write_notes(write: Callable[[], Awaitable[None]]) -> None:
    try:
        await write()
    except TenantqError as error:
        log.warning("the last refused calls could not be journaled: %s", error)
