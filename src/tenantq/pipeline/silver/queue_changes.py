"""How rows of the journal change queues: what they count for, and by how many messages and leases.

The rules are data. Spark evaluates them as columns, and ``queue_hours`` on Arrow tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tenantq.domain.access import VIEWS

TARGET: Final = r"^to ([^:]*)"
PURGED: Final = r"^([0-9]+) messages"
MOVES: Final = ("dead_letter", "redrive")
CALL: Final = "redrive call"
MOVED_IN: Final = "moved in"
LEASE_REMOVED: Final = "lease removed"
"""Effects of rows in addition to their own op. Names of ops have no spaces."""


class Rule(msgspec.Struct, frozen=True):
    """Selects rows by op and outcome; empty: any."""

    ops: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    value: str = "rows"  # what the row counts for: rows, calls, bytes or purged
    asked: bool = False  # only rows that a caller asked for
    not_ops: tuple[str, ...] = ()

    def column(self) -> Column:
        """Return whether a row is selected."""
        found = f.lit(True)
        if self.ops:
            found &= f.col("op").isin(*self.ops)
        if self.outcomes:
            found &= f.col("outcome").isin(*self.outcomes)
        if self.not_ops:
            found &= ~f.col("op").isin(*self.not_ops)
        return found & f.col("asked") if self.asked else found

    def selects(self, op: str, outcome: str | None) -> bool:
        """Return whether rows of an op and outcome are selected, if a caller asked for them."""
        return (
            (not self.ops or op in self.ops)
            and (not self.outcomes or outcome in self.outcomes)
            and op not in self.not_ops
        )


COUNTS: Final[Mapping[str, tuple[Rule, ...]]] = {
    "operations": (Rule((), ("ok",), "calls", asked=True, not_ops=tuple(sorted(VIEWS))),),
    "messages_in": (Rule(("add",), ("ok",)),),
    "messages_out": (Rule(("poll",), ("ok",)),),
    "bytes_in": (Rule(("add",), ("ok",), "bytes"),),
    "bytes_out": (Rule(("poll",), ("ok",), "bytes"),),
    "acked": (Rule(("ack",), ("ok",)),),
    "nacked": (Rule(("nack",), ("ok",)),),
    "lease_expired": (Rule(("lease_expired",)),),
    "dead": (Rule(("dead_letter",), ("dead",)),),
    "expired": (Rule(("expire",), ("expired",)),),
    "removed": (Rule(("remove", "redrive"), ("ok",)), Rule(("purge",), ("ok",), "purged")),
    "healed": (Rule(("heal",)),),
    "refused": (Rule((), ("refused",), "calls"),),
    "throttled": (Rule((), ("throttled",), "calls"),),
    "denied": (Rule((), ("denied",), "calls"),),
}
"""The columns that rows count for."""
MESSAGES: Final = {
    1: (Rule(("add",), ("ok",)), Rule((MOVED_IN,))),
    -1: (Rule(("ack", "remove", "redrive"), ("ok",)), Rule(("expire",), ("expired",)), Rule(("dead_letter",), ("dead",))),
}  # fmt: skip
"""By how many messages a row changes its queue."""
LEASES: Final = {
    1: (Rule(("poll",), ("ok",)),),
    -1: (Rule(("ack", "nack", "release"), ("ok",)), Rule(("lease_expired", LEASE_REMOVED))),
}
"""By how many leases a row changes its queue."""
Changes = Mapping[int, tuple[Rule, ...]]


def message_change() -> Column:
    """Return by how many messages a row changes its queue: 1, -1 or 0."""
    found: Any = f
    for change, rules in MESSAGES.items():
        for rule in rules:
            found = found.when(rule.column(), f.lit(change))
    column: Column = found.otherwise(f.lit(0)).cast("bigint")
    return column


def change_counts() -> dict[str, Column]:
    """Return the columns that rows of one op and outcome count for, from their ``rows``, ``calls``, ``bytes`` and ``purged``."""
    found: dict[str, Column] = {}
    for name, rules in COUNTS.items():
        column: Any = f
        for rule in rules:
            column = column.when(rule.column(), f.col(rule.value))
        found[name] = column
    return found


def change_table(ops: list[str], outcomes: list[str], changes: Changes) -> NDArray[Any]:
    """Return by how much each op, with each outcome or none (the last column), changes a queue."""
    return _table(ops, outcomes, lambda op, outcome: next(
        (change for change, rules in changes.items() if any(rule.selects(op, outcome) for rule in rules)), 0
    ))  # fmt: skip


def selected_table(ops: list[str], outcomes: list[str], rule: Rule) -> NDArray[Any]:
    """Return 1 for each op and outcome that a rule selects, as ``change_table`` does."""
    return _table(ops, outcomes, lambda op, outcome: int(rule.selects(op, outcome)))


def _table(ops: list[str], outcomes: list[str], value: Callable[[str, str | None], int]) -> NDArray[Any]:
    return np.array([[value(op, outcome) for outcome in (*outcomes, None)] for op in ops], "i8").reshape(len(ops), -1)


def queue_changes(rows: DataFrame) -> DataFrame:
    """Return the effects of ``rows`` (bronze) on queues, one row each: on their own queue, and on the target of a move."""
    return _own(rows).unionByName(_moved_in(rows), allowMissingColumns=True)


def _own(rows: DataFrame) -> DataFrame:
    """Return the effect of each row on its own queue, and whether a caller asked for it.

    The call that starts a redrive has a row without a message; only the rows of its messages remove them.
    """
    purged = f.regexp_extract("details", PURGED, 1)
    return rows.select(
        "shard", "seq", "n", "ts", "tenant", "queue",
        f.when((f.col("op") == "redrive") & (f.col("message_id") == ""), f.lit(CALL)).otherwise(f.col("op")).alias("op"),
        "outcome", "bytes", "count",
        f.coalesce(f.col("principal") != "system", f.lit(False)).alias("asked"),
        f.when((f.col("op") == "purge") & (purged != ""), purged.cast("bigint")).alias("purged"),
    )  # fmt: skip


def _moved_in(rows: DataFrame) -> DataFrame:
    """Return what dead letters and redriven messages add to their target queue."""
    moved = rows.where(f.col("op").isin(*MOVES) & f.col("outcome").isin("ok", "dead") & (f.col("message_id") != ""))
    return moved.select(
        "shard", "seq", "n", "ts", "tenant",
        f.regexp_extract("details", TARGET, 1).alias("queue"),
        f.lit(MOVED_IN).alias("op"),
        "bytes",
    )  # fmt: skip
