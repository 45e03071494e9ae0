"""Trim the journal: records that were exported go, and the chain goes on from an anchor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.engine.operation import Operation
from tenantq.errors import StoreDamaged
from tenantq.journal.checkpoint import CHECKPOINT_ROW
from tenantq.journal.record import ANCHOR_KEY, decode_record
from tenantq.store.keys import be64

if TYPE_CHECKING:
    from tenantq.domain.message import Caller
    from tenantq.engine.queue_state import TenantState
    from tenantq.engine.round import Round


class TrimJournal(Operation):
    """Drop the records up to a sequence number and remember the last one's hash."""

    __slots__ = ("upto_seq",)
    journal_op = "trim_journal"

    def __init__(self, system: TenantState, caller: Caller, upto_seq: int) -> None:
        super().__init__(system, caller)
        self.upto_seq = upto_seq

    def execute(self, round: Round) -> None:
        """Write the anchor and delete the range."""
        store = round.store
        value = store.get(store.jn, be64(self.upto_seq))
        if value is None:
            raise StoreDamaged(f"journal: record {self.upto_seq} is missing")
        link, record = decode_record(value)
        anchor = be64(self.upto_seq) + link + be64(record.engine_ms) + record.last_id
        round.batch.put(ANCHOR_KEY, anchor, store.meta.handle)
        round.batch.delete_range(be64(0), be64(self.upto_seq + 1), store.jn.handle)
        signed = (CHECKPOINT_ROW + be64(0), CHECKPOINT_ROW + be64(self.upto_seq + 1))
        round.batch.delete_range(*signed, store.meta.handle)
        round.log_tenant("trim_journal", self.tenant, self.caller, f"up to {self.upto_seq}")
