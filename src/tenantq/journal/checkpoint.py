"""Signed checkpoints of the live journal, so that no part of its hash chain can be forged.

A checkpoint is stored next to the journal under the number of its record, in the same batch as that record. It signs the hash of that
record, and thereby everything before it.
"""

import logging
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final, Protocol

import msgspec

from tenantq.domain.limits import DAY_MS
from tenantq.domain.validation import between, validated
from tenantq.errors import StoreDamaged, TenantqError
from tenantq.journal.signing import PublicKey, PublicKeys, SignedDocument, SigningKey
from tenantq.runtime.clock import Clock, Timer

log = logging.getLogger("tenantq.journal")

CHECKPOINT_ROW: Final = b"checkpoint/"
"""Row in meta, followed by the record's number (be64)."""

CHECKPOINT_OP: Final = "checkpoint"
_TICK_MS: Final = 1_000


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often the live journal is signed."""

    checkpoint_records: Annotated[int, between(1, 1 << 40, "New records after which a checkpoint is signed.")] = 10_000
    checkpoint_ms: Annotated[
        int, between(1_000, 7 * DAY_MS, "Time after which a checkpoint is signed, if there are new records.")
    ] = 600_000


class JournalCheckpoint(SignedDocument, frozen=True, kw_only=True):
    """The signed hash of one record."""

    signature_prefix = b"checkpoint:"

    shard: str
    seq: int
    link: str  # the record's hash, hex
    ts: int

    def wrong(self, seq: int, link: bytes, key: PublicKey | PublicKeys | None) -> str:
        """Return what is wrong with it as the checkpoint of a record with this hash, or an empty text."""
        if self.seq != seq:
            return f"The checkpoint of record {seq} belongs to record {self.seq}."
        if key is not None and not self.is_signed_by(key):
            return f"The checkpoint of record {seq} is not signed by the server."
        if self.link != link.hex():
            return f"Record {seq} differs from the signed one: the chain up to it was rewritten."
        return ""


def sign(key: SigningKey, shard: str, seq: int, link: bytes, ts: int) -> bytes:
    """Return a signed checkpoint as it is stored."""
    return msgspec.json.encode(JournalCheckpoint(shard=shard, seq=seq, link=link.hex(), ts=ts).signed(key))


def unpack(value: bytes) -> JournalCheckpoint:
    """Return a stored checkpoint. Raises StoreDamaged."""
    return JournalCheckpoint.parse(value, "journal: cannot read a checkpoint", StoreDamaged)


class CheckpointedJournal(Protocol):
    """The journal of a running shard that can be signed."""

    @property
    def synced_span(self) -> tuple[int, int]:
        """The first record that is kept and the last that is durable."""

    def last_checkpoint(self) -> int:
        """Return the number of the last signed record; 0: none."""

    async def sign(self, key: SigningKey) -> None:
        """Write a checkpoint record and sign it."""


class Checkpointer:
    """Signs the journal after a number of records or a time."""

    def __init__(
        self,
        journal: CheckpointedJournal,
        key: SigningKey,
        clock: Clock,
        settings: AuditSettings,
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._journal = journal
        self._key = key
        self._clock = clock
        self._settings = validated(settings, "audit.")
        self._background = background
        self._timer: Timer | None = None
        self._signing = False
        # Cached: reading it every second would block the loop while the store does not answer.
        self._signed_seq: int | None = None
        self._signed_ms = clock.monotonic_ms()

    def start(self) -> None:
        """Start checking every second."""
        self._timer = self._clock.call_later(_TICK_MS, self._tick)

    async def close(self, *, to_end: bool = True) -> None:
        """Stop; sign the unsigned rest first, if requested, so that a closed store is covered to its end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            if to_end and self._unsigned():
                await self._sign()
        except TenantqError as error:
            log.warning("cannot sign the end of the journal: %s", error)

    def _unsigned(self) -> int:
        if self._signed_seq is None:  # not before: a handover would wait for it
            self._signed_seq = self._journal.last_checkpoint()
        return self._journal.synced_span[1] - self._signed_seq

    def _tick(self) -> None:
        self._timer = self._clock.call_later(_TICK_MS, self._tick)
        try:
            new, settings = self._unsigned(), self._settings
        except TenantqError:
            return  # the store does not answer, which the shard reports
        waited_ms = self._clock.monotonic_ms() - self._signed_ms
        if not self._signing and new and (new >= settings.checkpoint_records or waited_ms >= settings.checkpoint_ms):
            self._signing = True
            self._background(self._sign())

    async def _sign(self) -> None:
        try:
            await self._journal.sign(self._key)
            self._signed_seq = self._journal.last_checkpoint()
            self._signed_ms = self._clock.monotonic_ms()
        finally:
            self._signing = False
