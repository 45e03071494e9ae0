"""Encryption keys of a tenant: shows, rotates and rewraps them."""

from tenantq.engine.queue_state import TenantState
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict
from tenantq.journal.record import entry_of
from tenantq.service.admission import Admission
from tenantq.service.admitted_call import AdmittedCall
from tenantq.service.call import Call
from tenantq.service.encryption import MessageEncryption
from tenantq.wire.tenants import DataKeyItem, EncryptionReply


class EncryptionKeys:
    """Manages the data keys of a tenant."""

    def __init__(self, shard: Shard, admission: Admission, encryption: MessageEncryption) -> None:
        self._shard, self._admission, self._encryption = shard, admission, encryption

    async def get(self, call: Call, tenant: str | None) -> EncryptionReply:
        """Return the encryption settings of a tenant, its data keys, and the health of its key."""
        with await self._admission.admit(call, tenant, "get_encryption") as admitted:
            self._admission.notes.note_view(admitted.caller, admitted.tenant, "get_encryption")
            return self._reply(admitted.state)

    async def rotate(self, call: Call, tenant: str | None) -> EncryptionReply:
        """Create a new data key for new messages. Stored messages stay as they are and readable."""
        with await self._admission.admit(call, tenant, "rotate_keys") as admitted:
            with self._admission.notes.noting_failure(admitted.caller, admitted.tenant, "rotate_keys"):
                self._check_encrypted(admitted.state)
                number = await self._encryption.rotate(admitted.state)
            return await self._journal("rotate_keys", admitted, f"data key {number} is in use")

    async def rewrap(self, call: Call, tenant: str | None) -> EncryptionReply:
        """Wrap all data keys again with the tenant's current key. No message is touched."""
        with await self._admission.admit(call, tenant, "rewrap_keys") as admitted:
            with self._admission.notes.noting_failure(admitted.caller, admitted.tenant, "rewrap_keys"):
                self._check_encrypted(admitted.state)
                count, key = await self._encryption.rewrap(admitted.state)
            return await self._journal("rewrap_keys", admitted, f"{count} keys wrapped by {key}")

    def _check_encrypted(self, tenant: TenantState) -> None:
        if not tenant.config.encryption.enabled and tenant.id not in self._shard.state.data_keys.by_tenant:
            raise Conflict("encryption: not enabled for this tenant", tenant=tenant.name)

    async def _journal(self, action: str, admitted: AdmittedCall, details: str) -> EncryptionReply:
        await self._shard.journal.note([entry_of(action, admitted.tenant, admitted.caller, details)])
        return self._reply(admitted.state)

    def _reply(self, tenant: TenantState) -> EncryptionReply:
        wanted, keys = tenant.config.encryption, self._encryption.data_keys(tenant)
        used = wanted.enabled or bool(keys)
        health = self._encryption.health_of(tenant) if used else None
        return EncryptionReply(
            tenant=tenant.name,
            enabled=wanted.enabled,
            key=str(self._encryption.key_of(tenant.name, wanted)) if used else wanted.key,
            key_state=health.state if health is not None else "unknown",
            key_error=health.text if health is not None and health.state != "ok" else None,
            secret_attributes=wanted.secret_attributes,
            rotate_every_ms=wanted.rotate_every_ms,
            next_rotation_at=keys[-1].created_at + wanted.rotate_every_ms if wanted.enabled and keys else None,
            data_keys=[
                DataKeyItem(number=one.number, key=str(one.key), created_at=one.created_at, uses=one.uses)
                for one in keys
            ],
        )
