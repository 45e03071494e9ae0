"""A shard's journal: reading, signing and trimming it."""

from collections.abc import Sequence
from typing import Annotated, Final

from tenantq.domain.message import SYSTEM
from tenantq.domain.validation import between, check_field
from tenantq.engine.ops.access import NoteEntries
from tenantq.engine.ops.journal import SignJournal, TrimJournal
from tenantq.engine.round_loop import RoundLoop
from tenantq.errors import StoreDamaged, TenantqError
from tenantq.journal.checkpoint import CHECKPOINT_ROW
from tenantq.journal.record import ANCHOR_KEY, GENESIS, JournalEntry
from tenantq.journal.signing import SigningKey
from tenantq.store.keys import after, be64, from_be64

CHECKPOINTS_MAX: Final = 100_000


class ShardJournal:
    """The journal of an open shard. ``scan`` and ``checkpoints`` are safe from any thread."""

    def __init__(self, loop: RoundLoop) -> None:
        self._loop = loop
        self._state, self._store = loop.state, loop.state.store
        self._journal = loop.state.journal
        self.shard_name = loop.state.shard

    @property
    def span(self) -> tuple[int, int]:
        """The first and last sequence number that the journal holds."""
        return self._journal.first, self._journal.seq

    @property
    def synced_span(self) -> tuple[int, int]:
        return self._journal.first, self._journal.synced_seq

    @property
    def size(self) -> int:
        """The bytes of the records written since the start."""
        return self._journal.bytes

    def scan(self, first_seq: int, last_seq: int, limit: int) -> list[tuple[int, bytes]]:
        page = self._store.scan_items(self._store.jn, be64(first_seq), be64(last_seq + 1), limit)
        return [(from_be64(key), value) for key, value in page]

    def link(self, seq: int) -> bytes:
        """Return the hash of a record that the journal holds, or of the one before its first."""
        if seq == 0:
            return GENESIS
        value = self._store.get(self._store.jn, be64(seq))
        if value is not None:
            return value[: len(GENESIS)]
        anchor = self._store.get(self._store.meta, ANCHOR_KEY)
        if anchor is None or from_be64(anchor) != seq:
            raise StoreDamaged(f"journal: record {seq} is missing")
        return anchor[8 : 8 + len(GENESIS)]

    def link_if_kept(self, seq: int) -> bytes | None:
        """Return the hash of a record, or None if it was trimmed."""
        return self.link(seq) if seq >= self._journal.first - 1 else None

    def last_checkpoint(self) -> int:
        """Return the last signed record, or 0 if the journal holds none."""
        found = self._store.last_item(self._store.meta, CHECKPOINT_ROW, after(CHECKPOINT_ROW))
        return from_be64(found[0][len(CHECKPOINT_ROW) :]) if found is not None else 0

    def checkpoints(self, first_seq: int) -> list[tuple[int, bytes]]:
        """Return checkpoints from a record on, as they are stored, at most CHECKPOINTS_MAX of them."""
        lower = CHECKPOINT_ROW + be64(first_seq)
        page = self._store.scan_items(self._store.meta, lower, after(CHECKPOINT_ROW), CHECKPOINTS_MAX)
        return [(from_be64(key[len(CHECKPOINT_ROW) :]), value) for key, value in page]

    async def note(self, entries: Sequence[JournalEntry]) -> None:
        """Journal what happened before the engine, such as calls that the gates refused."""
        if entries:
            await self._loop.submit(NoteEntries(self._state.platform, SYSTEM, entries))

    async def sign(self, key: SigningKey) -> None:
        """Sign the journal up to now, in a separate record."""
        await self._loop.submit(SignJournal(self._state.platform, SYSTEM, key))

    async def trim(self, upto_seq: int) -> None:
        """Drop journal records up to ``upto_seq``, which were exported. The chain continues from an anchor."""
        self._loop.check_open()
        journal = self._journal
        check_field("upto_seq", upto_seq, Annotated[int, between(journal.first, journal.seq)])
        before, journal.first = (
            journal.first,
            upto_seq + 1,
        )  # before the await, because another call may trim at the same time
        try:
            await self._loop.submit(TrimJournal(self._state.platform, SYSTEM, upto_seq))
        except TenantqError:
            journal.first = before
            raise
