"""What new journal rows affect: computed on whole Arrow columns, by the verification of a segment while it has the rows."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from tenantq.pipeline.arrow_columns import Vocabulary, distinct, numbers, whole
from tenantq.pipeline.bronze.rows import FUTURE_MS, NOT_NEGATIVE, RowRules
from tenantq.pipeline.schemas import KNOWN_OPS
from tenantq.pipeline.silver.life_days import life_days
from tenantq.pipeline.silver.message_lives import changes_of_lives
from tenantq.pipeline.silver.queue_resets import RESETS

_HOUR_MS: Final = 3_600_000
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
Reset = tuple[str, str, str, int, int, int, str]
"""A row that emptied a queue: shard, tenant, queue, seq, n, microseconds and op."""
RESET_COLUMNS: Final = ("shard", "tenant", "queue", "seq", "n", "ts", "op")
_USED: Final = (*RESET_COLUMNS, "outcome", "message_id")


class RowSummary(msgspec.Struct, frozen=True):
    """The partitions and messages that new rows affect. Partitions are named by their directories."""

    rows: int = 0
    faulty: bool = False  # whether some of them may be invalid
    hours: dict[str, int] = {}  # partition of bronze -> rows
    lives: dict[str, int] = {}  # partition of message_lives -> lives that begin; 0 where one only continues
    resets: list[Reset] = []  # those of them that emptied a queue, or all queues of a tenant

    @property
    def first_reset_ms(self) -> int | None:
        """When the first of them emptied a queue."""
        return min((one[5] // 1_000 for one in self.resets), default=None)


def combined(parts: Iterable[RowSummary]) -> RowSummary:
    """Return the summary of all rows of these parts."""
    rows, faulty, resets = 0, False, list[Reset]()
    hours, lives = Counter[str](), Counter[str]()
    for part in parts:
        rows, faulty = rows + part.rows, faulty or part.faulty
        hours.update(part.hours)
        lives.update(part.lives)
        resets += part.resets
    return RowSummary(rows, faulty, dict(hours), dict(lives), resets)


def summary_of(rows: pa.Table, rules: RowRules) -> RowSummary:
    """Summarize the rows of a segment. If it is ``faulty``, invalid rows are counted like the others."""
    ms = rows["ts"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy()
    hours, places = distinct(ms // _HOUR_MS)
    counts = np.bincount(places, minlength=len(hours))
    names = [
        f"{datetime.fromtimestamp(hour * _HOUR_MS // 1_000, UTC):date=%Y-%m-%d/hour=%H}" for hour in hours.tolist()
    ]
    return RowSummary(
        rows.num_rows, _may_be_faulty(rows, names, ms, rules), dict(zip(names, counts.tolist(), strict=True)), _lives(rows),
        resets_of(rows),
    )  # fmt: skip


def resets_of(rows: pa.Table) -> list[Reset]:
    """Return the rows that emptied a queue, or all queues of a tenant."""
    ops, outcomes = Vocabulary(rows["op"]), Vocabulary(rows["outcome"])
    found = np.flatnonzero(ops.marked(ops.ranks[0], RESETS) & outcomes.marked(outcomes.ranks[0], ("ok",)))
    if not len(found):
        return []
    columns = rows.select(RESET_COLUMNS).take(pa.array(found))
    values = [numbers(columns[name]).tolist() if name == "ts" else columns[name].to_pylist() for name in RESET_COLUMNS]
    return list(zip(*values, strict=True))


def reset_of(row: Mapping[str, Any]) -> Reset:
    """Return a row of QUEUE_RESETS in the form that summaries use."""
    us = (row["ts"] - _EPOCH) // timedelta(microseconds=1)
    return row["shard"], row["tenant"], row["queue"], row["seq"], row["n"], us, row["op"]


def _may_be_faulty(rows: pa.Table, hours: list[str], ms: NDArray[Any], rules: RowRules) -> bool:
    """Return whether ``row_fault`` may find fault with a row."""
    if rules.now_ms is None or not rows.num_rows:
        return False
    return (
        any(column.null_count for column in rows.drop_columns(["link", "payload"]).columns)
        or not pc.all(pc.is_in(pc.unique(rows["op"]), pa.array(sorted(KNOWN_OPS)))).as_py()
        or any(pc.min(rows[name]).as_py() < 0 for name in NOT_NEGATIVE)
        or int(ms.max()) > rules.now_ms + FUTURE_MS
        or any(hour[5:15] in rules.deleted_dates for hour in hours)
    )


def _lives(rows: pa.Table) -> dict[str, int]:
    """Return how many lives begin on each day, 0 where some only continue."""
    told = rows.select(["op", "message_id"]).filter(changes_of_lives(rows))
    found, places = distinct(life_days(whole(told["message_id"])))
    begins = np.bincount(places, pc.equal(told["op"], "add").to_numpy(), len(found))
    return {
        f"date={np.datetime64(day, 'D')}": int(count)
        for day, count in zip(found.tolist(), begins.tolist(), strict=True)
    }


def summarize(rows: DataFrame) -> RowSummary:
    """Summarize valid journal rows on Spark. Each row must occur once."""
    rules = RowRules()

    def parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = summary_of(pa.Table.from_batches([batch]), rules)
            yield pa.RecordBatch.from_pylist([{"summary": msgspec.json.encode(found)}])

    found = rows.select(*_USED).mapInArrow(parts, "summary binary").collect()
    return combined(msgspec.json.decode(bytes(row[0]), type=RowSummary) for row in found)
