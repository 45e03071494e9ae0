"""Maps records to segments and their hours, by file names alone."""

import re
import threading
from array import array
from bisect import bisect_left, bisect_right
from datetime import UTC, datetime
from itertools import takewhile
from typing import Final

import msgspec

from tenantq.domain.limits import HOUR_MS
from tenantq.journal.export_target import ExportTarget
from tenantq.journal.manifest import Manifest, segment_name

_SEGMENT: Final = re.compile(r"date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/shard=([^/]+)/(\d{20})-(\d{20})\.parquet")
_MANIFEST: Final = re.compile(r"manifest/shard=([^/]+)/(\d{20})-(\d{20})\.json")


class SegmentSpan(msgspec.Struct, frozen=True):
    """One segment: its records, its hour, its file."""

    first_seq: int
    last_seq: int
    hour_at: int  # wall clock; start of the hour of all its records
    file: str

    def is_outside(self, start: int | None, end: int | None) -> bool:
        """Return whether none of its records can be in [start, end) of the wall clock."""
        return (start is not None and self.hour_at + HOUR_MS <= start) or (end is not None and self.hour_at >= end)


class SegmentIndex:
    """The segments of one shard at a target, 24 bytes each in memory. Listed once, then updated by the exporter."""

    def __init__(self, target: ExportTarget, shard: str) -> None:
        self.target = target
        self.shard = shard
        self._lock = threading.Lock()
        self._firsts, self._lasts, self._hours = array("q"), array("q"), array("q")
        self._listed = False

    def add(self, manifest: Manifest) -> None:
        """Add a segment that was just written. Thread-safe."""
        with self._lock:
            if self._listed and (not self._lasts or manifest.first_seq > self._lasts[-1]):
                self._append(manifest.first_seq, manifest.last_seq, manifest.min_ts - manifest.min_ts % HOUR_MS)

    def at(self, seq: int) -> SegmentSpan | None:
        """Return the segment of a record, or else the first one after it."""
        with self._lock:
            self._list()
            return self._span(bisect_left(self._lasts, seq))

    def at_or_before(self, seq: int) -> SegmentSpan | None:
        """Return the segment of a record, or else the last one before it."""
        with self._lock:
            self._list()
            return self._span(bisect_right(self._firsts, seq) - 1)

    def older_than(self, before: int) -> list[SegmentSpan]:
        """Return the oldest segments, up to the first with records of the wall clock ``before`` or later; never the newest one."""
        with self._lock:
            self._list()
            spans = (self._span(place) for place in range(len(self._firsts) - 1))
            return list(takewhile(lambda span: span.hour_at + HOUR_MS <= before, filter(None, spans)))

    def drop_upto(self, seq: int) -> list[SegmentSpan]:
        """Forget the segments that end at ``seq`` or before, and return them."""
        with self._lock:
            self._list()
            count = bisect_right(self._lasts, seq)
            dropped = [span for place in range(count) if (span := self._span(place)) is not None]
            for column in (self._firsts, self._lasts, self._hours):
                del column[:count]
            return dropped

    def _span(self, place: int) -> SegmentSpan | None:
        if not 0 <= place < len(self._firsts):
            return None
        first, last, hour_at = self._firsts[place], self._lasts[place], self._hours[place]
        return SegmentSpan(first, last, hour_at, segment_name(self.shard, hour_at, first, last))

    def _append(self, first: int, last: int, hour_at: int) -> None:
        self._firsts.append(first)
        self._lasts.append(last)
        self._hours.append(hour_at)

    def _list(self) -> None:
        """List the target on first use. Only segments with a manifest count."""
        if self._listed:
            return
        names = self.target.names("")
        known = {found.groups() for name in names if (found := _MANIFEST.fullmatch(name)) is not None}
        spans = sorted(
            (int(found[4]), int(found[5]), _hour_at(found[1], found[2]))
            for name in names
            if (found := _SEGMENT.fullmatch(name)) is not None
            and found[3] == self.shard
            and found.groups()[2:] in known
        )
        for span in spans:
            if not self._lasts or span[0] > self._lasts[-1]:
                self._append(*span)
        self._listed = True


def _hour_at(date: str, hour: str) -> int:
    return int(datetime.fromisoformat(f"{date}T{hour}:00:00").replace(tzinfo=UTC).timestamp()) * 1_000
