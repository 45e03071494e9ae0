"""Verifies the live journal record by record: its chain, its checkpoints and its exported archive."""

from collections.abc import Callable, Mapping

from tenantq.errors import StoreDamaged
from tenantq.journal.checkpoint import CHECKPOINT_OP, JournalCheckpoint, unpack
from tenantq.journal.record import HASH_BYTES, Record, decode_record
from tenantq.journal.signing import PublicKey, PublicKeys


class ChainWalk:
    """Checks the rows of a journal in order, starting after ``seq``, and reports the first record of each break.

    ``found`` is called with a record's number and a sentence. ``archive`` has the hashes of exported records.
    """

    def __init__(
        self,
        seq: int,
        link: bytes,
        found: Callable[[int, str], None],
        *,
        key: PublicKey | PublicKeys | None = None,
        archive: Mapping[int, bytes] | None = None,
    ) -> None:
        self.seq = seq
        self.link = link
        self.records = 0
        self._report = found
        self._broken = False  # since the last checkpoint
        self._key = key
        self._archive = archive or {}
        self._checkpoints: dict[int, JournalCheckpoint] = {}
        self._signed_seq = seq  # the chain is signed up to here

    def expect_checkpoint(self, seq: int, value: bytes) -> None:
        """Add a checkpoint to compare with its record."""
        try:
            self._checkpoints[seq] = unpack(value)
        except StoreDamaged:
            self._found(seq, f"The checkpoint of record {seq} is unreadable.")

    def record(self, key: bytes, value: bytes) -> Record | None:
        """Check the next row. Returns its record if it is readable."""
        if len(key) != 8:
            self._found(self.seq + 1, f"An invalid row was inserted after record {self.seq}.")
            return None
        at = int.from_bytes(key)
        self.records += 1
        if at != self.seq + 1:
            self._found(self.seq + 1, f"Records {self.seq + 1} to {at - 1} are missing.")
        link, record = value[:HASH_BYTES], None
        try:
            _, record = decode_record(value, self.link if at == self.seq + 1 else None)
            if record.seq != at:
                self._found(at, f"Record {record.seq} is in the place of record {at}.")
        except StoreDamaged:
            self._found(at, f"Record {at} was changed, or does not follow record {at - 1}.")
        archived = self._archive.get(at)
        if archived is not None and archived != link:
            self._found(at, f"Record {at} differs from the exported one.")
        self.seq, self.link = at, link
        self._compare_checkpoint(at, link, record)
        return record

    def _compare_checkpoint(self, at: int, link: bytes, record: Record | None) -> None:
        checkpoint = self._checkpoints.pop(at, None)
        if checkpoint is None:
            if record is not None and any(
                entry.op == CHECKPOINT_OP and entry.outcome == "ok" for entry in record.entries
            ):
                self._found(at, f"The checkpoint of record {at} was removed.")
            return
        wrong = checkpoint.wrong(at, link, self._key)
        if wrong:
            # If nothing broke since the last checkpoint, any record after that one may be the first forged one.
            forged = checkpoint.seq == at and checkpoint.link != link.hex() and not self._broken
            self._found(self._signed_seq + 1 if forged else at, wrong)
        self._signed_seq, self._broken = at, False

    def _found(self, seq: int, text: str) -> None:
        self._broken = True
        self._report(seq, text)

    def end(self, *others: tuple[int, str]) -> None:
        """Report records missing at the end, according to checkpoints and to the ``others`` (last record, witness)."""
        ends = [(seq, "a checkpoint") for seq in self._checkpoints if seq > self.seq] + list(others)
        last, witness = max(ends, default=(0, ""))
        if last > self.seq:
            self._found(
                self.seq + 1, f"Records {self.seq + 1} to {last} are missing at the end, according to {witness}."
            )
        for seq in sorted(self._checkpoints):
            if seq < self.seq:
                self._found(seq, f"Record {seq} is missing, but has a checkpoint.")
