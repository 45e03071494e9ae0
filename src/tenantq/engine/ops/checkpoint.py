"""Sign the journal: a checkpoint of the very record that tells of it, in the same batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.engine.operation import Operation
from tenantq.journal.checkpoint import CHECKPOINT_OP

if TYPE_CHECKING:
    from tenantq.domain.message import Caller
    from tenantq.engine.queue_state import TenantState
    from tenantq.engine.round import Round
    from tenantq.journal.signing import SigningKey


class PutCheckpoint(Operation):
    """Have the round's record signed when it is sealed."""

    __slots__ = ("key",)
    journal_op = "checkpoint"

    def __init__(self, system: TenantState, caller: Caller, key: SigningKey) -> None:
        super().__init__(system, caller)
        self.key = key

    def execute(self, round: Round) -> None:
        """Note it in the record; the signature follows with the record's hash."""
        round.signing_key = self.key
        round.log_tenant(CHECKPOINT_OP, self.tenant, self.caller, f"signed by {self.key.public.id}")
