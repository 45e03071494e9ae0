"""The exporter: writes the journal to segments, exactly once. The shard can then trim it.

The manifests at the target are the watermark: exactly what they cover is exported. A segment is written first, then its manifest, then
the head. A crash in between leaves a segment without a manifest, which the next run deletes and writes again.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from tenantq.domain.validation import validated
from tenantq.errors import Invalid, StoreDamaged, TenantqError
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.export_target import ExportTarget
from tenantq.journal.manifest import ExportHead, Manifest, manifest_names, read_head, read_manifest, segment_name
from tenantq.journal.record import LiveJournal, decode_record
from tenantq.journal.segment_batch import SegmentBatch
from tenantq.journal.segment_index import SegmentIndex
from tenantq.journal.segment_process import encode_segment
from tenantq.journal.signing import SigningKey
from tenantq.runtime.backoff import Backoff
from tenantq.runtime.clock import Clock, Timer

log = logging.getLogger("tenantq.journal")

_RETRY_MS_MAX: Final = 60_000
_PAGE: Final = 64


class JournalSource(LiveJournal, Protocol):
    """The journal of a running shard, as the exporter uses it."""

    @property
    def shard_name(self) -> str:
        """The shard's name."""

    @property
    def size(self) -> int:
        """Bytes of all records written since the journal was opened."""

    @property
    def span(self) -> tuple[int, int]:
        """The first record that is kept and the last that was written."""

    def link(self, seq: int) -> bytes:
        """Return the hash of a record that is kept or was the last one trimmed."""

    async def trim(self, upto_seq: int) -> None:
        """Drop exported records."""


class Exporter:
    """Exports the journal of one running shard."""

    def __init__(
        self,
        source: JournalSource,
        target: ExportTarget,
        key: SigningKey,
        clock: Clock,
        settings: ExportSettings,
        index: SegmentIndex | None = None,
    ) -> None:
        """``index`` is updated with every segment."""
        self._source = source
        self._target = target
        self._key = key
        self._clock = clock
        self._settings = validated(settings, "export.")
        self._index = index
        self._timer: Timer | None = None
        self._running: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._failures = 0
        self._found_watermark = False  # and nothing has failed since
        self._is_known = False  # whether ``exported_seq`` was read from the target
        self._lag_from = 0  # the first record that counts as lag; 0 before the first measurement
        self._waiting_bytes = 0  # of records that waited at the last measurement ...
        self._measured_bytes = 0  # ... and ``journal_bytes`` at that time
        self.exported_seq = 0
        self.failures_total = 0
        self.segments_total = 0
        self.rows_total = 0
        self.failure = ""  # error of the last attempt, or empty

    @property
    def lag_records(self) -> int:
        """Durable records that are not exported yet."""
        return max(0, self._source.synced_span[1] - self.exported_seq)

    @property
    def lag_bytes(self) -> int:
        """Bytes of records that are not exported yet."""
        return max(0, self._waiting_bytes + self._source.size - self._measured_bytes)

    @property
    def is_behind(self) -> bool:
        """Whether the lag exceeds its limit, so that no more messages may be accepted."""
        return self.lag_bytes > self._settings.journal_lag_max_bytes

    async def start(self) -> None:
        """Find the watermark and export regularly from there. An unreachable target is retried later.

        Raises StoreDamaged or Invalid if the target holds another journal.
        """
        try:
            await self._find_lag()
        except OSError as error:
            self._failed(error)
            log.warning("cannot reach the export target, retrying: %s", error)
        self._schedule(self._settings.every_ms)

    async def close(self, *, to_end: bool = True) -> None:
        """Stop; export to the end of the journal first, with the record of its last trim, if requested and the target is reachable."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running is not None:
            await asyncio.wait([self._running])  # cancelling the caller does not stop it
        if not to_end:
            return
        try:
            await self.export_now()
            async with self._turn:
                await self._export()
        except Exception as error:  # noqa: BLE001  # the store must be closed cleanly in any case
            log.warning("the journal was not exported to its end; the next start continues: %s", error)

    async def export_now(self) -> None:
        """Export everything that is durable now, segment by segment, and trim. Concurrent calls run one after the other."""
        async with self._turn:
            await self._export()
            await self._trim()

    async def _export(self) -> None:
        if not self._found_watermark:
            await self._find_lag()
        end = self._source.synced_span[1]
        while self.exported_seq < end:
            self._found_watermark = False  # a segment that fails half-way is removed before the next attempt
            await asyncio.to_thread(self._export_one, end)
            self._found_watermark = True

    async def _find_lag(self) -> None:
        """Find the watermark and measure the lag. Until the target is reachable for the first time, all stored records count."""
        first, last = self._source.span
        written = self._source.size
        try:
            await asyncio.to_thread(self._find_watermark)
        finally:
            if self._is_known:
                first = self.exported_seq + 1
            if first != self._lag_from:  # otherwise it is known: reading all waiting records again takes long
                self._waiting_bytes = await asyncio.to_thread(self._sum_bytes, first, last)
                self._measured_bytes, self._lag_from = written, first

    # ---- schedule ----

    def _schedule(self, delay_ms: int) -> None:
        self._timer = self._clock.call_later(delay_ms, self._begin)

    def _begin(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.export_now()
        except (TenantqError, OSError) as error:
            self._failed(error)
            waiting = self.lag_records
            log.error("cannot export the journal; %d records are waiting, none is lost: %s", waiting, error)  # noqa: TRY400  # no traceback for a failed disk or network
        except Exception as error:
            self._failed(error)  # a bug must neither end the export nor stay unnoticed
            log.exception("cannot export the journal; %d records are waiting, none is lost", self.lag_records)
        else:
            self._failures, self.failure = 0, ""
        every_ms = self._settings.every_ms
        self._schedule(int(Backoff(every_ms, max(every_ms, _RETRY_MS_MAX)).ceiling_ms(self._failures + 1)))

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self.failures_total += 1
        self.failure = _shown(error)

    async def _trim(self) -> None:
        first, _ = self._source.synced_span
        upto = self.exported_seq - self._settings.keep_records
        if upto - first >= self._settings.keep_records // 4 and upto >= first:
            await self._source.trim(upto)

    # ---- on a thread ----

    def _find_watermark(self) -> None:
        """Read the watermark from the manifests, after checking that they belong to this journal."""
        first, last = self._source.synced_span
        names = manifest_names(self._target, self._source.shard_name)
        if not names:
            if first > 1:
                raise Invalid(
                    f"export: the journal starts at record {first}, but the target has no earlier segments. "
                    "Set export.target to where they were exported."
                )
            self._begin_after(0)
            return
        newest = read_manifest(self._target, names[-1])
        seq = newest.last_seq
        if seq > last:
            raise StoreDamaged(
                f"export: record {seq} was exported, but the journal ends at {last}. The store is an older copy."
            )
        if seq + 1 < first:
            raise StoreDamaged(f"export: records {seq + 1} to {first - 1} were trimmed, but no segment contains them")
        if seq >= first - 1 and self._source.link(seq).hex() != newest.last_link:
            raise StoreDamaged(f"export: the segments at the target belong to another journal (record {seq} differs)")
        previous, was_known = self.exported_seq, self._is_known
        self._begin_after(seq)
        if self._index is not None:
            self._index.add(newest)  # the last attempt may have failed right after its manifest
        if was_known and seq > previous:
            self.segments_total += 1
            self.rows_total += newest.rows

    def _begin_after(self, seq: int) -> None:
        """Export the records after ``seq`` from now on. Delete a segment without a manifest that a crash left behind."""
        for _, stored in self._source.scan(seq + 1, seq + 1, 1):
            record = decode_record(stored)[1]
            directory = segment_name(self._source.shard_name, record.ts, seq + 1, seq + 1).rpartition("/")[0]
            for name in self._target.names(directory):
                if name.rpartition("/")[2].startswith(f"{seq + 1:020d}-"):
                    log.warning("removing the unfinished segment %s", name)
                    self._target.delete(name)
        self.exported_seq, self._found_watermark, self._is_known = seq, True, True

    def _sum_bytes(self, first_seq: int, last_seq: int) -> int:
        total = 0
        while first_seq <= last_seq and (page := self._source.scan(first_seq, last_seq, _PAGE)):
            total += sum(len(value) for _, value in page)
            first_seq = page[-1][0] + 1
        return total

    def _export_one(self, end: int) -> None:
        """Write the next segment, up to its maximum size, the end of the hour, or ``end``."""
        self._check_head()
        first = self.exported_seq + 1
        batch = self._next_batch(first, end)
        data, rows = encode_segment(batch.records)
        file = segment_name(self._source.shard_name, batch.times[0], first, batch.last_seq)
        manifest = Manifest(
            shard=self._source.shard_name,
            first_seq=first,
            last_seq=batch.last_seq,
            records=len(batch.records),
            rows=rows,
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            previous_link=self._source.link(first - 1).hex(),
            last_link=batch.last_link.hex(),
            min_ts=min(batch.times),
            max_ts=max(batch.times),
            file=file,
        ).signed(self._key)
        head = ExportHead(shard=manifest.shard, last_seq=batch.last_seq, last_link=manifest.last_link).signed(self._key)
        self._target.write(file, data)
        self._target.write(manifest.name, msgspec.json.encode(manifest, order="sorted"))
        self._target.write(head.name, msgspec.json.encode(head, order="sorted"))
        self.exported_seq = batch.last_seq
        self._lag_from = batch.last_seq + 1
        self._waiting_bytes -= batch.size
        if self._index is not None:
            self._index.add(manifest)
        self.segments_total += 1
        self.rows_total += rows

    def _check_head(self) -> None:
        """Raise StoreDamaged if another server exports to the same target: they would overwrite each other's segments."""
        head = read_head(self._target, self._source.shard_name)
        if head is None:
            return
        first, _ = self._source.synced_span
        mine = head.last_seq <= self.exported_seq and (
            head.last_seq < first - 1 or self._source.link(head.last_seq).hex() == head.last_link
        )
        if not mine:
            raise StoreDamaged(
                f"export: another server writes to the same target (up to record {head.last_seq}). Give each server its own export.target."
            )

    def _next_batch(self, first: int, end: int) -> SegmentBatch:
        """Return the records of the next segment: of one hour, within the limits of rows and bytes."""
        batch = SegmentBatch()
        for stored in self._stored(first, end):
            if not batch.add(stored, self._settings):
                break
        if not batch.records:
            raise StoreDamaged(f"journal: record {first} is missing")
        return batch

    def _stored(self, seq: int, end: int) -> Iterator[bytes]:
        """Yield stored records in order until one is missing."""
        while page := self._source.scan(seq, end, _PAGE):
            for found, stored in page:
                if found != seq:
                    return
                yield stored
                seq += 1


def _shown(error: Exception) -> str:
    """Return the error without paths and addresses, which only the log may show."""
    if isinstance(error, TenantqError):
        return error.message
    text = error.strerror if isinstance(error, OSError) else None
    return text or f"{type(error).__name__}; see the server log"
