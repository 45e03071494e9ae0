"""Simulate: real usage on the shards there are and on those there would be."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import functions as f

from tenantq.errors import Invalid, NotFound
from tenantq.pipeline.simulation.placement import NOWHERE, allowed_regions, placed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tenantq.domain.placement import Topology
    from tenantq.pipeline.lake.lake import Lake

_NAMED_MAX: Final = 20


class ShardLoad(msgspec.Struct):
    """What a shard would have to bear."""

    name: str
    region: str
    tenants: int = 0
    queues: int = 0
    operations: int = 0  # over the whole period
    busiest_hour: int = 0  # operations in it
    bytes: int = 0  # the most that is stored at the end of an hour
    fullness: float | None = None  # share of its capacity, by what is nearest to it; None: its capacity is not known


class RegionLoad(msgspec.Struct):
    """A region before and after."""

    region: str
    shards_before: int = 0
    shards_after: int = 0
    tenants_before: int = 0
    tenants_after: int = 0
    queues_before: int = 0
    queues_after: int = 0
    arrivals: int = 0  # tenants that come from another region
    bytes_before: int = 0
    bytes_after: int = 0


class Residency(msgspec.Struct):
    """Tenants that allow the same regions, and the shards that may hold them."""

    regions: str
    tenants: int
    queues: int
    shards_before: int
    shards_after: int


class Simulation(msgspec.Struct):
    """What was found."""

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
    regions: list[RegionLoad]
    residency: list[Residency]
    before: list[ShardLoad]
    after: list[ShardLoad]

    def summary(self) -> dict[str, Any]:
        """Return everything but the single shards."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in found.items() if name not in {"before", "after"}}


class Placement:
    """Tenants on shards, kept by Spark until it is closed."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        before: Topology,
        after: Topology,
        *,
        from_date: str = "",
        to_date: str = "",
    ) -> None:
        days = [one.removeprefix("date=") for one in sorted(lake.partitions("usage_hourly", staged=False))]
        self.days = [day for day in days if (from_date or day) <= day <= (to_date or day)]
        if not self.days:
            raise NotFound(f"lake {lake.path}: has no usage from {from_date or 'its start'} to {to_date or 'its end'}")
        usage = lake.view(spark, "usage_hourly", lambda one: one.removeprefix("date=") in set(self.days))
        self.before, self.after = before, after
        self.usage = usage.where((f.col("tenant") != "") & (f.col("queue") != "")).select(
            "tenant", "queue", "operations", "bytes_stored", "date", "hour"
        )
        queues = self.usage.groupBy("tenant", "queue").agg(f.max("bytes_stored").alias("bytes"))
        tenants = queues.groupBy("tenant").agg(f.count("*").alias("queues"), f.sum("bytes").alias("bytes"))
        tenants = tenants.join(allowed_regions(lake.view(spark, "tenant_changes")), "tenant", "left")
        few = max(2, spark.sparkContext.defaultParallelism)  # what is kept keeps its partitions, however small they are
        self.tenants = placed(tenants.fillna("", ["regions"]).coalesce(few), before, after).persist()

    def close(self) -> None:
        """Let go of what is kept."""
        self.tenants.unpersist()

    def check(self) -> None:
        """Raise Invalid naming tenants that no shard may hold afterwards."""
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
            source = self.before.shards[row["before"]] if row["before"] != NOWHERE else None
            target = self.after.shards[row["after"]]
            yield _csv(
                row["tenant"], source.name if source else "", target.name, source.region if source else "", target.region,
                row["queues"], row["bytes"],
            )  # fmt: skip

    def loads(self) -> tuple[list[ShardLoad], list[ShardLoad]]:
        """Return what each shard bears, before and after."""
        # Merged, not broadcast: the list of all tenants is too large to be unpacked in every task.
        homes = self.tenants.select("tenant", "before", "after").hint("merge")
        sides_of = f.explode(f.array(*[f.struct(f.lit(one).alias("side"), f.col(one).alias("place")) for one in ("before", "after")]))  # fmt: skip

        def by_side(rows: DataFrame) -> DataFrame:
            return rows.withColumn("home", sides_of).select("*", "home.*").where(f.col("place") != NOWHERE)

        hours = by_side(self.usage.join(homes, "tenant")).groupBy("side", "place", "date", "hour").agg(
            f.sum("operations").alias("operations"), f.sum("bytes_stored").alias("bytes")
        )  # fmt: skip
        peaks = hours.groupBy("side", "place").agg(
            f.sum("operations").alias("operations"), f.max("operations").alias("busiest_hour"), f.max("bytes").alias("bytes")
        )  # fmt: skip
        counted = by_side(self.tenants).groupBy("side", "place").agg(f.count("*").alias("tenants"), f.sum("queues").alias("queues"))  # fmt: skip
        sides = {}
        for side, topology in (("before", self.before), ("after", self.after)):
            sides[side] = [ShardLoad(shard.name, shard.region) for shard in topology.shards]
        for row in peaks.join(counted, ["side", "place"]).collect():
            load = sides[row["side"]][row["place"]]
            load.tenants, load.queues, load.operations = row["tenants"], row["queues"], row["operations"]
            load.busiest_hour, load.bytes = row["busiest_hour"], row["bytes"]
        for side, topology in (("before", self.before), ("after", self.after)):
            for load, shard in zip(sides[side], topology.shards, strict=True):
                shares = [have / can for have, can in ((load.busiest_hour, shard.operations_per_hour), (load.bytes, shard.bytes)) if can]  # fmt: skip
                load.fullness = max(shares, default=None)
        return sides["before"], sides["after"]


def simulate(placement: Placement, progress: Callable[[str], None] = lambda _: None) -> Simulation:
    """Return what would move and how full the shards would be; Invalid where residency allows no shard."""
    progress("placing tenants")
    placement.check()
    moved = f.col("before") != f.col("after")
    known = f.col("before") != NOWHERE
    (row,) = placement.tenants.agg(
        f.count("*").alias("tenants"), f.sum("queues").alias("queues"), f.count_if(moved & known).alias("moved"),
        *[f.coalesce(f.sum(f.when(moved & known, f.col(name))), f.lit(0)).alias(f"moved_{name}") for name in ("queues", "bytes")],
        f.count_if(~known).alias("first"),
    ).collect()  # fmt: skip
    progress("adding up loads")
    before, after = placement.loads()
    return Simulation(
        placement.days[0], placement.days[-1], row["tenants"], row["queues"], len(placement.before.shards),
        len(placement.after.shards), row["moved"], row["moved_queues"], row["moved_bytes"], row["first"],
        _regions(placement, before, after), _residency(placement), before, after,
    )  # fmt: skip


def shards_csv(found: Simulation) -> Iterator[bytes]:
    """Yield every shard as a line of CSV."""
    yield b"shard,region,tenants_before,tenants,queues_before,queues,operations,busiest_hour,bytes_before,bytes,fullness_before,fullness\r\n"
    earlier = {load.name: load for load in found.before}
    for load in found.after:
        was = earlier.get(load.name, ShardLoad(load.name, load.region))
        yield _csv(
            load.name, load.region, was.tenants, load.tenants, was.queues, load.queues, load.operations, load.busiest_hour,
            was.bytes, load.bytes,
            *["" if one is None else f"{one:.6f}" for one in (was.fullness, load.fullness)],
        )  # fmt: skip


def _regions(placement: Placement, before: list[ShardLoad], after: list[ShardLoad]) -> list[RegionLoad]:
    found = {region: RegionLoad(region) for region in placement.after.regions}
    for load in before:
        one = found[load.region]
        one.shards_before += 1
        one.tenants_before, one.queues_before = one.tenants_before + load.tenants, one.queues_before + load.queues
        one.bytes_before += load.bytes
    for load in after:
        one = found[load.region]
        one.shards_after += 1
        one.tenants_after, one.queues_after = one.tenants_after + load.tenants, one.queues_after + load.queues
        one.bytes_after += load.bytes
    pairs = placement.tenants.where("before != after and before >= 0").groupBy("before", "after").count()
    for row in pairs.toLocalIterator():
        source, target = placement.before.shards[row["before"]].region, placement.after.shards[row["after"]].region
        if source != target:
            found[target].arrivals += row["count"]
    return list(found.values())


def _residency(placement: Placement) -> list[Residency]:
    rows = placement.tenants.groupBy("regions").agg(f.count("*").alias("tenants"), f.sum("queues").alias("queues"))  # fmt: skip
    return [
        Residency(row["regions"], row["tenants"], row["queues"], *[len(topology.eligible(wanted)) for topology in (placement.before, placement.after)])
        for row in rows.orderBy("regions").collect()
        for wanted in [row["regions"].split(",") if row["regions"] else []]
    ]  # fmt: skip


def _csv(*cells: object) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode(errors="replace")
