"""Reading rows from Redis: by key, in order, and group by group."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tenantq.errors import StoreFailed
from tenantq.store.keys import after
from tenantq.store.redis.layout import (
    GROUPED,
    JOURNAL,
    PLACE_BYTES,
    Layout,
    entry_bounds,
    entry_key,
    group_of,
    lex_bounds,
)
from tenantq.store.redis.link import RedisCommand, Script, SlotLink
from tenantq.store.redis.ownership import Ownership

_ITEMS = Script("items")
_AHEAD: Final = ("meta", "qc")
"""The families that an opening shard reads, besides the end of its journal."""
_AHEAD_ROWS_MAX: Final = 2_000
_AHEAD_BYTES_MAX: Final = 1 << 20
_KEYS_PER_PAGE: Final = 1_000
_LAST: Final = b"\xff" * 9


class ReadPage(msgspec.Struct, frozen=True):
    """Rows in order; ``more``: more rows may follow."""

    rows: list[tuple[bytes, bytes]]
    more: bool


class RedisRowReader:
    """Reads one shard's rows through one link. Every reply includes the shard's owner: rows of another owner are not used."""

    def __init__(self, link: SlotLink, layout: Layout, prefixes: set[bytes], owner: Ownership | None) -> None:
        """Prepare. Without ``owner``, ownership is not checked."""
        self._link, self._layout, self._owner = link, layout, owner
        self._prefixes = prefixes  # of all queues that may have rows; the store keeps it
        self._owned: RedisCommand = ("HMGET", layout.state, "epoch", "commit", "holder")
        self._ahead: dict[str, tuple[list[bytes], dict[bytes, bytes]]] = {}  # by family: all keys, and all rows
        self._newest: list[tuple[bytes, bytes]] | None = None  # the last record of the journal, if it was read ahead

    def read_ahead(self, *commands: RedisCommand) -> list[Any]:
        """Read what an opening shard needs, unless it is large, and return the replies to further commands: all in one request.

        Reads use these rows until the shard has loaded its state, or until ``forget_ahead``.
        """
        layout = self._layout
        limits = (b"-", b"+", b"%d" % _AHEAD_ROWS_MAX, b"%d" % _AHEAD_BYTES_MAX)
        wanted = [_ITEMS.call((layout.rows(family, b""), layout.index(family, b"")), limits) for family in _AHEAD]
        newest: RedisCommand = ("XREVRANGE", layout.journal, "+", "-", "COUNT", 1)
        *found, entries = self._calls([*commands, *wanted, newest], (_ITEMS,))
        for family, (names, values, more) in zip(_AHEAD, found[len(commands) :], strict=True):
            if not more:
                self._ahead[family] = (names, dict(zip(names, values, strict=True)))
        self._newest = [journal_row(entry) for entry in entries]
        return found[: len(commands)]

    def forget_ahead(self) -> None:
        """Read all rows from the store again."""
        self._ahead, self._newest = {}, None

    def _rows_ahead(self, family: str) -> tuple[list[bytes], dict[bytes, bytes]] | None:
        if self._owner is not None and self._owner.lease.is_watched:
            self.forget_ahead()
        return self._ahead.get(family)

    def _calls(self, commands: list[RedisCommand], scripts: tuple[Script, ...] = ()) -> list[Any]:
        """Send commands. If the store does not respond, or has another owner, this ownership ends.

        Rows that were read with an expired lease may be outdated, so the lease is renewed before they are returned.
        """
        if self._owner is None:
            return self._link.calls(commands, scripts=scripts)
        commit = self._owner.commit
        try:
            *answers, owned = self._link.calls([*commands, self._owned], scripts=scripts)
            self._owner.check_seen(owned, commit)
            if self._owner.lease.is_doubtful:
                self._owner.hold()
        except StoreFailed as error:
            self._owner.lease.fail(error)
            raise
        return answers

    def _call(self, *command: bytes | str | int) -> Any:
        return self._calls([command])[0]

    def groups(self, family: str, lower: bytes, upper: bytes) -> list[bytes]:
        """Return the groups that may have rows in [lower, upper), in order."""
        if family not in GROUPED:
            return [b""]
        first = group_of(family, lower)
        if len(first) == 8 and lex_bounds(family, first, lower, upper) is not None and upper <= after(first):
            return [first]  # one queue, as nearly always
        return sorted(group for group in list(self._prefixes) if lex_bounds(family, group, lower, upper) is not None)

    # ---- by key ----

    def get_many(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` in order, None for each that is absent."""
        if family == JOURNAL or family in PLACE_BYTES:
            found_rows = [self.scan_items(family, key, key + b"\0", 1) for key in keys]
            return [rows[0][1] if rows else None for rows in found_rows]
        ahead = self._rows_ahead(family)
        if ahead is not None:
            return [ahead[1].get(key) for key in keys]
        by_group: dict[bytes, list[bytes]] = {}
        for key in keys:
            by_group.setdefault(group_of(family, key), []).append(key)
        commands: list[RedisCommand] = [
            ("HMGET", self._layout.rows(family, group), *[key[len(group) :] for key in mine])
            for group, mine in by_group.items()
        ]
        if not commands:
            return []
        answers = self._calls(commands)
        if len(answers) == 1:
            only: list[bytes | None] = answers[0]
            return only
        found: dict[bytes, bytes | None] = {}
        for mine, values in zip(by_group.values(), answers, strict=True):
            found.update(zip(mine, values, strict=True))
        return [found[key] for key in keys]

    # ---- in order ----

    def scan(self, family: str, lower: bytes, upper: bytes, limit: int) -> list[bytes]:
        """Return up to ``limit`` keys in [lower, upper), in order."""
        return [key for key, _ in self.scan_items(family, lower, upper, limit, values=False)]

    def keys_of_group(self, family: str, group: bytes, lower: bytes, upper: bytes) -> Iterator[bytes]:
        """Iterate over the keys in [lower, upper) of one group, in order."""
        while rows := self.page(family, group, lower, upper, _KEYS_PER_PAGE, values=False).rows:
            yield from (key for key, _ in rows)
            lower = rows[-1][0] + b"\0"

    def scan_items(
        self, family: str, lower: bytes, upper: bytes, limit: int, *, values: bool = True
    ) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` keys in [lower, upper) with their values, in order."""
        if lower >= upper:
            return []
        if family == JOURNAL:
            return self._stream(lower, upper, limit)
        ahead = self._rows_ahead(family)
        if ahead is not None:
            names, rows = ahead
            first = bisect_left(names, lower)
            return [(name, rows[name]) for name in names[first : min(bisect_left(names, upper), first + limit)]]
        found: list[tuple[bytes, bytes]] = []
        for group in self.groups(family, lower, upper):
            if len(found) >= limit:
                break
            found += self.page(family, group, lower, upper, limit - len(found), values=values).rows
        return found

    def last_item(self, family: str, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """Return the greatest key in [lower, upper) with its value, or None."""
        if family == JOURNAL:
            if self._newest is not None and not lower and upper >= _LAST:
                return self._newest[0] if self._newest else None
            oldest, newest = entry_bounds(lower, upper)
            entries = self._call("XREVRANGE", self._layout.journal, newest, oldest, "COUNT", 1)
            return journal_row(entries[0]) if entries else None
        for group in reversed(self.groups(family, lower, upper)):
            bounds = lex_bounds(family, group, lower, upper)
            if bounds is None:
                continue
            index = self._layout.index(family, group)
            names = self._call("ZRANGE", index, bounds[1], bounds[0], "BYLEX", "REV", "LIMIT", 0, 1)
            if names and family in PLACE_BYTES:
                return self._placed(family, group, names[0])
            if names:
                value = self._call("HGET", self._layout.rows(family, group), names[0])
                return group + names[0], value or b""
        return None

    def page(
        self,
        family: str,
        group: bytes,
        lower: bytes,
        upper: bytes,
        limit: int,
        bytes_max: int = 0,
        where: tuple[bytes, bytes] | None = None,
        *,
        values: bool = True,
    ) -> ReadPage:
        """Return rows of one group in order. ``where``: the keys that hold them, if not the usual ones."""
        bounds = lex_bounds(family, group, lower, upper)
        if bounds is None:
            return ReadPage([], more=False)
        rows, index = where or (self._layout.rows(family, group), self._layout.index(family, group))
        if family in PLACE_BYTES or not values:
            names = self._call("ZRANGE", index, *bounds, "BYLEX", "LIMIT", 0, limit)
            more = len(names) == limit
            if family in PLACE_BYTES:
                return ReadPage([self._placed(family, group, name) for name in names], more)
            return ReadPage([(group + name, b"") for name in names], more)
        wanted = _ITEMS.call((rows, index), (*bounds, b"%d" % limit, b"%d" % bytes_max))
        names, found, more = self._calls([wanted], (_ITEMS,))[0]
        pairs = zip(names, found, strict=True)
        return ReadPage([(group + name, value) for name, value in pairs], bool(more))

    @staticmethod
    def _placed(family: str, group: bytes, name: bytes) -> tuple[bytes, bytes]:
        length = PLACE_BYTES[family]
        return group + name[:length], name[length:]

    def _stream(self, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        entries = self._call("XRANGE", self._layout.journal, *entry_bounds(lower, upper), "COUNT", limit)
        return [journal_row(entry) for entry in entries]


def journal_row(entry: Any) -> tuple[bytes, bytes]:
    """Return the key and value of a record from its entry in the stream."""
    id, (_, value) = entry
    return entry_key(id), value
