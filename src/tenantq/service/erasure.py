"""Erasure: deletes tenants for good and certifies it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.domain.message import SYSTEM
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.engine.ops.erasure import CertifyErasure
from tenantq.errors import Conflict, NotFound, TenantqError
from tenantq.journal.erasure_certificate import ErasureCertificate
from tenantq.journal.signing import SigningKey
from tenantq.runtime.clock import Clock, Timer
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tenantq.service.encryption import MessageEncryption
from tenantq.service.other_shards import OtherShards
from tenantq.service.request_checks import check_destroy

if TYPE_CHECKING:
    from tenantq.backup.backups import Backups
    from tenantq.engine.shard import Shard

log = logging.getLogger("tenantq")

CERTIFY_RETRY_MS: Final = 60_000
"""Delay before a failed certification is retried."""


class Erasures:
    """Erases tenants: first their data keys, then their rows, then the bytes of these. Each erasure ends with a certificate."""

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
        self._certifying: set[str] = set()  # erasures whose certification is in progress
        self._retry: Timer | None = None
        self._closing = False

    async def delete_tenant(self, call: Call, tenant: str, *, confirm: str, reason: str) -> ErasureCertificate:
        """Erase a tenant and return the certificate."""
        caller = await self._admission.admit_platform(call, "delete_tenant", tenant)
        with self._admission.notes.noting_failure(caller, tenant, "delete_tenant"):
            state = self._shard.tenant(tenant)
            check_destroy(tenant, confirm, reason)
            if tenant == DEFAULT_TENANT:
                raise Conflict("the tenant 'default' always exists; delete its queues instead", tenant=tenant)
            state.check_hold()
            destroyed = self._shard.erasure.key_fingerprints(state.id)
            await self._encryption.shred(state)
        erased = await self._shard.erasure.delete_tenant(tenant, reason=reason, caller=caller, destroyed=destroyed)
        self._admission.forget_tenant(tenant)
        self._encryption.forget(state)
        # Erasing the bytes takes long, and the name is free again before that.
        await self._other_shards.announce_deleted(tenant)
        return await self._certify(erased)

    async def list(self, call: Call) -> Sequence[ErasureCertificate]:
        """Return the certificates of all erased tenants of all shards."""
        await self._admission.admit_platform(call, "list_erasures")
        return await self._other_shards.erasures(self._shard.erasure.certificates())

    async def get(self, call: Call, id: str) -> ErasureCertificate:
        """Return one certificate."""
        for one in await self.list(call):
            if one.id == id:
                return one
        raise NotFound("no such erasure")

    async def finish_pending(self) -> None:
        """Certify erasures that a crash or an error interrupted. Failures are retried after a minute."""
        self._retry = None
        erasures = self._shard.erasure.certificates()
        if erasures and self._backups is not None:
            try:
                await self._backups.refresh_data_keys()  # the directory may have been unavailable during the erasure
            except TenantqError as error:
                log.warning("backups may still contain data keys of erased tenants: %s", error)
        for erased in erasures:
            if not erased.certified_at and erased.id not in self._certifying:
                link = self._shard.journal.link_if_kept(erased.seq)
                try:
                    await self._certify(msgspec.structs.replace(erased, link=link.hex() if link is not None else ""))
                except TenantqError as error:
                    log.warning("tenant %s is erased, but its certificate is not written yet: %s", erased.tenant, error)

    def close(self) -> None:
        """Stop retrying. The next start continues."""
        self._closing = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    async def _certify(self, erased: ErasureCertificate) -> ErasureCertificate:
        self._certifying.add(erased.id)
        try:
            if self._backups is not None:
                await self._backups.refresh_data_keys()
            await self._shard.erasure.erase_bytes(erased.tenant_id)
            now_ms = self._shard.state.wall_ms()
            if self._signing_key is not None:
                certificate = erased.certified(self._signing_key, now_ms)
            else:
                certificate = msgspec.structs.replace(erased, certified_at=now_ms)
            await self._shard.submit(CertifyErasure(self._shard.state.platform, SYSTEM, certificate))
        except TenantqError:
            if self._retry is None and not self._closing:
                self._retry = self._clock.call_later(
                    CERTIFY_RETRY_MS, lambda: self._admission.in_background(self.finish_pending())
                )
            raise
        finally:
            self._certifying.discard(erased.id)
        return certificate
