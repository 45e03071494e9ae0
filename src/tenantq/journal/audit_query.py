"""The audit query: pages of rows of the live journal and of exported segments, in either order.

A place is (seq, n) of a row. It never changes, so a cursor stays valid while new records arrive and old ones move from the store to
segments. One call does a bounded amount of work: it may return few rows, or none, and a place to continue.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from tenantq.domain import limits
from tenantq.errors import Invalid, Unavailable
from tenantq.journal.record import JournalPosition, JournalRow, LiveJournal, decode_record, rows
from tenantq.journal.row_filter import JournalFilter
from tenantq.journal.segment_index import SegmentIndex, SegmentSpan

log = logging.getLogger("tenantq.journal")


END_OF_RECORD: Final = 1 << 62
"""Used as n: after every row of a record."""

_SLICE: Final = 64  # live records at a time
_SEGMENTS_MAX: Final = 64  # opened per call
_GROUPS_MAX: Final = 16  # row groups decoded per call
_SPANS_MAX: Final = 200_000  # segments skipped by their hour per call


class JournalPage(msgspec.Struct, frozen=True):
    """Some rows and the place to continue; None: no more rows now."""

    rows: list[JournalRow]
    more: JournalPosition | None = None
    incomplete: bool = False  # older records are in unreachable segments


class Cursor(msgspec.Struct, frozen=True):
    """The end of a page and the direction of the next one."""

    seq: int
    n: int
    newest_first: bool = False

    def __str__(self) -> str:
        return f"{'-' if self.newest_first else ''}{self.seq}.{self.n}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse a cursor. Raises Invalid."""
        newest_first = type(text) is str and text.startswith("-")
        seq, dot, n = text.removeprefix("-").partition(".") if type(text) is str else ("", "", "")
        if not (dot and seq.isascii() and seq.isdigit() and n.isascii() and n.isdigit() and len(text) <= 41):
            raise Invalid("cursor: not a cursor of this audit trail")
        if int(seq) >= END_OF_RECORD or int(n) > END_OF_RECORD:
            raise Invalid("cursor: not a cursor of this audit trail")
        return cls(int(seq), int(n), newest_first)


class AuditReader:
    """Reads pages. ``segments`` None: nothing was exported. Blocks, so it must not run on the event loop."""

    def __init__(self, live: LiveJournal, segments: SegmentIndex | None) -> None:
        self._live = live
        self._segments = segments

    def page(
        self,
        wanted: JournalFilter,
        *,
        limit: int,
        place: JournalPosition | None = None,
        newest_first: bool = False,
        first_seq: int = 1,
    ) -> JournalPage:
        """Return up to ``limit`` matching rows after ``place`` in the given order, from record ``first_seq`` on."""
        search = _PageSearch(self._live, self._segments, wanted, limit, first_seq)
        return search.newest_first(place) if newest_first else search.oldest_first(place)


class _PageSearch:
    """The search for one page."""

    def __init__(
        self, live: LiveJournal, segments: SegmentIndex | None, wanted: JournalFilter, limit: int, first_seq: int
    ) -> None:
        self._live = live
        self._segments = segments
        self._wanted = wanted
        self._needles = wanted.needles()
        self._limit = limit
        self._first_seq = first_seq
        self._found: list[JournalRow] = []
        self._incomplete = False
        self._records_left = limits.TRACE_RECORDS_MAX
        self._segments_left = _SEGMENTS_MAX
        self._groups_left = _GROUPS_MAX
        self._spans_left = _SPANS_MAX

    @property
    def _exhausted(self) -> bool:
        return min(self._records_left, self._segments_left, self._groups_left, self._spans_left) <= 0

    def oldest_first(self, place: JournalPosition | None) -> JournalPage:
        low = (
            max(place, (self._first_seq - 1, END_OF_RECORD))
            if place is not None
            else (self._first_seq - 1, END_OF_RECORD)
        )
        while not self._exhausted:
            first, last = self._live.synced_span
            seq = low[0] if low[1] < END_OF_RECORD else low[0] + 1
            if seq > last:
                return self._page(None)
            span = self._span(seq) if seq < first else None
            if span is not None and span.first_seq < first:
                self._incomplete |= span.first_seq > seq
                low = self._from_segment(span, low, (span.last_seq, END_OF_RECORD), newest_first=False)
            elif seq < first:
                self._note_missing(seq, first)
                low = (first - 1, END_OF_RECORD)
            else:
                low = self._from_live(low, seq, min(last, seq + _SLICE - 1), newest_first=False)
            if len(self._found) >= self._limit:
                break
        return self._page(low)

    def newest_first(self, place: JournalPosition | None) -> JournalPage:
        _, last = self._live.synced_span
        high = min(place, (last + 1, 0)) if place is not None else (last + 1, 0)
        while not self._exhausted:
            first, _ = self._live.synced_span
            seq = high[0] if high[1] > 0 else high[0] - 1
            if seq < self._first_seq:
                return self._page(None)
            if seq >= first:
                low_seq = max(first, self._first_seq, seq - _SLICE + 1)
                high = self._from_live(high, low_seq, seq, newest_first=True)
            else:
                span = self._span(seq, or_before=True)
                if span is None:
                    self._note_missing(self._first_seq, seq + 1)
                    return self._page(None)
                self._incomplete |= span.last_seq < seq
                high = self._from_segment(span, (max(span.first_seq, self._first_seq), -1), high, newest_first=True)
            if len(self._found) >= self._limit:
                break
        return self._page(high)

    def _page(self, more: JournalPosition | None) -> JournalPage:
        return JournalPage(self._found, more, self._incomplete)

    def _note_missing(self, first_seq: int, end_seq: int) -> None:
        self._incomplete = True
        log.warning(
            "audit: records %d to %d are neither in the store nor in the segments at export.target",
            first_seq,
            end_seq - 1,
        )

    # ---- the live journal ----

    def _from_live(
        self, bound: JournalPosition, first_seq: int, last_seq: int, *, newest_first: bool
    ) -> JournalPosition:
        """Collect rows of a slice beyond ``bound``. Returns the place from which to continue."""
        records = self._live.scan(first_seq, last_seq, _SLICE)
        if not records or records[0][0] != first_seq:
            if self._live.synced_span[0] > first_seq:
                return bound  # it was trimmed meanwhile and is in a segment now
            self._incomplete = True
        self._records_left -= last_seq - first_seq + 1
        step = -1 if newest_first else 1
        for seq, value in records[::step]:
            for row in self._matching(value)[::step]:
                place = seq, row.n
                if (place < bound if newest_first else place > bound) and self._add(row):
                    return place
        return (first_seq, 0) if newest_first else (last_seq, END_OF_RECORD)

    def _matching(self, value: bytes) -> list[JournalRow]:
        if not all(any(needle in value for needle in needles) for needles in self._needles):
            return []
        return [row for row in rows(decode_record(value)[1]) if self._wanted.matches(row)]

    def _add(self, row: JournalRow) -> bool:
        """Add a row. Returns whether the page is full."""
        self._found.append(row)
        return len(self._found) >= self._limit

    # ---- segments ----

    def _span(self, seq: int, *, or_before: bool = False) -> SegmentSpan | None:
        """Return the segment of a record, or else the next (or previous) one; None: there is none."""
        if self._segments is None:
            return None
        try:
            return self._segments.at_or_before(seq) if or_before else self._segments.at(seq)
        except OSError as error:
            log.warning("audit: cannot list the segments: %s", error)
            raise Unavailable("older rows are in segments, which are unreachable now. Try again later.") from error

    def _from_segment(
        self, span: SegmentSpan, low: JournalPosition, high: JournalPosition, *, newest_first: bool
    ) -> JournalPosition:
        """Collect rows of a segment between two places. Returns the place from which to continue."""
        done = (span.first_seq, 0) if newest_first else (span.last_seq, END_OF_RECORD)
        self._spans_left -= 1
        if span.is_outside(self._wanted.start, self._wanted.end):
            return done
        assert self._segments is not None
        self._segments_left -= 1
        try:
            from tenantq.journal.segment_rows import SegmentRows  # noqa: PLC0415  # needs pyarrow, which is an extra

            with self._segments.target.open(span.file) as stream:
                for group in SegmentRows(stream, self._wanted).groups(low, high, newest_first=newest_first):
                    self._groups_left -= 1
                    for row in group:
                        if self._add(row):
                            return row.seq, row.n
        except ImportError as error:
            raise Unavailable(
                "older rows are in segments. On the server, run pip install '.[parquet]' in the checkout."
            ) from error
        except (OSError, ValueError) as error:
            raise Unavailable(
                f"cannot read the segment {span.file}. Try again, or run tenantq audit verify."
            ) from error
        return done
