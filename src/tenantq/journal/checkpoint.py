"""Signed checkpoints of the live journal: what its chain was at a record, so that nobody can make a part of it anew.

A checkpoint stands in the store beside the journal, at its record's number, written in the same batch as the record, which tells of it.
It signs the hash of that very record, and with it everything before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from tenantq.domain.message import check_int
from tenantq.errors import StoreDamaged, TenantqError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from tenantq.journal.signing import PublicKey, PublicKeys, SigningKey
    from tenantq.runtime.clock import Clock, Timer

log = logging.getLogger("tenantq.journal")

CHECKPOINT_ROW: Final = b"checkpoint/"
"""meta: followed by the record's number (be64)."""

CHECKPOINT_OP: Final = "checkpoint"
_TICK_MS: Final = 1_000


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often the live journal is signed."""

    checkpoint_records: int = 10_000  # new records after which there is a checkpoint
    checkpoint_ms: int = 600_000  # ... and the time after which there is one, if there are any


def check_audit(settings: AuditSettings) -> AuditSettings:
    """Return ``settings`` if each is in its range, else raise Invalid."""
    check_int("audit.checkpoint_records", settings.checkpoint_records, 1, 1 << 40)
    check_int("audit.checkpoint_ms", settings.checkpoint_ms, 1_000, 7 * 86_400_000)
    return settings


class JournalCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What is signed of one record."""

    shard: str
    seq: int
    link: str  # the record's hash, hex
    ts: int
    key_id: str = ""
    signature: str = ""

    def signed_text(self) -> bytes:
        """Return the bytes that are signed: everything but the signature."""
        return b"checkpoint:" + msgspec.json.encode(msgspec.structs.replace(self, signature=""), order="sorted")

    def wrong(self, seq: int, link: bytes, key: PublicKey | PublicKeys | None) -> str:
        """Return what is wrong with it as the checkpoint of a record with this hash, or nothing."""
        if self.seq != seq:
            return f"The checkpoint of record {seq} is that of record {self.seq}."
        if key is not None and not key.verifies(self.signature, self.signed_text()):
            return f"The checkpoint of record {seq} is not signed by the server."
        if self.link != link.hex():
            return f"Record {seq} is not the one that was signed: the chain up to it was made anew."
        return ""


def sign(key: SigningKey, shard: str, seq: int, link: bytes, ts: int) -> bytes:
    """Return a checkpoint as it is stored."""
    plain = JournalCheckpoint(shard=shard, seq=seq, link=link.hex(), ts=ts, key_id=key.public.id)
    return msgspec.json.encode(msgspec.structs.replace(plain, signature=key.sign(plain.signed_text())))


def unpack(value: bytes) -> JournalCheckpoint:
    """Return a stored checkpoint, or raise StoreDamaged."""
    try:
        return msgspec.json.decode(value, type=JournalCheckpoint)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"journal: a checkpoint is unreadable: {error}") from error


class CheckpointedJournal(Protocol):
    """The journal of a running shard, which can be signed."""

    @property
    def journal_synced(self) -> tuple[int, int]:
        """The first record that is kept and the last that is durable."""

    def last_checkpoint(self) -> int:
        """Return the record that was signed last; 0: none."""

    async def put_checkpoint(self, key: SigningKey) -> None:
        """Sign the journal with a record of its own."""


class Checkpointer:
    """Has the journal signed every so many records, or so much time."""

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
        self._settings = check_audit(settings)
        self._background = background
        self._timer: Timer | None = None
        self._signing = False
        self._signed_seq = (
            0  # kept here: asking the store every second would hold everything up while it does not answer
        )
        self._signed_ms = clock.monotonic_ms()

    def start(self) -> None:
        """Look every second from now on."""
        self._signed_seq = self._journal.last_checkpoint()
        self._timer = self._clock.call_later(_TICK_MS, self._tick)

    async def close(self) -> None:
        """Sign what is not signed yet, so that a store that was closed is covered to its end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            if self._unsigned():
                await self._sign()
        except TenantqError as error:
            log.warning("the end of the journal is not signed: %s", error)

    def _unsigned(self) -> int:
        return self._journal.journal_synced[1] - self._signed_seq

    def _tick(self) -> None:
        self._timer = self._clock.call_later(_TICK_MS, self._tick)
        new, settings = self._unsigned(), self._settings
        waited_ms = self._clock.monotonic_ms() - self._signed_ms
        if not self._signing and new and (new >= settings.checkpoint_records or waited_ms >= settings.checkpoint_ms):
            self._signing = True
            self._background(self._sign())

    async def _sign(self) -> None:
        try:
            await self._journal.put_checkpoint(self._key)
            self._signed_seq = self._journal.last_checkpoint()
            self._signed_ms = self._clock.monotonic_ms()
        finally:
            self._signing = False
