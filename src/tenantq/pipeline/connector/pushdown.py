"""Filters that the journal reader applies itself: as bounds on whole segments, and as an expression on their rows.

It keeps exactly the rows that Spark would keep: the columns of supported filters are never null, and both compare text by
its bytes. Spark applies all other filters.
"""

import operator
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import Filter, In, IsNotNull, Not

from tenantq.journal.segment import SCHEMA
from tenantq.pipeline.connector.record_ranges import RecordRange, SegmentPart

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_IN_MAX: Final = 10_000
_COMPARED: Final[dict[type[Filter], Any]] = {
    spark.EqualTo: operator.eq,
    spark.EqualNullSafe: operator.eq,
    spark.GreaterThan: operator.gt,
    spark.GreaterThanOrEqual: operator.ge,
    spark.LessThan: operator.lt,
    spark.LessThanOrEqual: operator.le,
}
_TEXT: Final[dict[type[Filter], Any]] = {
    spark.StringStartsWith: pc.starts_with,
    spark.StringEndsWith: pc.ends_with,
    spark.StringContains: pc.match_substring,
}


class PushedFilters:
    """The filters that the reader applies. Every row it returns passes all of them."""

    def __init__(self, filters: Sequence[Filter] = ()) -> None:
        self.filters = list(filters)

    def expression(self) -> pc.Expression | None:
        """Return the filters for pyarrow; None if there are none."""
        parts = [part for part in map(expression, self.filters) if part is not None]
        return reduce(operator.and_, parts) if parts else None

    def want_range(self, span: RecordRange) -> bool:
        """Return whether a segment can have a wanted row, by its shard and records."""
        return all(
            _may_hold(one, {"shard": (span.shard, span.shard), "seq": (span.first, span.last)}) for one in self.filters
        )

    def want_part(self, part: SegmentPart) -> bool:
        """Return whether a segment can have a wanted row, by its times."""
        times = (_at(part.manifest.min_ts), _at(part.manifest.max_ts))
        return all(_may_hold(one, {"ts": times}) for one in self.filters)


def split_filters(filters: Iterable[Filter]) -> tuple[list[Filter], list[Filter]]:
    """Return the supported filters, and the rest."""
    supported, rest = list[Filter](), list[Filter]()
    for one in filters:
        (supported if _is_supported(one) else rest).append(one)
    return supported, rest


def _is_supported(one: Filter) -> bool:
    inner = one.child if isinstance(one, Not) else one
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in SCHEMA.names or SCHEMA.field(path[0]).nullable:
        return False
    kind = SCHEMA.field(path[0]).type
    if isinstance(inner, IsNotNull):
        return not isinstance(one, Not)
    if type(inner) in _TEXT:
        return pa.types.is_string(kind) and type(inner.value) is str  # type: ignore[attr-defined]  # those have one
    if isinstance(inner, In):
        return 0 < len(inner.value) <= _IN_MAX and all(_fits(kind, value) for value in inner.value)
    return type(inner) in _COMPARED and _fits(kind, inner.value)  # type: ignore[attr-defined]  # likewise


def _fits(kind: pa.DataType, value: object) -> bool:
    """Return whether a literal has the column's own type, so that no conversion changes the comparison."""
    if pa.types.is_string(kind):
        return type(value) is str
    if pa.types.is_integer(kind):
        return type(value) is int and -(1 << 63) <= value < 1 << 63
    return isinstance(value, datetime) and value.tzinfo is not None


def expression(one: Filter) -> pc.Expression | None:
    """Return a filter for pyarrow; None if every row passes it."""
    if isinstance(one, Not):
        inner = expression(one.child)
        assert inner is not None
        return ~inner
    if isinstance(one, IsNotNull):
        return None
    column = pc.field(one.attribute[0])  # type: ignore[attr-defined]  # every supported filter has one
    kind = SCHEMA.field(one.attribute[0]).type  # type: ignore[attr-defined]
    value: Any = one.value  # type: ignore[attr-defined]
    if isinstance(one, In):
        return column.isin(pa.array([_literal(kind, item) for item in value]))
    if type(one) in _TEXT:
        return _TEXT[type(one)](column, value)
    return _COMPARED[type(one)](column, _literal(kind, value))


def _literal(kind: pa.DataType, value: Any) -> pa.Scalar:
    """Return a literal that compares exactly: times in microseconds, numbers in 64 bits."""
    if pa.types.is_timestamp(kind):
        return pa.scalar(value, pa.timestamp("us", tz="UTC"))
    return pa.scalar(value, pa.int64() if pa.types.is_integer(kind) else pa.string())


def _may_hold(one: Filter, ranges: dict[str, tuple[Any, Any]]) -> bool:
    """Return whether a value in the column's range can pass a filter. Without a range, it can."""
    path: tuple[str, ...] = getattr(one, "attribute", ())  # Not has none
    if not path or path[0] not in ranges or isinstance(one, IsNotNull) or type(one) in _TEXT:
        return True
    low, high = ranges[path[0]]
    value: Any = one.value  # type: ignore[attr-defined]
    if isinstance(one, In):
        return any(low <= item <= high for item in value)
    if isinstance(one, spark.EqualTo | spark.EqualNullSafe):
        return bool(low <= value <= high)
    if isinstance(one, spark.GreaterThan | spark.GreaterThanOrEqual):
        return bool(high > value or (high == value and isinstance(one, spark.GreaterThanOrEqual)))
    return bool(low < value or (low == value and isinstance(one, spark.LessThanOrEqual)))


def _at(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)
