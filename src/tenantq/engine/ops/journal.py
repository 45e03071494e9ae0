"""Operations on the journal: sign it, and trim exported records."""

from dataclasses import dataclass

from tenantq.engine.effects import Effects
from tenantq.engine.operation import Operation
from tenantq.errors import StoreDamaged
from tenantq.journal.checkpoint import CHECKPOINT_OP, CHECKPOINT_ROW
from tenantq.journal.record import ANCHOR_KEY, decode_record
from tenantq.journal.signing import SigningKey
from tenantq.store.keys import be64


@dataclass(eq=False)
class SignJournal(Operation[None]):
    """Sign the journal up to the record that reports the signature, in the same batch."""

    key: SigningKey
    journal_op = "checkpoint"

    def execute(self, effects: Effects) -> None:
        effects.signing_key = self.key
        effects.log_tenant(CHECKPOINT_OP, self.tenant, self.caller, f"signed by {self.key.public.id}")


@dataclass(eq=False)
class TrimJournal(Operation[None]):
    """Drop the records up to ``upto_seq``, which were exported. The chain continues from an anchor."""

    upto_seq: int
    journal_op = "trim_journal"

    def execute(self, effects: Effects) -> None:
        """Write the anchor and delete the range."""
        store = effects.store
        value = store.get(store.jn, be64(self.upto_seq))
        if value is None:
            raise StoreDamaged(f"journal: record {self.upto_seq} is missing")
        link, record = decode_record(value)
        anchor = be64(self.upto_seq) + link + be64(record.engine_ms) + record.last_id
        effects.batch.put(ANCHOR_KEY, anchor, store.meta.handle)
        effects.batch.delete_range(be64(0), be64(self.upto_seq + 1), store.jn.handle)
        signed = (CHECKPOINT_ROW + be64(0), CHECKPOINT_ROW + be64(self.upto_seq + 1))
        effects.batch.delete_range(*signed, store.meta.handle)
        effects.log_tenant("trim_journal", self.tenant, self.caller, f"up to {self.upto_seq}")
