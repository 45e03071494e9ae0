"""The exporter: turns the journal into segments, exactly once, then lets the shard trim it.

The manifests at the target are the watermark: what they cover is exported, and nothing else is. A segment is written, then its
manifest, then the head; a crash in between leaves a segment that no manifest names, which the next run writes anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import multiprocessing
import os
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol, Self

import msgspec

from tenantq.domain.quotas import HOUR_MS
from tenantq.errors import Invalid, StoreDamaged, TenantqError
from tenantq.journal.export_settings import ExportSettings, check_export
from tenantq.journal.manifest import Head, Manifest, manifest_names, read_head, read_manifest, segment_name
from tenantq.journal.record import decode_record
from tenantq.journal.segment import encode_stored
from tenantq.runtime.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from tenantq.journal.export_target import ExportTarget
    from tenantq.journal.segment_index import SegmentIndex
    from tenantq.journal.signing import SigningKey
    from tenantq.runtime.clock import Clock, Timer

log = logging.getLogger("tenantq.journal")

_RETRY_MS_MAX: Final = 60_000
_PAGE: Final = 64
_RECORDS_HERE_MAX: Final = 500  # about 20 ms of work


class JournalSource(Protocol):
    """The journal of a running shard."""

    @property
    def shard_name(self) -> str:
        """The shard's name."""

    @property
    def journal_synced(self) -> tuple[int, int]:
        """The first record that is kept and the last that is durable."""

    @property
    def journal_bytes(self) -> int:
        """Bytes of all records that were written since it was opened."""

    @property
    def journal_span(self) -> tuple[int, int]:
        """The first record that is kept and the last that was written."""

    def scan_journal(self, first_seq: int, last_seq: int, limit: int) -> list[tuple[int, bytes]]:
        """Return up to ``limit`` records that are there, in order, as they are stored. Safe from any thread."""

    def journal_link(self, seq: int) -> bytes:
        """Return the hash of a record that is kept or was the last one trimmed."""

    async def trim_journal(self, upto_seq: int) -> None:
        """Drop records that were exported."""


class _Encoder:
    """Encodes segments: small ones here, large ones in a process of low priority, so that callers do not wait for the interpreter."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def encode(self, records: list[bytes]) -> tuple[bytes, int]:
        """Return the bytes of a segment and its rows, from records as they are stored."""
        if len(records) <= _RECORDS_HERE_MAX:
            return encode_stored(records)
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, initializer=os.nice, initargs=(10,))
        try:
            return self._pool.submit(encode_stored, records).result()
        except BrokenExecutor:  # somebody ended the process
            self._pool = None
            return encode_stored(records)


class _Part:
    """Records that go into one segment, as they are stored: decoded they would be many small objects, which the interpreter lets go at once."""

    __slots__ = ("last_link", "last_seq", "records", "rows", "size", "times")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.times: list[int] = []
        self.rows = self.size = self.last_seq = 0
        self.last_link = b""

    def takes(self, stored: bytes, settings: ExportSettings) -> bool:
        """Take the next record, unless it is of another hour or there is no room for it; the first one always."""
        link, record = decode_record(stored)
        rows = sum(max(1, len(entry.ids) // 16) for entry in record.entries)
        if self.records and (
            self.size >= settings.segment_bytes
            or self.rows + rows > settings.segment_rows
            or record.ts // HOUR_MS != self.times[0] // HOUR_MS
        ):
            return False
        self.records.append(stored)
        self.times.append(record.ts)
        self.rows += rows
        self.size += len(stored)
        self.last_link, self.last_seq = link, record.seq
        return True


class Exporter:
    """Exports one shard's journal, beside its work."""

    def __init__(
        self,
        source: JournalSource,
        target: ExportTarget,
        key: SigningKey,
        clock: Clock,
        settings: ExportSettings,
        index: SegmentIndex | None = None,
    ) -> None:
        """Prepare an export; ``index`` is told of every segment."""
        self._source = source
        self._target = target
        self._key = key
        self._clock = clock
        self._settings = check_export(settings)
        self._index = index
        self._timer: Timer | None = None
        self._running: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._failures = 0
        self._found_watermark = False
        self._waiting_bytes = 0  # of records that waited when they were last measured ...
        self._measured_bytes = 0  # ... and what had been written by then
        self.exported_seq = 0
        self.failures_total = 0
        self.segments_total = 0
        self.rows_total = 0
        self.failure = ""  # why the last attempt failed; empty: it did not

    @property
    def lag_records(self) -> int:
        """How many durable records wait for their export."""
        return max(0, self._source.journal_synced[1] - self.exported_seq)

    @property
    def lag_bytes(self) -> int:
        """How many bytes of records wait for their export."""
        return max(0, self._waiting_bytes + self._source.journal_bytes - self._measured_bytes)

    @property
    def is_behind(self) -> bool:
        """Whether so much waits that no more messages may be taken."""
        return self.lag_bytes > self._settings.journal_lag_max_bytes

    async def start(self) -> None:
        """Find out how far the export is, and go on from there now and then. A target that is away is asked again later.

        Raise StoreDamaged or Invalid if what is at the target is not this journal's.
        """
        try:
            await self._look()
        except OSError as error:
            self._failed(error)
            log.warning("the journal's target is not there yet: %s", error)
        self._later(self._settings.every_ms)

    async def close(self) -> None:
        """Export to the end of the journal, if the target takes it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)
        try:
            await self.export_now()
        except Exception as error:  # noqa: BLE001  # whatever it is, the store has to be closed in good order
            log.warning("the journal is not exported to its end; the next start goes on: %s", error)

    async def export_now(self) -> None:
        """Export everything that is durable now, segment by segment; one call after the other, so that nothing is written twice."""
        async with self._turn:
            if not self._found_watermark:
                await self._look()
            end = self._source.journal_synced[1]
            with _Encoder() as encoder:
                while self.exported_seq < end:
                    await asyncio.to_thread(self._export_one, end, encoder)
            await self._trim()

    async def _look(self) -> None:
        """Find out how far the export is, and how much waits for it; where the target is away, all that is kept does."""
        first, last = self._source.journal_span
        written = self._source.journal_bytes
        try:
            await asyncio.to_thread(self._find_watermark)
            first = self.exported_seq + 1
        finally:
            self._waiting_bytes = await asyncio.to_thread(self._sum_bytes, first, last)
            self._measured_bytes = written

    # ---- in time ----

    def _later(self, delay_ms: int) -> None:
        self._timer = self._clock.call_later(delay_ms, self._begin)

    def _begin(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.export_now()
        except (TenantqError, OSError) as error:
            self._failed(error)
            waiting = self.lag_records
            log.error("the journal cannot be exported; %d records wait, none is lost: %s", waiting, error)  # noqa: TRY400  # no trace for what a disk or network did
        except Exception as error:
            self._failed(error)  # an error of ours: it must neither end the export for good nor stay unseen
            log.exception("the journal cannot be exported; %d records wait, none is lost", self.lag_records)
        else:
            self._failures, self.failure = 0, ""
        every_ms = self._settings.every_ms
        self._later(int(Backoff(every_ms, max(every_ms, _RETRY_MS_MAX)).ceiling_ms(self._failures + 1)))

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self.failures_total += 1
        self.failure = _shown(error)

    async def _trim(self) -> None:
        first, _ = self._source.journal_synced
        upto = self.exported_seq - self._settings.keep_records
        if upto - first >= self._settings.keep_records // 4 and upto >= first:
            await self._source.trim_journal(upto)

    # ---- on a thread ----

    def _find_watermark(self) -> None:
        """Take the manifests' word for what is exported, after looking whether they belong to this journal."""
        first, last = self._source.journal_synced
        names = manifest_names(self._target, self._source.shard_name)
        self._remove_strays(names)
        if not names:
            if first > 1:
                raise Invalid(
                    f"export: the journal begins at record {first}, but no segment of the earlier ones is at the target; "
                    "set export.target to where they were exported"
                )
            self.exported_seq, self._found_watermark = 0, True
            return
        newest = read_manifest(self._target, names[-1])
        seq = newest.last_seq
        if seq > last:
            raise StoreDamaged(
                f"export: record {seq} was exported, but the journal ends at {last}: an older copy of the store"
            )
        if seq + 1 < first:
            raise StoreDamaged(f"export: records {seq + 1} to {first - 1} were trimmed, but no segment holds them")
        if seq >= first - 1 and self._source.journal_link(seq).hex() != newest.last_link:
            raise StoreDamaged(
                f"export: the segments at the target are those of another journal (record {seq} differs)"
            )
        self.exported_seq, self._found_watermark = seq, True

    def _sum_bytes(self, first_seq: int, last_seq: int) -> int:
        total = 0
        while first_seq <= last_seq and (page := self._source.scan_journal(first_seq, last_seq, _PAGE)):
            total += sum(len(value) for _, value in page)
            first_seq = page[-1][0] + 1
        return total

    def _remove_strays(self, names: list[str]) -> None:
        """Remove segments of this shard that no manifest names: a crash came before it was written."""
        known = {name.rpartition("/")[2].removesuffix(".json") for name in names}
        mine = f"/shard={self._source.shard_name}/"
        for name in self._target.names(""):
            if (
                name.endswith(".parquet")
                and mine in name
                and name.rpartition("/")[2].removesuffix(".parquet") not in known
            ):
                log.warning("removing %s, which was left unfinished", name)
                self._target.delete(name)

    def _export_one(self, end: int, encoder: _Encoder) -> None:
        """Write the next segment: up to a full one, the hour's end, or ``end``."""
        self._check_head()
        first = self.exported_seq + 1
        part = self._next_part(first, end)
        data, rows = encoder.encode(part.records)
        file = segment_name(self._source.shard_name, part.times[0], first, part.last_seq)
        manifest = Manifest(
            shard=self._source.shard_name,
            first_seq=first,
            last_seq=part.last_seq,
            records=len(part.records),
            rows=rows,
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            previous_link=self._source.journal_link(first - 1).hex(),
            last_link=part.last_link.hex(),
            min_ts=min(part.times),
            max_ts=max(part.times),
            file=file,
            key_id=self._key.public.id,
        )
        manifest = msgspec.structs.replace(manifest, signature=self._key.sign(manifest.signed_text()))
        head = Head(shard=manifest.shard, last_seq=part.last_seq, last_link=manifest.last_link, key_id=manifest.key_id)
        head = msgspec.structs.replace(head, signature=self._key.sign(head.signed_text()))
        self._target.write(file, data)
        self._target.write(manifest.name, msgspec.json.encode(manifest, order="sorted"))
        self._target.write(head.name, msgspec.json.encode(head, order="sorted"))
        self.exported_seq = part.last_seq
        self._waiting_bytes -= part.size
        if self._index is not None:
            self._index.add(manifest)
        self.segments_total += 1
        self.rows_total += rows

    def _check_head(self) -> None:
        """Raise StoreDamaged if another server has exported to the target meanwhile: one would write over the other's segments."""
        head = read_head(self._target, self._source.shard_name)
        if head is None:
            return
        first, _ = self._source.journal_synced
        mine = head.last_seq <= self.exported_seq and (
            head.last_seq < first - 1 or self._source.journal_link(head.last_seq).hex() == head.last_link
        )
        if not mine:
            raise StoreDamaged(
                f"export: another server has written to the target, up to record {head.last_seq}; give each its own export.target"
            )

    def _next_part(self, first: int, end: int) -> _Part:
        """Return the records from ``first`` on that belong into one segment: one hour, no more rows and bytes than allowed."""
        part = _Part()
        for stored in self._stored(first, end):
            if not part.takes(stored, self._settings):
                break
        if not part.records:
            raise StoreDamaged(f"journal: record {first} is missing")
        return part

    def _stored(self, seq: int, end: int) -> Iterator[bytes]:
        """Yield records in order, as they are stored, until one is missing."""
        while page := self._source.scan_journal(seq, end, _PAGE):
            for found, stored in page:
                if found != seq:
                    return
                yield stored
                seq += 1


def _shown(error: Exception) -> str:
    """Return why an export failed as anybody may read it: neither paths nor addresses, which the log has."""
    if isinstance(error, TenantqError):
        return error.message
    said = error.strerror if isinstance(error, OSError) else None
    return said or f"{type(error).__name__}; see the server's log"
