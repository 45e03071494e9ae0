"""Erasure: deletes tenants permanently, and certifies it."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from tenantq.backup.backups import Backups
from tenantq.domain.message import SYSTEM, Caller
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.engine.ops.erasure import CertifyErasure
from tenantq.engine.ops.lifecycle import SpreadBegun
from tenantq.engine.queue_state import TenantState, is_home
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict, NotFound, TenantqError
from tenantq.journal.erasure_certificate import ErasureCertificate
from tenantq.journal.signing import SigningKey
from tenantq.runtime.clock import Clock, Timer
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tenantq.service.encryption import MessageEncryption
from tenantq.service.other_shards import OtherShards
from tenantq.service.request_checks import check_destroy

log = logging.getLogger("tenantq")

RETRY_MS: Final = 60_000
"""Delay before a failed step is retried."""


def _summed(home: Mapping[str, int], parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the counts of a tenant at home and in its parts together."""
    return {name: count + sum(one.get(name, 0) for one in parts) for name, count in home.items()}


class Erasures:
    """Erases tenants: first their data keys, then their rows, then the bytes of these. Each erasure ends with a certificate.

    The first step is durable and freezes an encrypted tenant. From there a deletion resumes after a crash or an error.
    """

    def __init__(
        self,
        shard: Shard,
        admission: Admission,
        clock: Clock,
        encryption: MessageEncryption,
        other_shards: OtherShards,
        backups: Backups | None,
        signing_key: SigningKey | None,
    ) -> None:
        self._shard, self._admission, self._clock = shard, admission, clock
        self._encryption, self._other_shards, self._backups = encryption, other_shards, backups
        self._signing_key = signing_key  # None: certificates stay unsigned
        self._running: set[str] = set()  # names of tenants being deleted, and IDs of erasures being certified
        self._unannounced: set[str] = set()  # names of deleted tenants that are not announced to all shards yet
        self._retry: Timer | None = None
        self._closing = False

    async def delete_tenant(self, call: Call, tenant: str, *, confirm: str, reason: str) -> ErasureCertificate:
        """Erase a tenant and return the certificate. It is signed later if a snapshot of another tenant holds deleted rows.

        Raises KmsUnavailable if the tenant's own key cannot be destroyed; the deletion then continues in the background.
        """
        caller = await self._admission.admit_platform(call, "delete_tenant", tenant)
        with self._admission.notes.noting_failure(caller, tenant, "delete_tenant"):
            state = self._shard.tenant(tenant)
            check_destroy(tenant, confirm, reason)
            if tenant == DEFAULT_TENANT:
                raise Conflict("the tenant 'default' always exists; delete its queues instead", tenant=tenant)
            state.check_hold()
            await self._shard.erasure.begin(tenant, reason=reason, caller=caller)
            await self._shred(state)
        return await self._certify(await self._delete(state, reason, caller))

    async def list(self, call: Call) -> Sequence[ErasureCertificate]:
        """Return the certificates of all erased tenants of all shards."""
        caller = await self._admission.admit_platform(call, "list_erasures")
        self._admission.notes.note_view(caller, "", "list_erasures")
        return await self._other_shards.erasures(self._shard.erasure.certificates())

    async def get(self, call: Call, id: str) -> ErasureCertificate:
        for one in await self.list(call):
            if one.id == id:
                return one
        raise NotFound("no such erasure")

    async def finish_pending(self) -> None:
        """Continue deletions and certifications that a crash or an error interrupted. Failures are retried after a minute."""
        self._retry = None
        for name in list(self._unannounced):
            await self._announce(name)
        for state in filter(is_home, list(self._shard.state.catalog.tenants.values())):
            if state.erasing is not None and state.name not in self._running:
                try:
                    await self._shred(state)
                    await self._certify(await self._delete(state, state.erasing.reason, Caller(state.erasing.by)))
                except TenantqError as error:
                    fields = {"tenant": state.name, "tenant_id": state.id}
                    log.warning("cannot delete tenant %s, retrying later: %s", state.name, error, extra=fields)
        erasures = self._shard.erasure.certificates()
        if erasures and self._backups is not None:
            try:
                await self._backups.refresh_data_keys()  # the directory may have been unavailable during the erasure
            except TenantqError as error:
                log.warning("backups may still contain data keys of erased tenants: %s", error)
        for erased in erasures:
            if not erased.certified_at and erased.id not in self._running:
                link = self._shard.journal.link_if_kept(erased.seq)
                try:
                    await self._certify(msgspec.structs.replace(erased, link=link.hex() if link is not None else ""))
                except TenantqError as error:
                    fields = {"tenant": erased.tenant, "tenant_id": erased.tenant_id}
                    text = "tenant %s is erased, but its certificate is not written yet: %s"
                    log.warning(text, erased.tenant, error, extra=fields)

    def forget_keys(self, state: TenantState) -> None:
        """Drop the data keys of a deleted tenant from memory."""
        self._encryption.forget(state)

    def close(self) -> None:
        """Stop retrying. The next start continues."""
        self._closing = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    async def _shred(self, state: TenantState) -> None:
        with self._retrying(state.name):
            await self._encryption.shred(state)

    async def _delete(self, state: TenantState, reason: str, caller: Caller) -> ErasureCertificate:
        """Delete a tenant whose keys are destroyed, and return what is to be certified."""
        self._admission.notes.flush()  # no row may follow, where a new tenant of the same name would see it
        with self._retrying(state.name):
            erased = await self._delete_parts(state, reason, caller)
        self._admission.forget_tenant(state.name)
        self._encryption.forget(state)
        await self._announce(state.name)  # erasing the bytes takes long, and the name is free again before that
        return erased

    async def _announce(self, name: str) -> None:
        """Announce to other shards that a tenant was deleted. Retries later if that fails."""
        try:
            await self._other_shards.announce(name, None)
            self._unannounced.discard(name)
        except TenantqError as error:
            log.warning("tenant %s is deleted, but its name is not free yet: %s", name, error, extra={"tenant": name})
            self._unannounced.add(name)
            self._retry_later()

    async def _delete_parts(self, state: TenantState, reason: str, caller: Caller) -> ErasureCertificate:
        """Delete a tenant's parts on other shards, and then the tenant itself."""
        erasure = self._shard.erasure
        while True:
            is_spread = state.part is not None
            await erasure.begin(state.name, reason=reason, caller=caller)  # from here on it gets no new parts
            parts = await self._other_shards.drop_parts(state) if is_spread else []
            try:
                erased = await erasure.delete_tenant(state.name, reason=reason, caller=caller, is_spread=is_spread)
            except SpreadBegun:
                continue
            return msgspec.structs.replace(erased, counts=_summed(erased.counts, parts))

    async def drop_backup_keys_local(self, tenant_id: int) -> bool:
        """Delete the data keys of a tenant next to this shard's backups, for the shard that has erased it."""
        if self._backups is not None:
            await self._backups.drop_data_keys(tenant_id)
        return True

    async def _certify(self, erased: ErasureCertificate) -> ErasureCertificate:
        """Return the signed certificate, or the unsigned one if deleted rows are still held, which is retried later."""
        with self._retrying(erased.id):
            if self._backups is not None:
                await self._backups.refresh_data_keys()
            if self._backups is not None and not self._backups.store_backs_up:
                try:
                    await self._other_shards.ask("erasures.drop_backup_keys_local", erased.tenant_id)
                except TenantqError as error:
                    log.warning("backups of other shards may still contain data keys of an erased tenant: %s", error)
                    self._retry_later()
                    return erased
            if not await self._shard.erasure.erase_bytes(erased.tenant_id):
                self._retry_later()
                return erased
            now_ms = self._shard.state.wall_ms()
            if self._signing_key is not None:
                certificate = erased.certified(self._signing_key, now_ms)
            else:
                certificate = msgspec.structs.replace(erased, certified_at=now_ms)
            await self._shard.submit(CertifyErasure(self._shard.state.platform, SYSTEM, certificate))
        return certificate

    def _retry_later(self) -> None:
        """Schedule ``finish_pending``."""
        if self._retry is None and not self._closing:
            self._retry = self._clock.call_later(RETRY_MS, lambda: self._admission.in_background(self.finish_pending()))

    @contextmanager
    def _retrying(self, name: str) -> Iterator[None]:
        """Mark a step of an erasure as running. An error schedules ``finish_pending``."""
        self._running.add(name)
        try:
            yield
        except TenantqError:
            self._retry_later()
            raise
        finally:
            self._running.discard(name)
