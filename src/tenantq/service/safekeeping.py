"""Safekeeping: backups of the whole server, legal holds, erasure."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.domain.names import DEFAULT_TENANT
from tenantq.errors import Conflict, NotFound, TenantqError
from tenantq.journal.record import JournalEntry
from tenantq.service.call import TenantInfo
from tenantq.service.control import VERSION, check_destroy, check_why
from tenantq.service.credentials import Credentials
from tenantq.store.opening import FORMAT
from tenantq.wire import ShardItem, TopologyReply

if TYPE_CHECKING:
    from tenantq.backup.backups import BackupItem, Backups
    from tenantq.backup.manifest import BackupManifest
    from tenantq.domain.message import Caller
    from tenantq.engine.shard import Shard
    from tenantq.journal.erasure_certificate import ErasureCertificate
    from tenantq.journal.exporter import Exporter
    from tenantq.journal.segment_index import SegmentIndex
    from tenantq.journal.signing import SigningKey
    from tenantq.runtime.clock import Clock, Timer
    from tenantq.service.call import Call
    from tenantq.service.encryption import MessageEncryption
    from tenantq.service.gatekeeper import Gatekeeper

log = logging.getLogger("tenantq")

CERTIFY_AGAIN_MS: Final = 60_000
"""So long after the end of an erasure has failed, it is tried again."""


class Safekeeping(Credentials):
    """What keeps data safe, whole and portable."""

    def __init__(
        self,
        shard: Shard,
        gates: Gatekeeper,
        clock: Clock,
        exporter: Exporter | None = None,
        sealing: MessageEncryption | None = None,
        segments: SegmentIndex | None = None,
        *,
        backups: Backups | None = None,
        signing_key: SigningKey | None = None,
    ) -> None:
        super().__init__(shard, gates, clock, exporter, sealing, segments)
        self._backups = backups  # None: there is no place for them
        self._signing_key = signing_key  # None: certificates stay unsigned
        self._certifying: set[str] = set()  # erasures that are under way
        self._erasing: Timer | None = None  # when those that failed are tried again
        self._closing = False

    async def create_backup(self, call: Call, name: str | None = None, *, segments: bool = True) -> BackupManifest:
        """Back up everything that was acknowledged before this call, while the work goes on."""
        caller = await self.gates.enter_platform(call, "create_backup")
        with self._noting(call, caller, "", "create_backup"):
            made = await self.make_backup(name, segments=segments)
            if self.fellows is not None:
                parts = await self.fellows.back_up(made.name, segments=segments)
                files = {f"{one.shard}/{name}": file for one in parts for name, file in one.files.items()}
                made = msgspec.structs.replace(made, files={**made.files, **files})  # what is told of all of them
        told = f"{made.name}: up to record {made.last_seq}, {len(made.files)} files, {made.size} bytes"
        await self.shard.note_entries([entry("create_backup", "", caller, told)])
        return made

    async def topology(self, call: Call) -> TopologyReply:
        """Return the shards that this server knows, for everybody with a valid credential."""
        await self.gates.enter_known(call, "topology")
        return TopologyReply(
            shards=self.fellows.shards() if self.fellows is not None else [self._shown_shard()],
            server=self._signing_key.public.id if self._signing_key is not None else "",
            version=VERSION,
            format=FORMAT,
            now=self.shard.wall_ms(),
            encryption=self._sealing is not None,
        )

    def _shown_shard(self) -> ShardItem:
        settings = self.shard.settings
        return ShardItem(
            name=settings.name or self.shard.shard_name, region=settings.region or "", address=settings.address or ""
        )

    async def make_backup(self, name: str | None, *, segments: bool) -> BackupManifest:
        """Back up this shard, for whom that may be done for."""
        return await self._backup_place().create(name, segments=segments)

    async def list_backups(self, call: Call) -> list[BackupItem]:
        """Return the backups that are there."""
        await self.gates.enter_platform(call, "list_backups")
        found = await self.backups_here()
        return found if self.fellows is None else await self.fellows.backups(found)

    async def backups_here(self) -> list[BackupItem]:
        """Return this shard's backups, for whom they may be shown to."""
        return await self._backup_place().listed()

    # ---- legal hold ----

    async def hold_tenant(self, call: Call, tenant: str, reason: str) -> TenantInfo:
        """Put a tenant under legal hold, or give another reason for the one it is under."""
        caller = await self.gates.enter_platform(call, "hold_tenant", tenant)
        with self._noting(call, caller, tenant, "hold_tenant"):
            self.shard.tenant_state(tenant)
            check_why(reason)
        await self.shard.hold_tenant(tenant, reason=reason, caller=caller)
        return TenantInfo.of(self.shard.tenant_state(tenant))

    async def release_hold(self, call: Call, tenant: str, reason: str) -> TenantInfo:
        """Take a tenant out of legal hold."""
        caller = await self.gates.enter_platform(call, "release_hold", tenant)
        with self._noting(call, caller, tenant, "release_hold"):
            self.shard.tenant_state(tenant)
            check_why(reason)
        await self.shard.release_hold(tenant, reason=reason, caller=caller)
        return TenantInfo.of(self.shard.tenant_state(tenant))

    # ---- erasure ----

    async def delete_tenant(self, call: Call, tenant: str, *, confirm: str, reason: str) -> ErasureCertificate:
        """Erase a tenant: its data keys first, then everything it has, then the last byte of it; return the certificate."""
        caller = await self.gates.enter_platform(call, "delete_tenant", tenant)
        with self._noting(call, caller, tenant, "delete_tenant"):
            state = self.shard.tenant_state(tenant)
            check_destroy(tenant, confirm, reason)
            if tenant == DEFAULT_TENANT:
                raise Conflict("the tenant 'default' always exists; delete its queues instead", tenant=tenant)
            state.check_hold()
            destroyed = self.shard.key_fingerprints(state.id)
            if self._sealing is not None:
                await self._sealing.shred(state)
        erased = await self.shard.delete_tenant(tenant, reason=reason, caller=caller, destroyed=destroyed)
        self.gates.forget_tenant(tenant)
        if self._sealing is not None:
            self._sealing.forget(state)
        if self.fellows is not None:
            await self.fellows.tell_gone(
                tenant
            )  # before its bytes are erased, which takes long: the name is free again
        return await self._certify(erased)

    async def finish_erasures(self) -> None:
        """Certify what was erased before a crash or a failure came in between; what fails is tried again in a minute."""
        self._erasing = None
        erasures = self.shard.erasures()
        if erasures and self._backups is not None:
            try:
                await self._backups.refresh_data_keys()  # their place may have been away when they were erased
            except TenantqError as error:
                log.warning("data keys of tenants that were erased may be beside the backups: %s", error)
        for erased in erasures:
            if not erased.certified_at and erased.id not in self._certifying:
                link = self.shard.journal_link_if_kept(erased.seq)
                try:
                    await self._certify(msgspec.structs.replace(erased, link=link.hex() if link is not None else ""))
                except TenantqError as error:
                    log.warning("tenant %s is erased, but not certified yet: %s", erased.tenant, error)

    async def close(self) -> None:
        """Certify no more; the next start goes on."""
        self._closing = True
        if self._erasing is not None:
            self._erasing.cancel()
            self._erasing = None
        await super().close()

    async def _certify(self, erased: ErasureCertificate) -> ErasureCertificate:
        self._certifying.add(erased.id)
        try:
            return await self._certified(erased)
        except TenantqError:
            if self._erasing is None and not self._closing:
                self._erasing = self.clock.call_later(
                    CERTIFY_AGAIN_MS, lambda: self.gates.in_background(self.finish_erasures())
                )
            raise
        finally:
            self._certifying.discard(erased.id)

    async def _certified(self, erased: ErasureCertificate) -> ErasureCertificate:
        if self._backups is not None:
            await self._backups.refresh_data_keys()
        await self.shard.erase_bytes(erased.tenant_id)
        now_ms = self.shard.wall_ms()
        if self._signing_key is not None:
            certificate = erased.certified(self._signing_key, now_ms)
        else:
            certificate = msgspec.structs.replace(erased, certified_at=now_ms)
        await self.shard.certify_erasure(certificate)
        return certificate

    async def list_erasures(self, call: Call) -> list[ErasureCertificate]:
        """Return the certificates of all tenants that were erased."""
        await self.gates.enter_platform(call, "list_erasures")
        return await self._all_erasures()

    async def get_erasure(self, call: Call, id: str) -> ErasureCertificate:
        """Return one certificate."""
        await self.gates.enter_platform(call, "list_erasures")
        for one in await self._all_erasures():
            if one.id == id:
                return one
        raise NotFound("no such erasure")

    async def _all_erasures(self) -> list[ErasureCertificate]:
        own = self.shard.erasures()
        return own if self.fellows is None else await self.fellows.erasures(own)

    def _backup_place(self) -> Backups:
        if self._backups is None:
            raise Conflict("this server has no place for backups")
        return self._backups


def entry(op: str, tenant: str, caller: Caller, details: str, *, outcome: str = "ok") -> JournalEntry:
    """Return the journal's entry for an act that changed nothing in the store."""
    return JournalEntry(
        op, tenant, "", caller.principal, caller.remote, caller.request_id, details=details, outcome=outcome,
        user_agent=caller.user_agent,
    )  # fmt: skip
