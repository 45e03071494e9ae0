"""Silver ``message_lives``: one row per message, from its add to its end, over queues and days.

A row keeps what is needed to merge late events into it, with the same result as one pass over everything. Its partition is
the day in which its id was created, which never changes.

On one shard, events are in the order of its journal. If a tenant moved between shards, a message has records on two, whose
numbers cannot be compared. Then the wall clock decides.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType

from tenantq.pipeline.arrow_columns import Vocabulary, by_part, id_hashes, whole
from tenantq.pipeline.arrow_shuffle import ArrowShuffle, FileRows, PeriodParts, Sender, SentRows
from tenantq.pipeline.lake.pieces import Pieces
from tenantq.pipeline.schemas import BOOLEAN, INT, LONG, TEXT, TIME, table_columns
from tenantq.pipeline.silver.life_days import DAY_MS, DAY_US, LAST_DAY, life_days
from tenantq.pipeline.silver.life_merge import EVENTS, LIVES, OPEN, STATES, empty_events, in_one, merge_lives
from tenantq.pipeline.silver.queue_resets import ResetIndex

DELIVERY: Final = table_columns(seq=LONG, at=TIME, queue=TEXT, wait_ms=LONG)

SETTLEMENT: Final = table_columns(seq=LONG, at=TIME, queue=TEXT, op=TEXT, process_ms=LONG)

LAST: Final = table_columns(seq=LONG, place=INT, state=TEXT, queue=TEXT, at=TIME, shard=TEXT)

MESSAGE_LIVES: Final = table_columns(
    tenant=TEXT, message_id=TEXT, shard=TEXT, queue=TEXT, bytes=LONG, priority=INT, added_at=TIME,
    first_wait_ms=LONG, wait_ms=LONG, process_ms=LONG, attempts=LONG, nacks=LONG, lease_expiries=LONG,
    releases=LONG, dead_letters=LONG, redrives=LONG, outcome=TEXT, ended_at=TIME, leased_at_end=BOOLEAN,
    deliveries=ArrayType(DELIVERY), settlements=ArrayType(SETTLEMENT), last=LAST, date=TEXT,
)  # fmt: skip

__all__ = ["OPEN", "STATES", "life_date", "life_events", "message_lives"]

DONE: Final = ("ok", "expired", "dead")
_TARGET: Final = re.compile(r"^to ([^:]*)")
_READ: Final = (*EVENTS[:-1], "outcome", "details")
_PART_BYTES: Final = 20_000_000  # of rows whose lives are merged by one task
_EVENTS, _KNOWN = range(2)  # kinds of sent tables


def life_date() -> Column:
    """Return the day in which a message's id was created: its first 48 bits are milliseconds."""
    digits = f.concat(f.substring("message_id", 1, 8), f.substring("message_id", 10, 4))
    valid = (f.length(digits) == 12) & f.unhex(digits).isNotNull()
    ms = f.when(valid, f.conv(digits, 16, 10).cast("bigint"))
    day = f.least(f.floor(ms / DAY_MS), f.lit(LAST_DAY)).cast("int")
    return f.coalesce(f.date_from_unix_date(day).cast("string"), f.lit("1970-01-01"))


def life_events(rows: DataFrame) -> DataFrame:
    """Return the journal rows that change a message, with the ``date`` of its life."""
    told = (f.col("message_id") != "") & f.col("outcome").isin(*DONE) & f.col("op").isin(*STATES)
    return rows.where(told).withColumn("date", life_date())


def message_lives(
    rows: DataFrame | FileRows, known: DataFrame | FileRows | None, resets: DataFrame, pieces: Pieces | None = None
) -> ArrowShuffle:
    """Merge new ``rows`` (bronze) into the ``known`` lives, if any; return rows of MESSAGE_LIVES.

    ``pieces`` are the files of the lives; without them, lives are computed in some parts.
    """
    parts = pieces or PeriodParts.by_date(rows, _PART_BYTES)
    inputs = [SentRows(rows, Sender(_READ, partial(_send_events, parts=parts)))]
    if known is not None:
        inputs.append(SentRows(known, Sender(LIVES, partial(_send_lives, parts=parts, kind=_KNOWN))))
    merge = partial(_merged, resets=ResetIndex.of(resets))
    return ArrowShuffle(rows.sparkSession, inputs, parts.count, merge, MESSAGE_LIVES, kinds=2)


def life_places(rows: pa.Table) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return when the day of each message begins, in microseconds, and the hash by which a large day is split."""
    ids = whole(rows["message_id"])
    return life_days(ids) * DAY_US, id_hashes(ids)


def changes_of_lives(rows: pa.Table) -> pa.Array:
    """Return which journal rows change a message."""
    ops, outcomes = Vocabulary(rows["op"]), Vocabulary(rows["outcome"])
    told = ops.marked(ops.ranks[0], STATES) & outcomes.marked(outcomes.ranks[0], DONE)
    return pc.and_(pa.array(told), pc.not_equal(whole(rows["message_id"]), "").fill_null(False))


def _send_events(rows: pa.Table, parts: Pieces | PeriodParts) -> Iterator[tuple[int, int, pa.Table]]:
    told = changes_of_lives(rows)
    if not pc.all(told).as_py():
        rows = rows.filter(told)
    if rows.num_rows:
        events = rows.append_column("target", _targets(rows)).select(EVENTS)
        yield from _send_lives(events, parts, _EVENTS)


def _send_lives(rows: pa.Table, parts: Pieces | PeriodParts, kind: int) -> Iterator[tuple[int, int, pa.Table]]:
    """Yield rows of messages for each file of lives."""
    begins, hashes = life_places(rows)
    found = parts.parts(begins, hashes) if isinstance(parts, Pieces) else parts.spread(begins // DAY_US, hashes)
    for part, sent in by_part(found, rows):
        yield part, kind, sent


def _targets(rows: pa.Table) -> pa.Array:
    """Return the queue to which dead letters and redriven messages move; null for other rows."""
    ops = Vocabulary(rows["op"])
    moved = ops.marked(ops.ranks[0], ("dead_letter", "redrive"))
    none = pa.nulls(rows.num_rows, pa.string())
    if not moved.any():
        return none
    details = whole(rows["details"]).filter(pa.array(moved)).to_pylist()
    found = [match.group(1) if (match := _TARGET.search(one or "")) else "" for one in details]
    return pc.replace_with_mask(none, pa.array(moved), pa.array(found, pa.string()))


def _merged(_: int, sent: list[list[pa.Table]], resets: ResetIndex) -> pa.Table:
    return merge_lives(in_one(sent[_EVENTS], empty_events()), in_one(sent[_KNOWN], _NO_LIVES), resets)


_NO_LIVES: Final = to_arrow_schema(MESSAGE_LIVES, timezone="UTC").empty_table().select(LIVES)
