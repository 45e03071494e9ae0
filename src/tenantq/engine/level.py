"""The waiting rows of one priority."""

from typing import Final

from tenantq.store.keys import ID_LAST, be64, level_prefix

NEVER: Final = (1 << 63) - 1
FIRST: Final = b""
_NOTHING: Final = b"\xff" * 24


class Level:
    """The waiting rows of one priority in one queue.

    A row counts as ready if its suffix (visible_at, id) is at most ``horizon``, else as delayed. The horizon advances
    without cost while no delayed row is due, and by a bounded scan otherwise, so both counts are exact at any depth.
    """

    __slots__ = ("cursor", "delayed", "horizon", "next_due", "prefix", "priority", "ready")

    def __init__(self, queue_prefix: bytes, priority: int) -> None:
        self.priority = priority
        self.prefix = level_prefix(queue_prefix, priority)
        self.ready = 0
        self.delayed = 0
        self.horizon = FIRST
        self.cursor = _NOTHING  # no row lies before it, so a scan may start there
        self.next_due = NEVER  # no delayed row becomes visible before this

    def insert(self, suffix: bytes, visible_at: int, now: int) -> bool:
        """Count a new row; return whether it is ready."""
        if suffix < self.cursor:  # noqa: PLR1730  # faster than min(), and this runs for every message
            self.cursor = suffix
        if suffix <= self.horizon:
            self.ready += 1
            return True
        if visible_at <= now and (self.delayed == 0 or self.next_due > now):
            self.horizon = be64(now) + ID_LAST
            self.ready += 1
            return True
        self.delayed += 1
        self.next_due = min(self.next_due, visible_at)
        return False

    def insert_run(self, stamp: bytes, ids: list[bytes], now: int) -> int:
        """Count rows that become visible now, in order of ids; return how many are ready."""
        if not self.horizon.startswith(stamp) or self.horizon.endswith(ID_LAST):
            if not self.insert(stamp + ids[0], now, now):
                self.delayed += len(ids) - 1
                return 0
            self.ready += len(ids) - 1
            return len(ids)
        return sum(self.insert(stamp + id, now, now) for id in ids)  # the horizon lies between them

    def remove(self, suffix: bytes) -> bool:
        """Uncount a row; return whether it was ready."""
        if suffix <= self.horizon:
            self.ready -= 1
            return True
        self.delayed -= 1
        return False
