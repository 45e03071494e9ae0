"""The steps of the commit that applies a batch in Redis."""

from collections.abc import Iterable
from typing import Final

from tenantq.store.change_batch import NUMBER, ChangeBatch
from tenantq.store.keys import FAMILIES
from tenantq.store.redis.layout import (
    GROUPED,
    JOURNAL,
    PLACE_BYTES,
    Layout,
    covers,
    entry_bounds,
    entry_id,
    lex_bounds,
)

_SLICE: Final = 2_000
"""Most arguments of one step: Lua takes less than 8,000, and a step may double them."""
_MARKS: Final = (b"", b"\x01")
"""The values that a row of an order family can have."""


def groups_with_rows(batch: ChangeBatch) -> set[bytes]:
    """Return the prefixes of the queues that get rows."""
    return {key[:8] for name in GROUPED for key, value in batch.changed[NUMBER[name]].items() if value is not None}


class Steps:
    """The keys and arguments of one commit."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.keys: list[bytes] = [layout.state]
        self._places: dict[bytes, bytes] = {layout.state: b"1"}
        self.arguments: list[bytes] = []

    def place(self, key: bytes) -> bytes:
        """Return the position of a key in KEYS."""
        place = self._places.get(key)
        if place is None:
            self.keys.append(key)
            place = self._places[key] = b"%d" % len(self.keys)
        return place

    def add(self, step: bytes, one: bytes, two: bytes, arguments: list[bytes]) -> None:
        """Add a step on one or two keys. A long one is split."""
        place_one, place_two = self.place(one), self.place(two)
        for first in range(0, len(arguments) or 1, _SLICE):
            part = arguments[first : first + _SLICE]
            self.arguments += (step, place_one, place_two, b"%d" % len(part), *part)

    # ---- whole batches ----

    def take(
        self, batch: ChangeBatch, registered: Iterable[bytes], kept: dict[tuple[str, bytes], tuple[bytes, bytes]]
    ) -> None:
        """Add all changes of a batch. Keys in ``kept`` are renamed instead of unlinked."""
        layout = self._layout
        for key, value in batch.changed[NUMBER[JOURNAL]].items():  # first: Redis may refuse it
            if value is not None:
                self.add(b"journal", layout.journal, layout.journal, [entry_id(key), value])
        for number, lower, upper in batch.ranges:
            self._range(FAMILIES[number], lower, upper, registered, kept)
        for number, rows in enumerate(batch.changed):
            if rows:
                self._rows(FAMILIES[number], rows)

    def _range(
        self,
        family: str,
        lower: bytes,
        upper: bytes,
        registered: Iterable[bytes],
        kept: dict[tuple[str, bytes], tuple[bytes, bytes]],
    ) -> None:
        layout = self._layout
        if family == JOURNAL:
            assert not any(lower), "the journal is trimmed from its beginning"
            first = entry_bounds(upper, upper)[0]
            self.add(b"trim", layout.journal, layout.journal, [first])
            return
        for group in registered if family in GROUPED else (b"",):
            bounds = lex_bounds(family, group, lower, upper)
            if bounds is None:
                continue
            rows, index = layout.rows(family, group), layout.index(family, group)
            if family in GROUPED and covers(lower, upper, group):
                names = kept.get((family, group))
                if names is None:
                    self.add(b"unlink", rows, index, [])
                else:
                    # One key that is rows and index at once is read as the index.
                    for live, name in dict(zip((rows, index), names, strict=True)).items():
                        self.add(b"keep", live, name, [self.place(layout.kept)])
            elif family in PLACE_BYTES:
                self.add(b"places", index, index, list(bounds))
            else:
                self.add(b"range", rows, index, list(bounds))

    def _rows(self, family: str, rows: dict[bytes, bytes | None]) -> None:
        layout = self._layout
        if family == JOURNAL:
            gone = [entry_id(key) for key, value in rows.items() if value is None]
            if gone:
                self.add(b"forget", layout.journal, layout.journal, gone)
            return
        by_group: dict[bytes, tuple[list[bytes], list[bytes]]] = {}
        width = 8 if family in GROUPED else 0
        is_order, marked = family in PLACE_BYTES, family == "vi"
        for key, value in rows.items():
            group, member = key[:width], key[width:]
            gone_and_put = by_group.get(group)
            if gone_and_put is None:
                gone_and_put = by_group[group] = ([], [])
            gone, put = gone_and_put
            if not is_order:
                if value is None:
                    gone.append(member)
                else:
                    put += (member, value)
                continue
            assert len(member) <= PLACE_BYTES[family]
            gone += [member + mark for mark in (_MARKS if marked else _MARKS[:1]) if mark != value]
            if value is not None:
                put.append(member + value)
        for group, (gone, put) in by_group.items():
            one, index = layout.rows(family, group), layout.index(family, group)
            if gone:
                self.add(b"leave" if is_order else b"delete", one, index, gone)
            if put:
                self.add(b"enter" if is_order else b"put", one, index, put)


def touched(batch: ChangeBatch, family: str, lower: bytes, upper: bytes) -> list[bytes]:
    """Return the keys in [lower, upper) that a batch changes individually."""
    return [key for key in batch.changed[NUMBER[family]] if lower <= key < upper]
