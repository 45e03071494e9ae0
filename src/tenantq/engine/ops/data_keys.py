"""Wrapped data keys: stored, exchanged and destroyed. What stands in them is the vault's business."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.engine.operation import Operation
from tenantq.errors import Erased

if TYPE_CHECKING:
    from tenantq.domain.message import Caller
    from tenantq.engine.queue_state import TenantState
    from tenantq.engine.round import Round


class PutDataKey(Operation):
    """Store a new key, unless there is one of its number."""

    __slots__ = ("details", "number", "value")
    journal_op = "put_data_key"

    def __init__(self, tenant: TenantState, caller: Caller, number: int, value: bytes, details: str) -> None:
        super().__init__(tenant, caller)
        self.number = number
        self.value = value
        self.details = details

    def execute(self, round: Round) -> None:
        """Reply whether it was stored."""
        rows, tenant = round.core.data_keys, self.tenant
        if tenant.id in rows.destroyed:
            raise Erased(tenant=tenant.name)
        self.reply = self.number not in rows.of(tenant.id)
        if self.reply:
            rows.put(round.batch, tenant.id, self.number, self.value)
            round.log_tenant("put_data_key", tenant, self.caller, f"{self.number}: {self.details}")


class ReplaceDataKey(Operation):
    """Store a key in place of another of its number, if that is the one that stands there."""

    __slots__ = ("details", "new", "number", "old")
    journal_op = "replace_data_key"

    def __init__(self, tenant: TenantState, caller: Caller, number: int, old: bytes, new: bytes, details: str) -> None:
        super().__init__(tenant, caller)
        self.number = number
        self.old = old
        self.new = new
        self.details = details

    def execute(self, round: Round) -> None:
        """Reply whether it was exchanged."""
        rows, tenant = round.core.data_keys, self.tenant
        self.reply = rows.of(tenant.id).get(self.number) == self.old
        if self.reply:
            rows.put(round.batch, tenant.id, self.number, self.new)
            round.log_tenant("replace_data_key", tenant, self.caller, f"{self.number}: {self.details}")


class DropDataKeys(Operation):
    """Destroy all keys of a tenant: whatever they sealed cannot be read again."""

    __slots__ = ("reason",)
    journal_op = "drop_data_keys"

    def __init__(self, tenant: TenantState, caller: Caller, reason: str) -> None:
        super().__init__(tenant, caller)
        self.reason = reason

    def execute(self, round: Round) -> None:
        """Reply how many there were."""
        self.tenant.check_hold()
        self.reply = round.core.data_keys.drop(round.batch, self.tenant.id)
        round.log_tenant("drop_data_keys", self.tenant, self.caller, f"{self.reply} keys: {self.reason}")
