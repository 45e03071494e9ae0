"""Simulation: placement matches the plain function, loads match the usage, and residency is never violated."""

from __future__ import annotations

import csv
from collections import defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.cli.command_line import run as command_line
from tenantq.domain.placement import Topology, TopologyShard, jump_hash, load_topology, tenant_key
from tenantq.errors import Invalid
from tenantq.pipeline.gold.usage_hourly import USAGE_HOURLY
from tenantq.pipeline.silver.tenant_changes import TENANT_CHANGES
from tenantq.pipeline.simulation.forecast_page import simulation_page
from tenantq.pipeline.simulation.load_forecast import Placement, forecast_loads
from tenantq.pipeline.simulation.placement import NOWHERE, allowed_regions, jump_hash_many, placed
from tests.pipeline.chromium import Chromium

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tenantq.pipeline.lake.lake import Lake

TOPOLOGY = """
[[shards]]
name = "eu"
region = "eu"
count = 3
operations_per_hour = 100
[[shards]]
name = "us"
region = "us"
count = 2
bytes = 1000
"""


@given(st.lists(st.integers(0, 2**64 - 1), max_size=50), st.integers(1, 10_000))
def test_the_vectorized_hash_equals_the_plain_one(keys: list[int], buckets: int) -> None:
    """Without buckets there is no placement."""
    column = np.array(keys, dtype=np.uint64)
    assert jump_hash_many(column, buckets).tolist() == [jump_hash(key, buckets) for key in keys]
    assert jump_hash_many(column, 0).tolist() == [NOWHERE] * len(keys)


def test_spark_places_tenants_like_the_plain_function(spark: SparkSession) -> None:
    """Among the shards of the allowed regions, in their order, with new shards at the end."""
    before = Topology(tuple(TopologyShard(f"s{at}", ("eu", "us", "")[at % 3]) for at in range(17)))
    after = before.grown(4, {"ap": 3})
    regions = ("", "eu", "eu,us", "ap")
    rows = [(f"tenant-{at}", regions[at % 4]) for at in range(118)]
    found = placed(spark.createDataFrame(rows, "tenant string, regions string"), before, after).collect()
    assert len(found) == len(rows)
    for row in found:
        for topology, home in ((before, row["before"]), (after, row["after"])):
            allowed = row["regions"].split(",") if row["regions"] else []
            if topology.eligible(allowed):
                assert topology.shards[home] == topology.route(row["tenant"], allowed)
            else:
                assert home == NOWHERE


@pytest.fixture
def used(spark: SparkSession, lake: Lake) -> tuple[Lake, list[dict[str, Any]]]:
    """Return a lake with two hours of usage of 60 tenants; some are restricted to regions."""
    zero = {name: 0 for name in USAGE_HOURLY.names if name not in {"byte_hours", "byte_ms"}}
    rows = [
        {**zero, "tenant": f"tenant-{at:02d}", "queue": queue, "operations": at + hour * 5, "bytes_stored": at * 3 + hour,
         "byte_hours": Decimal(1), "byte_ms": Decimal(1), "hour": f"{hour:02d}", "date": "2026-01-01"}
        for at in range(60) for queue in ("work", "work-dlq") for hour in (0, 1)
    ]  # fmt: skip
    changes = [
        ("0", at + 1, 0, None, f"tenant-{at:02d}", "create_tenant", f'{{"regions":{regions}}}', "2026-01-01")
        for at in range(60)
        for regions in [('["eu"]', '["us","eu"]', "[]")[at % 3]]
    ]
    with lake.locked():
        lake.stage(spark.createDataFrame(rows, USAGE_HOURLY), "usage_hourly")
        lake.stage(spark.createDataFrame(changes, TENANT_CHANGES), "tenant_changes")
        lake.commit()
    return lake, rows


def test_loads_and_moves_match_plain_python(
    used: tuple[Lake, list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Busiest hours, stored bytes, fill levels and moves; a tenant moves with all of its queues."""
    lake, rows = used
    (tmp_path / "shards.toml").write_text(TOPOLOGY)
    before = load_topology(tmp_path / "shards.toml")
    after = before.grown(2, {"us": 1})
    arguments = ["--lake", str(lake.path), "--topology", str(tmp_path / "shards.toml"), "--out", str(tmp_path / "out")]
    assert command_line(["pipeline", "simulate", *arguments, "--add-shards", "2", "--add-region", "us=1"]) == 0
    homes = {}
    for row in rows:
        allowed = (["eu"], ["us", "eu"], [])[int(row["tenant"][-2:]) % 3]
        key = tenant_key(row["tenant"])
        for side, topology in (("before", before), ("after", after)):
            places = topology.eligible(allowed)
            homes[side, row["tenant"]] = topology.shards[places[jump_hash(key, len(places))]].name
    hours: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for row in rows:
        load = hours[homes["after", row["tenant"]]][row["hour"]]
        load[0], load[1] = load[0] + row["operations"], load[1] + row["bytes_stored"]
    listed = {one["shard"]: one for one in _read(tmp_path / "out" / "shards.csv")}
    assert list(listed) == [shard.name for shard in after.shards]
    for shard in after.shards:
        busiest = max((hour[0] for hour in hours[shard.name].values()), default=0)
        most = max((hour[1] for hour in hours[shard.name].values()), default=0)
        assert (int(listed[shard.name]["busiest_hour"]), int(listed[shard.name]["bytes"])) == (busiest, most)
        full = busiest / 100 if shard.operations_per_hour else most / 1_000
        assert float(listed[shard.name]["fullness"]) == pytest.approx(full, abs=1e-6)
    listed_moves = _read(tmp_path / "out" / "moves.csv")
    moved = {one["tenant"]: (one["from_shard"], one["to_shard"]) for one in listed_moves}
    assert {one["queues"] for one in listed_moves} == {"2"}
    expected = {
        row["tenant"]: (homes["before", row["tenant"]], homes["after", row["tenant"]])
        for row in rows
        if homes["before", row["tenant"]] != homes["after", row["tenant"]]
    }
    assert moved == expected
    assert f"would move {len(expected)} tenants" in capsys.readouterr().out
    assert all(target.split("-")[1] == "new" for _, target in moved.values())
    with Chromium() as browser:
        for width in (390, 1280):
            seen = browser.open(tmp_path / "out" / "simulation.html", width)
            assert browser.read("document.documentElement.scrollWidth") == width
            assert (seen.requests, seen.complaints) == ([], [])
        assert browser.read("document.querySelectorAll('svg.plot').length") == 4


def test_tenants_that_no_shard_can_host_are_named(
    spark: SparkSession, used: tuple[Lake, list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error, never another region. With a shard in one of their regions they are placed for the first time."""
    lake, _ = used
    (tmp_path / "us.toml").write_text('[[shards]]\nname = "us"\nregion = "us"\n')
    arguments = ["--lake", str(lake.path), "--topology", str(tmp_path / "us.toml"), "--out", str(tmp_path / "out")]
    assert command_line(["pipeline", "simulate", *arguments]) == 2
    assert "tenant-00 (eu), tenant-03 (eu)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    before = load_topology(tmp_path / "us.toml")
    placement = Placement(spark, lake, before, before.grown(0, {"eu": 1}))
    found = forecast_loads(placement)
    placement.close()
    assert (found.placed_first, found.queues, found.tenants) == (20, 120, 60)
    assert {one["regions"]: (one["tenants"], one["shards_before"], one["shards_after"]) for one in found.residency} == {
        "": (20, 1, 2), "eu": (20, 0, 1), "eu,us": (20, 1, 2),
    }  # fmt: skip
    assert b"1 \xe2\x86\x92 2 shards" in simulation_page(found)


def test_the_last_change_of_regions_applies(spark: SparkSession) -> None:
    """A change that does not name regions leaves them, and a recreated tenant starts without."""
    said = [
        ("a", "create_tenant", '{"regions":["us","eu"]}'), ("a", "configure_tenant", 'version 2: {"weight":3}'),
        ("b", "create_tenant", '{"regions":["us"]}'), ("b", "configure_tenant", 'version 2: {"regions":[]}'),
        ("c", "create_tenant", '{"regions":["us"]}'), ("c", "delete_tenant", "gone"), ("c", "create_tenant", "{}"),
    ]  # fmt: skip
    rows = [("0", at, 0, None, tenant, op, details, "2026-01-01") for at, (tenant, op, details) in enumerate(said)]
    found = allowed_regions(spark.createDataFrame(rows, TENANT_CHANGES)).collect()
    assert {row["tenant"]: row["regions"] for row in found} == {"a": "eu,us", "b": "", "c": ""}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "shards"),
        ("shards = []", "names no shard"),
        ('[[shards]]\nname = "a"\n[[shards]]\nname = "a"', "the same name"),
        ('[[shards]]\nname = "a b"', r"shards\[0\]\.name: invalid"),
        ('[[shards]]\nname = "a"\nregion = "E U"', r"shards\[0\]\.region: invalid"),
        ('[[shards]]\nname = "a"\nbytes = 0', "bytes: out of range"),
        ('[[shards]]\nname = "a"\ncount = 1000000', "count: out of range"),
        ('[[shards]]\nname = "a"\ncolour = 1', "colour"),
        ("[[", "topology"),
    ],
)
def test_an_invalid_topology_is_refused(tmp_path: Path, text: str, what: str) -> None:
    """The error names the file and the problem."""
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(Invalid, match=what):
        load_topology(tmp_path / "t.toml")


def test_new_shards_are_appended_and_distributed_over_the_regions(tmp_path: Path) -> None:
    """In turn, with unique names."""
    (tmp_path / "t.toml").write_text(TOPOLOGY)
    grown = load_topology(tmp_path / "t.toml").grown(3, {"ap": 1})
    assert [shard.name for shard in grown.shards[5:]] == ["eu-new-1", "us-new-1", "eu-new-2", "ap-new-1"]
    assert [shard.operations_per_hour for shard in grown.shards[5:]] == [100, None, 100, None]
    assert (
        command_line(["pipeline", "simulate", "--lake", "x", "--topology", "y", "--out", "z", "--add-region", "eu"])
        == 2
    )


def _read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))
