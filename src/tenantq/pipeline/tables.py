"""The table registry: for each table of the lake its layer, function, inputs, scope, columns, partitions and row order.

The registry drives everything that handles tables: the run, the lineage page, the archive, erasure and reports. To add a
table, write its columns and its function in a file of its own, and one entry here.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from graphlib import TopologicalSorter
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from tenantq.pipeline.arrow_shuffle import ArrowShuffle
from tenantq.pipeline.bronze.quarantine import QUARANTINE, quarantine
from tenantq.pipeline.bronze.row_summary import RowSummary
from tenantq.pipeline.bronze.rows import BRONZE, bronze, hour_places
from tenantq.pipeline.bronze.segments import SEGMENTS, segments
from tenantq.pipeline.gold.anomalies import ANOMALIES, REPORTED, anomalies
from tenantq.pipeline.gold.compliance_evidence import COMPLIANCE, EVALUATIONS
from tenantq.pipeline.gold.compliance_gdpr_art30 import compliance_gdpr_art30
from tenantq.pipeline.gold.compliance_soc2 import compliance_soc2
from tenantq.pipeline.gold.invoice_corrections import INVOICE_CORRECTIONS, invoice_corrections
from tenantq.pipeline.gold.invoice_lines import INVOICE_LINES, invoice_lines
from tenantq.pipeline.gold.service_times import STAYS, TIMES
from tenantq.pipeline.gold.slo_daily import SLO_DAILY, slo_daily
from tenantq.pipeline.gold.tenant_growth import TENANT_GROWTH, tenant_growth
from tenantq.pipeline.gold.usage_hourly import USAGE_HOURLY, usage_hourly
from tenantq.pipeline.reduction import Reduction
from tenantq.pipeline.silver.message_lives import MESSAGE_LIVES, life_places, message_lives
from tenantq.pipeline.silver.ops_daily import OPS, OPS_DAILY, ops_daily
from tenantq.pipeline.silver.places_daily import PLACES, PLACES_DAILY, places_daily
from tenantq.pipeline.silver.queue_hours import CHANGES, LEASES_OF_REMOVED, QUEUE_HOURS, queue_hours
from tenantq.pipeline.silver.queue_resets import QUEUE_RESETS, queue_resets
from tenantq.pipeline.silver.tenant_changes import TENANT_CHANGES, TENANT_ROWS, tenant_changes

JOURNAL: Final = "journal"
"""The source of the first tables: the segments that a server exports."""


class Scope(Enum):
    """Which partitions of a table a run computes again."""

    SEGMENTS = "the whole table, if segments are new or missing a manifest"
    RESETS = "the whole table, if new rows empty a queue"
    NEW_HOURS = "hours that have new rows"
    NEW_DAYS = "days that have new rows"
    LIFE_DAYS = "days of messages that new rows are about, and of open messages in queues that new rows empty"
    LEVEL_HOURS = "hours that have new rows, and hours whose queue levels these change"
    SINCE = "all days since the first with new rows"
    SINCE_OBJECTIVE = "all days since the first with new rows; all days if the objective changed"
    SINCE_VERDICT = "all days since the first with new rows or with a changed verification result"
    MONTHS = "all open months since the first with new rows, and open months whose prices changed"
    CLOSED_MONTHS = "all closed months since the first with new rows, and those with a new approval"


class Input(msgspec.Struct, frozen=True):
    """A table that a function reads, and which part of it.

    ``all``: the whole table. ``selected``: the partitions that the scope selects. ``new``: the rows that this run added.
    ``resets``: those of the new rows that empty a queue. ``known``: what the table itself has in the selected partitions,
    None if nothing. The other parts are the journal's.
    """

    table: str
    part: Literal["all", "selected", "new", "resets", "known", "verdicts", "orphans", "faults"] = "all"
    files: bool = False  # the function takes FileRows
    reduction: Reduction | None = None  # what the function needs of each file; computed by the task that writes it


class Split(msgspec.Struct, frozen=True):
    """How a large partition is divided into files: by a hash, so that a large tenant is spread over all of them.

    The number of files depends on nothing but the number of rows.
    """

    places: Callable[[pa.Table], tuple[NDArray[Any], NDArray[Any]]]  # when the partition of a row begins, and its hash
    counted: str  # rows in which this column is not null are counted
    rows: int  # of a file, about
    added: Callable[
        [RowSummary], Mapping[str, int]
    ]  # how many of them new rows add to each partition; 0 if they only change it


class Mention(msgspec.Struct, frozen=True):
    """A text column that may name other tenants, in rows whose ``kind`` column has a value. Erasure removes the name."""

    column: str
    kind: str


class LakeTable(msgspec.Struct, frozen=True, kw_only=True):
    """One table. ``order`` is unique and sorts the rows of each file, so equal rows give equal files."""

    name: str
    layer: Literal["bronze", "silver", "gold"]
    function: Callable[..., DataFrame | ArrowShuffle]  # takes the inputs in order, then ``parameters`` by name
    inputs: tuple[Input, ...]
    scope: Scope
    columns: StructType
    order: tuple[str, ...]
    partitions: tuple[str, ...] = ("date",)
    parameters: tuple[str, ...] = ()  # values of the run that the function takes; see run.py
    appends: bool = False  # the function returns rows to add to the existing ones
    small: bool = False  # read without Spark, because several tables of a run need it
    split: Split | None = None  # None: its partitions are small
    archivable: bool = False  # days may leave the lake; the others are small, and later days are computed from them
    mention: Mention | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The other tables that it is computed from."""
        return tuple(dict.fromkeys(one.table for one in self.inputs if one.table != self.name))

    @property
    def has_tenants(self) -> bool:
        """Whether its rows belong to tenants."""
        return "tenant" in self.columns.names


_EVALUATIONS: Final = Input("bronze", "selected", reduction=EVALUATIONS)
_EVIDENCE: Final = ("control", "tenant", "evidence")


_REGISTERED: Final = (
    LakeTable(
        name="segments", layer="bronze", function=segments, scope=Scope.SEGMENTS,
        inputs=(Input(JOURNAL, "verdicts"), Input("segments", "known")),
        columns=SEGMENTS, partitions=(), order=("manifest",),
    ),
    LakeTable(
        name="quarantine", layer="bronze", function=quarantine, scope=Scope.SEGMENTS,
        inputs=(Input("segments"), Input(JOURNAL, "orphans"), Input(JOURNAL, "faults"), Input("quarantine", "known")),
        columns=QUARANTINE, partitions=(), order=("reason", "shard", "first_seq", "file", "details"),
    ),
    LakeTable(
        name="bronze", layer="bronze", function=bronze, scope=Scope.NEW_HOURS,
        inputs=(Input(JOURNAL, "new", files=True), Input("bronze", "known", files=True)), parameters=("pieces",),
        columns=BRONZE, partitions=("date", "hour"), order=("tenant", "shard", "seq", "n"),
        split=Split(hour_places, "seq", 1_000_000, lambda new: new.hours), archivable=True,
    ),
    LakeTable(
        name="queue_resets", layer="silver", function=queue_resets, scope=Scope.RESETS,
        inputs=(Input("bronze", "resets"),), appends=True, small=True,
        columns=QUEUE_RESETS, partitions=(), order=("shard", "seq", "n"),
    ),
    LakeTable(
        name="message_lives", layer="silver", function=message_lives, scope=Scope.LIFE_DAYS,
        inputs=(Input("bronze", "new", files=True), Input("message_lives", "known", files=True), Input("queue_resets")),
        parameters=("pieces",),
        columns=MESSAGE_LIVES, order=("tenant", "message_id"),
        # A message is added once, so adds can be counted before they are merged into lives.
        split=Split(life_places, "added_at", 250_000, lambda new: new.lives), archivable=True,
    ),
    LakeTable(
        name="queue_hours", layer="silver", function=queue_hours, scope=Scope.LEVEL_HOURS,
        inputs=(Input("bronze", "selected", files=True, reduction=CHANGES),
                Input("message_lives", files=True, reduction=LEASES_OF_REMOVED), Input("queue_resets")),
        columns=QUEUE_HOURS, partitions=("date", "hour"), order=("tenant", "queue", "shard", "epoch"),
    ),
    LakeTable(
        name="ops_daily", layer="silver", function=ops_daily, scope=Scope.NEW_DAYS,
        inputs=(Input("bronze", "selected", files=True, reduction=OPS),),
        columns=OPS_DAILY, order=("tenant", "op", "outcome"),
    ),
    LakeTable(
        name="places_daily", layer="silver", function=places_daily, scope=Scope.NEW_DAYS,
        inputs=(Input("bronze", "selected", files=True, reduction=PLACES),),
        columns=PLACES_DAILY, order=("tenant", "principal", "network"),
    ),
    LakeTable(
        name="tenant_changes", layer="silver", function=tenant_changes, scope=Scope.NEW_DAYS,
        inputs=(Input("bronze", "selected", reduction=TENANT_ROWS),), columns=TENANT_CHANGES, order=("shard", "seq", "n"),
    ),
    LakeTable(
        name="usage_hourly", layer="gold", function=usage_hourly, scope=Scope.SINCE, parameters=("from_date",),
        inputs=(Input("queue_hours"), Input("queue_resets")),
        columns=USAGE_HOURLY, order=("tenant", "queue", "hour"),
    ),
    LakeTable(
        name="slo_daily", layer="gold", function=slo_daily, scope=Scope.SINCE_OBJECTIVE,
        inputs=(Input("bronze", "selected", files=True, reduction=TIMES),
                Input("message_lives", files=True, reduction=STAYS)),
        parameters=("days", "as_of_ms", "objective"),
        columns=SLO_DAILY, order=("tenant", "queue"), archivable=True,
    ),
    LakeTable(
        name="invoice_lines", layer="gold", function=invoice_lines, scope=Scope.MONTHS,
        inputs=(Input("usage_hourly", "selected"),), parameters=("prices", "erased_usage"),
        columns=INVOICE_LINES, partitions=("period",), order=("tenant", "item"),
    ),
    LakeTable(
        name="invoice_corrections", layer="gold", function=invoice_corrections, scope=Scope.CLOSED_MONTHS,
        inputs=(Input("usage_hourly", "selected"), Input("invoice_lines", "selected")),
        parameters=("closed", "erased_usage"), columns=INVOICE_CORRECTIONS, partitions=("period",), order=("line",),
    ),
    LakeTable(
        name="tenant_growth", layer="gold", function=tenant_growth, scope=Scope.SINCE, parameters=("from_date",),
        inputs=(Input("usage_hourly"), Input("tenant_changes")),
        columns=TENANT_GROWTH, order=("tenant", "metric"), archivable=True,
    ),
    LakeTable(
        name="anomalies", layer="gold", function=anomalies, scope=Scope.SINCE_VERDICT, parameters=("from_date",),
        inputs=(Input("bronze", "selected", reduction=REPORTED), Input("usage_hourly"), Input("places_daily"),
                Input("quarantine")),
        columns=ANOMALIES, order=("kind", "tenant", "queue", "principal", "first_at", "details"),
        archivable=True, mention=Mention("details", "cross_tenant_probing"),
    ),
    LakeTable(
        name="compliance_soc2", layer="gold", function=compliance_soc2, scope=Scope.SINCE_VERDICT, parameters=("dates",),
        inputs=(Input("ops_daily", "selected"), _EVALUATIONS, Input("anomalies", "selected"), Input("segments"),
                Input("quarantine")),
        columns=COMPLIANCE, order=_EVIDENCE, archivable=True,
    ),
    LakeTable(
        name="compliance_gdpr_art30", layer="gold", function=compliance_gdpr_art30, scope=Scope.SINCE_VERDICT,
        inputs=(Input("ops_daily", "selected"), _EVALUATIONS, Input("segments"), Input("quarantine")),
        parameters=("dates",),
        columns=COMPLIANCE, order=_EVIDENCE, archivable=True,
    ),
)  # fmt: skip


def _sorted(tables: dict[str, LakeTable]) -> dict[str, LakeTable]:
    """Return the tables in an order in which each comes after its sources."""
    order = TopologicalSorter({name: table.sources for name, table in tables.items()}).static_order()
    return {name: tables[name] for name in order if name != JOURNAL}


TABLES: Final[dict[str, LakeTable]] = _sorted({table.name: table for table in _REGISTERED})
"""All tables by name, sources first."""


def day_of(partition: str) -> str:
    """Return the day, or the month, that a partition's directory name begins with."""
    return partition.partition("=")[2][:10]
