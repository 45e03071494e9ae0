"""The forecast: real usage on the current shards and on the planned ones, and what would move between them."""

import csv
import io
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tenantq.domain.placement import Topology
from tenantq.errors import Invalid, NotFound
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.simulation.placement import NOWHERE, allowed_regions, placed
from tenantq.pipeline.tables import day_of

_NAMED_MAX: Final = 20
_SIDES: Final = ("before", "after")


class ShardForecast(msgspec.Struct):
    """The load of a shard."""

    name: str
    region: str
    tenants: int = 0
    queues: int = 0
    operations: int = 0  # over the whole period
    busiest_hour: int = 0  # operations in it
    bytes: int = 0  # the most stored at the end of an hour
    fullness: float | None = None  # share of its capacity, of the scarcer resource; None if the capacity is not known


class LoadForecast(msgspec.Struct):
    """The result of a simulation. Rows of ``regions`` and ``residency`` have figures before and after."""

    first_day: str
    last_day: str
    tenants: int
    queues: int
    shards_before: int
    shards_after: int
    moved_tenants: int
    moved_queues: int
    moved_bytes: int
    placed_first: int  # tenants that no shard may hold before, and one may after
    regions: list[dict[str, Any]]
    residency: list[dict[str, Any]]  # by the regions that tenants allow: the tenants, and the shards that may hold them
    before: list[ShardForecast]
    after: list[ShardForecast]

    def summary(self) -> dict[str, Any]:
        """Return everything except the single shards."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in found.items() if name not in _SIDES}


class Placement:
    """Tenants on shards before and after, cached by Spark until it is closed."""

    def __init__(
        self, spark: SparkSession, lake: Lake, before: Topology, after: Topology, *, from_date: str = "", to_date: str = ""
    ) -> None:  # fmt: skip
        days = sorted(day_of(one) for one in lake.partitions("usage_hourly"))
        self.days = [day for day in days if (from_date or day) <= day <= (to_date or day)]
        if not self.days:
            raise NotFound(f"lake {lake.name}: has no usage from {from_date or 'its start'} to {to_date or 'its end'}")
        usage = lake.view(spark, "usage_hourly", lambda one: day_of(one) in set(self.days))
        self.sides = {"before": before, "after": after}
        self.usage = usage.where((f.col("tenant") != "") & (f.col("queue") != "")).select(
            "tenant", "queue", "operations", "bytes_stored", "date", "hour"
        )
        queues = self.usage.groupBy("tenant", "queue").agg(f.max("bytes_stored").alias("bytes"))
        tenants = queues.groupBy("tenant").agg(f.count("*").alias("queues"), f.sum("bytes").alias("bytes"))
        tenants = tenants.join(allowed_regions(lake.view(spark, "tenant_changes")), "tenant", "left")
        few = max(2, spark.sparkContext.defaultParallelism)  # cached data keep their partitions, however small
        self.tenants = placed(tenants.fillna("", ["regions"]).coalesce(few), before, after).persist()

    def close(self) -> None:
        """Release the cache."""
        self.tenants.unpersist()

    def check(self) -> None:
        """Raise Invalid with the tenants that no shard may hold afterwards."""
        homeless = self.tenants.where(f.col("after") == NOWHERE).groupBy("tenant", "regions").count()
        found = homeless.orderBy("tenant").limit(_NAMED_MAX + 1).collect()
        if not found:
            return
        named = ", ".join(f"{row['tenant']} ({row['regions']})" for row in found[:_NAMED_MAX])
        more = f" and {homeless.count() - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
        raise Invalid(f"no shard is in a region that these tenants allow: {named}{more}; add one with --add-region")

    def moves(self) -> Iterator[bytes]:
        """Yield every move as a line of CSV."""
        yield b"tenant,from_shard,to_shard,from_region,to_region,queues,bytes\r\n"
        moved = self.tenants.where(f.col("before") != f.col("after")).orderBy("tenant")
        for row in moved.toLocalIterator():
            source = self.sides["before"].shards[row["before"]] if row["before"] != NOWHERE else None
            target = self.sides["after"].shards[row["after"]]
            yield _csv(
                row["tenant"], source.name if source else "", target.name, source.region if source else "", target.region,
                row["queues"], row["bytes"],
            )  # fmt: skip

    def loads(self) -> dict[str, list[ShardForecast]]:
        """Return the load of each shard, before and after."""
        # A merge join, no broadcast: the list of all tenants is too large for every task.
        homes = self.tenants.select("tenant", *_SIDES).hint("merge")
        sides_of = f.explode(
            f.array(*[f.struct(f.lit(one).alias("side"), f.col(one).alias("place")) for one in _SIDES])
        )

        def by_side(rows: DataFrame) -> DataFrame:
            return rows.withColumn("home", sides_of).select("*", "home.*").where(f.col("place") != NOWHERE)

        hours = by_side(self.usage.join(homes, "tenant")).groupBy("side", "place", "date", "hour").agg(
            f.sum("operations").alias("operations"), f.sum("bytes_stored").alias("bytes")
        )  # fmt: skip
        peaks = hours.groupBy("side", "place").agg(
            f.sum("operations").alias("operations"), f.max("operations").alias("busiest_hour"), f.max("bytes").alias("bytes")
        )  # fmt: skip
        counts = f.count("*").alias("tenants"), f.sum("queues").alias("queues")
        counted = by_side(self.tenants).groupBy("side", "place").agg(*counts)
        found = {
            side: [ShardForecast(shard.name, shard.region) for shard in topology.shards]
            for side, topology in self.sides.items()
        }
        for row in peaks.join(counted, ["side", "place"]).collect():
            load = found[row["side"]][row["place"]]
            for name in ("tenants", "queues", "operations", "busiest_hour", "bytes"):
                setattr(load, name, row[name])
        for side, topology in self.sides.items():
            for load, shard in zip(found[side], topology.shards, strict=True):
                used = ((load.busiest_hour, shard.operations_per_hour), (load.bytes, shard.bytes))
                load.fullness = max((have / can for have, can in used if can), default=None)
        return found

    def regions(self, loads: dict[str, list[ShardForecast]]) -> list[dict[str, Any]]:
        """Return what each region has before and after, and how many tenants arrive from other regions."""
        found: dict[str, dict[str, Any]] = {}
        for region in self.sides["after"].regions:
            row = found[region] = {"region": region, "arrivals": 0}
            for side in _SIDES:
                mine = [load for load in loads[side] if load.region == region]
                row[f"shards_{side}"] = len(mine)
                for name in ("tenants", "queues", "bytes"):
                    row[f"{name}_{side}"] = sum(getattr(load, name) for load in mine)
        pairs = self.tenants.where("before != after and before >= 0").groupBy(*_SIDES).count()
        for pair in pairs.toLocalIterator():
            source, target = (self.sides[side].shards[pair[side]].region for side in _SIDES)
            if source != target:
                found[target]["arrivals"] += pair["count"]
        return list(found.values())

    def residency(self) -> list[dict[str, Any]]:
        """Return the tenants by the regions they allow, and how many shards may hold them."""
        counts = f.count("*").alias("tenants"), f.sum("queues").alias("queues")
        rows = [row.asDict() for row in self.tenants.groupBy("regions").agg(*counts).orderBy("regions").collect()]
        for row in rows:
            allowed = row["regions"].split(",") if row["regions"] else []
            row |= {f"shards_{side}": len(topology.eligible(allowed)) for side, topology in self.sides.items()}
        return rows


def forecast_loads(placement: Placement, progress: Callable[[str], None] = lambda _: None) -> LoadForecast:
    """Return what would move and how full the shards would be; raise Invalid if residency allows no shard."""
    progress("placing tenants")
    placement.check()
    moved = (f.col("before") != f.col("after")) & (f.col("before") != NOWHERE)
    (row,) = placement.tenants.agg(
        f.count("*").alias("tenants"), f.sum("queues").alias("queues"), f.count_if(moved).alias("moved_tenants"),
        *[f.coalesce(f.sum(f.when(moved, f.col(name))), f.lit(0)).alias(f"moved_{name}") for name in ("queues", "bytes")],
        f.count_if(f.col("before") == NOWHERE).alias("placed_first"),
    ).collect()  # fmt: skip
    progress("adding up loads")
    loads = placement.loads()
    return LoadForecast(
        **row.asDict(), first_day=placement.days[0], last_day=placement.days[-1], before=loads["before"], after=loads["after"],
        shards_before=len(loads["before"]), shards_after=len(loads["after"]),
        regions=placement.regions(loads), residency=placement.residency(),
    )  # fmt: skip


def shards_csv(found: LoadForecast) -> Iterator[bytes]:
    """Yield every shard as a line of CSV."""
    yield b"shard,region,tenants_before,tenants,queues_before,queues,operations,busiest_hour,bytes_before,bytes,fullness_before,fullness\r\n"
    earlier = {load.name: load for load in found.before}
    for load in found.after:
        was = earlier.get(load.name, ShardForecast(load.name, load.region))
        yield _csv(
            load.name, load.region, was.tenants, load.tenants, was.queues, load.queues, load.operations, load.busiest_hour,
            was.bytes, load.bytes,
            *["" if one is None else f"{one:.6f}" for one in (was.fullness, load.fullness)],
        )  # fmt: skip


def _csv(*cells: object) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode(errors="replace")
