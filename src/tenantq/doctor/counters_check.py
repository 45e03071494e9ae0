"""Compares a queue's counters with its rows."""

from tenantq.doctor.checked_queue import CheckedQueue
from tenantq.engine.level import NEVER
from tenantq.store.keys import from_be64
from tenantq.store.rows import CountersRow, LevelRow


class LevelRecount:
    """The waiting rows of one priority."""

    def __init__(self, stored: LevelRow | None) -> None:
        self.stored = stored
        self.ready = 0
        self.delayed = 0
        self.first: bytes | None = None
        self.first_due = NEVER

    def waiting(self, suffix: bytes) -> None:
        """Count a row as ready or delayed by the stored horizon. Rows must come in order."""
        if self.first is None:
            self.first = suffix
        if self.stored is not None and suffix <= self.stored.horizon:
            self.ready += 1
        else:
            self.delayed += 1
            self.first_due = min(self.first_due, from_be64(suffix))


class Recount:
    """The sums of a queue's rows."""

    def __init__(self, stored: CountersRow | None = None) -> None:
        self._stored = {level.priority: level for level in stored.levels} if stored is not None else {}
        self.levels: dict[int, LevelRecount] = {
            priority: LevelRecount(level) for priority, level in self._stored.items()
        }
        self.rows = 0  # of all kinds except messages
        self.blocked = 0
        self.in_flight = 0
        self.bytes = 0
        self.first_deadline = NEVER
        self.first_expiry = NEVER

    def waiting(self, priority: int, suffix: bytes) -> None:
        """Count a row of the delivery order."""
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = LevelRecount(None)
        level.waiting(suffix)
        self.rows += 1


def compare(recount: Recount, stored: CountersRow | None, checked: CheckedQueue) -> None:
    """Record every counter that differs and every bound that is wrong."""
    if stored is None:
        if recount.rows or recount.bytes:
            checked.found("counters", "The queue has rows but no counters.")
        return
    for priority, level in recount.levels.items():
        _compare_level(priority, level, checked)
    for name in ("blocked", "in_flight", "bytes"):
        counted, kept = getattr(recount, name), getattr(stored, name)
        if counted != kept:
            checked.found("counters", f"The counter {name} is {kept}, a recount gives {counted}.")
    if stored.next_lease > recount.first_deadline:
        checked.found(
            "counters", f"A lease ends at {recount.first_deadline}, before next_lease, which is {stored.next_lease}."
        )
    if stored.next_expiry > recount.first_expiry:
        checked.found(
            "counters", f"A row expires at {recount.first_expiry}, before next_expiry, which is {stored.next_expiry}."
        )


def _compare_level(priority: int, level: LevelRecount, checked: CheckedQueue) -> None:
    stored = level.stored
    if stored is None:
        rows = level.ready + level.delayed
        checked.found("counters", f"Priority {priority} has {rows} waiting messages, but the counters have none.")
        return
    for name in ("ready", "delayed"):
        counted, kept = getattr(level, name), getattr(stored, name)
        if counted != kept:
            checked.found(
                "counters", f"The counter {name} of priority {priority} is {kept}, a recount gives {counted}."
            )
    if level.first is not None and level.first < stored.cursor:
        checked.found(
            "counters",
            f"The cursor of priority {priority} is past a waiting message, so no poll finds it.",
            level.first[8:],
        )
    if level.delayed and level.first_due < stored.next_due:
        checked.found(
            "counters",
            f"A message of priority {priority} is due at {level.first_due}, before next_due, which is {stored.next_due}.",
        )
