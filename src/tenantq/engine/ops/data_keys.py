"""Wrapped data keys: store, replace and destroy them. Only the vault can unwrap them."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from tenantq.domain import limits
from tenantq.engine.arguments import ReasonArgument
from tenantq.engine.effects import Effects
from tenantq.engine.operation import Operation
from tenantq.engine.ops.suspension import freeze
from tenantq.engine.restrictions import Erasing
from tenantq.errors import Erased, Invalid
from tenantq.journal.erasure_certificate import DestroyedKey
from tenantq.journal.record import without_surrogates


def _check_data_key(value: bytes) -> None:
    """Raise Invalid unless a wrapped key has a valid length."""
    if type(value) is not bytes or not 1 <= len(value) <= limits.DATA_KEY_BYTES_MAX:
        raise Invalid(f"value: must be 1 to {limits.DATA_KEY_BYTES_MAX} bytes")


@dataclass(eq=False)
class PutDataKey(Operation[bool]):
    """Store a new key, unless one with its number exists. Replies whether it was stored."""

    number: limits.DataKeyNumber
    value: Annotated[bytes, _check_data_key]
    details: str = ""
    journal_op = "put_data_key"

    def execute(self, effects: Effects) -> None:
        """Write the row. Raises Erased if the tenant had keys that are gone, Invalid if the number was used before."""
        rows, tenant = effects.state.data_keys, self.tenant
        known = rows.of(tenant.id)
        if tenant.erasing is not None or (tenant.next_data_key and not known):
            raise Erased(tenant=tenant.name)
        self.reply = self.number not in known
        if self.reply and 0 < self.number < tenant.next_data_key:
            raise Invalid(f"number: {self.number} was used before (next: {tenant.next_data_key})", tenant=tenant.name)
        if self.reply:
            rows.put(effects.batch, tenant.id, self.number, self.value)
            tenant.next_data_key = max(tenant.next_data_key, self.number + 1)
            effects.state.catalog.save_tenant(effects.batch, tenant)
            effects.log_tenant("put_data_key", tenant, self.caller, f"{self.number}: {self.details}")


@dataclass(eq=False)
class ReplaceDataKey(Operation[bool]):
    """Store ``new`` in place of ``old``. Replies whether ``old`` was stored under this number."""

    number: limits.DataKeyNumber
    old: bytes
    new: Annotated[bytes, _check_data_key]
    details: str = ""
    journal_op = "replace_data_key"

    def execute(self, effects: Effects) -> None:
        rows, tenant = effects.state.data_keys, self.tenant
        self.reply = rows.of(tenant.id).get(self.number) == self.old
        if self.reply:
            rows.put(effects.batch, tenant.id, self.number, self.new)
            effects.log_tenant("replace_data_key", tenant, self.caller, f"{self.number}: {self.details}")


@dataclass(eq=False)
class DropDataKeys(Operation[int]):
    """Begin to delete a tenant: destroy all its keys and freeze it. Replies how many keys it had.

    Both are one batch. A crash afterwards leaves a tenant that is being deleted, not an active one with unreadable rows.
    """

    reason: ReasonArgument = ""
    journal_op = "drop_data_keys"

    def execute(self, effects: Effects) -> None:
        """Delete the rows and mark the tenant. Raises LegalHold if the tenant is under one."""
        tenant, rows = self.tenant, effects.state.data_keys
        tenant.check_hold()
        if tenant.erasing is not None:
            self.reply = 0
            return
        destroyed = sorted(rows.of(tenant.id).items())
        fingerprints = tuple(DestroyedKey(number, sha256(row).hexdigest()) for number, row in destroyed)
        tenant.erasing = Erasing(self.reason, without_surrogates(self.caller.principal), fingerprints)
        freeze(effects, tenant, self.caller, "the tenant is being deleted")
        self.reply = rows.drop(effects.batch, tenant.id)
        effects.log_tenant("drop_data_keys", tenant, self.caller, f"{self.reply} keys: {self.reason}")
