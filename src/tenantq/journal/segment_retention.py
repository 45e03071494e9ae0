"""Retention of exported segments: removes old ones, oldest first, and leaves a signed statement of what was removed.

The removal is journaled first, then the statement is written, then the files are deleted. A crash in between leaves files that the
statement covers, which the next run deletes. So an archive that starts late is either covered by a statement or was truncated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from tenantq.domain.limits import DAY_MS, HOUR_MS
from tenantq.errors import TenantqError
from tenantq.journal.export_target import ExportTarget
from tenantq.journal.manifest import manifest_name, read_manifest
from tenantq.journal.record import JournalEntry
from tenantq.journal.segment_index import SegmentIndex, SegmentSpan
from tenantq.journal.signing import SignedDocument, SigningKey
from tenantq.runtime.clock import Clock

log = logging.getLogger("tenantq.journal")

INGESTED: Final = "ingested"
"""Directory of the target in which pipelines note what they have processed."""


class RemovedSegments(SignedDocument, frozen=True, kw_only=True):
    """The records that were removed with their segments, because their retention ended."""

    signature_prefix = b"tenantq removed segments\n"

    shard: str
    upto_seq: int  # the last record that was removed
    link: str  # its hash, hex
    at: int  # wall clock

    @property
    def name(self) -> str:
        """The statement's file name."""
        return removed_name(self.shard)

    @property
    def journaled(self) -> str:
        """How the details of its row in the journal begin."""
        return f"{self.upto_seq}:{self.link}"


class Ingested(msgspec.Struct, frozen=True):
    """The last record of a shard that a pipeline has processed."""

    lake: str
    last_seq: int


def removed_name(shard: str) -> str:
    """Return the file name of a shard's statement."""
    return f"removed/shard={shard}.json"


def read_removed(target: ExportTarget, shard: str) -> RemovedSegments | None:
    """Return a shard's statement, or None. Raises Invalid if it is unreadable."""
    name = removed_name(shard)
    try:
        return RemovedSegments.parse(target.read(name), f"{name}: not a statement of removed segments")
    except FileNotFoundError:
        return None


class SegmentRetention:
    """Removes old segments of one shard."""

    def __init__(
        self,
        index: SegmentIndex,
        key: SigningKey,
        clock: Clock,
        keep_days: int,
        note: Callable[[list[JournalEntry]], Awaitable[None]],
        first_kept: Callable[[], Awaitable[int | None]],
    ) -> None:
        """``first_kept`` returns the first record that must stay for other reasons than its age, or None."""
        self._index, self._target, self._key, self._clock = index, index.target, key, clock
        self._keep_days, self._note, self._first_kept = keep_days, note, first_kept

    async def run(self, turn: asyncio.Lock) -> None:
        """Apply the retention every hour until cancelled. ``turn`` is held meanwhile."""
        while True:
            passed = asyncio.Event()
            self._clock.call_later(HOUR_MS, passed.set)
            await passed.wait()
            try:
                async with turn:
                    await self.apply()
            except (TenantqError, OSError) as error:
                log.warning("cannot remove old segments, retrying in an hour: %s", error)
            except Exception:
                log.exception("cannot remove old segments, retrying in an hour")

    async def apply(self) -> int:
        """Remove the segments whose time is over, and return how many."""
        await asyncio.to_thread(self._finish)
        before = self._clock.wall_ms() - self._keep_days * DAY_MS
        bound = await self._first_kept()
        old = await asyncio.to_thread(self._removable, before, bound)
        if not old:
            return 0
        newest = await asyncio.to_thread(read_manifest, self._target, self._manifest(old[-1]))
        statement = RemovedSegments(
            shard=self._index.shard, upto_seq=newest.last_seq, link=newest.last_link, at=self._clock.wall_ms()
        ).signed(self._key)
        details = f"{statement.journaled}: {len(old)} segments older than {self._keep_days} days"
        await self._note([JournalEntry("remove_segments", "", "", "system", details=details)])
        await asyncio.to_thread(self._remove, statement)
        return len(old)

    def _manifest(self, span: SegmentSpan) -> str:
        return manifest_name(self._index.shard, span.first_seq, span.last_seq)

    def _removable(self, before: int, bound: int | None) -> list[SegmentSpan]:
        """Return the oldest segments that are old enough, that nothing else needs, and that every pipeline has processed."""
        notes = (self._target.read(name) for name in self._target.names(f"{INGESTED}/shard={self._index.shard}"))
        bounds = [msgspec.json.decode(note, type=Ingested).last_seq + 1 for note in notes]
        bounds += [bound] if bound is not None else []
        return [one for one in self._index.older_than(before) if one.last_seq < min(bounds, default=one.last_seq + 1)]

    def _finish(self) -> None:
        """Delete segments that a statement covers and a crash has left."""
        statement = read_removed(self._target, self._index.shard)
        if statement is not None:
            self._delete(statement.upto_seq)

    def _remove(self, statement: RemovedSegments) -> None:
        self._target.write(statement.name, msgspec.json.encode(statement, order="sorted"))
        self._delete(statement.upto_seq)

    def _delete(self, upto_seq: int) -> None:
        for span in self._index.drop_upto(upto_seq):
            self._target.delete(self._manifest(span))  # first: a manifest without its segment looks like tampering
            self._target.delete(span.file)
