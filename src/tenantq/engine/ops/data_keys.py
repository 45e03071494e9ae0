"""Wrapped data keys: store, replace and destroy them. Only the vault knows what they contain."""

from __future__ import annotations

from dataclasses import dataclass

from tenantq.domain import limits
from tenantq.domain.validation import check_field
from tenantq.engine.arguments import check_reason
from tenantq.engine.effects import Effects
from tenantq.engine.operation import Operation
from tenantq.errors import Erased, Invalid


def _check_data_key(number: int, value: bytes) -> None:
    check_field("number", number, limits.DataKeyNumber)
    if type(value) is not bytes or not 1 <= len(value) <= limits.DATA_KEY_BYTES_MAX:
        raise Invalid(f"value: must be 1 to {limits.DATA_KEY_BYTES_MAX} bytes")


@dataclass(eq=False)
class PutDataKey(Operation[bool]):
    """Store a new key, unless one with its number exists. Replies whether it was stored."""

    number: int
    value: bytes
    details: str = ""
    journal_op = "put_data_key"

    def __post_init__(self) -> None:
        _check_data_key(self.number, self.value)

    def execute(self, effects: Effects) -> None:
        """Write the row. Raises Erased if the tenant's keys were destroyed."""
        rows, tenant = effects.state.data_keys, self.tenant
        if tenant.id in rows.destroyed:
            raise Erased(tenant=tenant.name)
        self.reply = self.number not in rows.of(tenant.id)
        if self.reply:
            rows.put(effects.batch, tenant.id, self.number, self.value)
            effects.log_tenant("put_data_key", tenant, self.caller, f"{self.number}: {self.details}")


@dataclass(eq=False)
class ReplaceDataKey(Operation[bool]):
    """Store ``new`` in place of ``old``. Replies whether ``old`` was what is stored under this number."""

    number: int
    old: bytes
    new: bytes
    details: str = ""
    journal_op = "replace_data_key"

    def __post_init__(self) -> None:
        _check_data_key(self.number, self.new)

    def execute(self, effects: Effects) -> None:
        """Write the row."""
        rows, tenant = effects.state.data_keys, self.tenant
        self.reply = rows.of(tenant.id).get(self.number) == self.old
        if self.reply:
            rows.put(effects.batch, tenant.id, self.number, self.new)
            effects.log_tenant("replace_data_key", tenant, self.caller, f"{self.number}: {self.details}")


@dataclass(eq=False)
class DropDataKeys(Operation[int]):
    """Destroy all keys of a tenant, so that nothing they encrypted can be read again. Replies how many there were."""

    reason: str = ""
    journal_op = "drop_data_keys"

    def __post_init__(self) -> None:
        check_reason(self.reason)

    def execute(self, effects: Effects) -> None:
        """Delete the rows. Raises LegalHold if the tenant is under one."""
        self.tenant.check_hold()
        self.reply = effects.state.data_keys.drop(effects.batch, self.tenant.id)
        effects.log_tenant("drop_data_keys", self.tenant, self.caller, f"{self.reply} keys: {self.reason}")
