"""Golden tests of single transformations: late, duplicate, out-of-order, clock-skewed and empty input, and one giant tenant."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StringType, StructField, StructType
from pyspark.testing import assertDataFrameEqual

from tenantq.domain.names import PROBE_TENANTS
from tenantq.journal.segment import ROW_COLUMNS
from tenantq.pipeline.bronze.quarantine import QUARANTINE, row_faults
from tenantq.pipeline.bronze.rows import BRONZE, RowRules, valid_rows
from tenantq.pipeline.bronze.segments import SEGMENTS
from tenantq.pipeline.gold.anomalies import anomalies, denial_bursts, new_places, probing, unusual_volume
from tenantq.pipeline.gold.compliance_gdpr_art30 import compliance_gdpr_art30
from tenantq.pipeline.gold.compliance_soc2 import compliance_soc2
from tenantq.pipeline.gold.slo_daily import slo_daily
from tenantq.pipeline.gold.usage_hourly import USAGE_HOURLY, usage_hourly
from tenantq.pipeline.schemas import JOURNAL
from tenantq.pipeline.silver.message_lives import MESSAGE_LIVES, message_lives
from tenantq.pipeline.silver.ops_daily import ops_daily
from tenantq.pipeline.silver.places_daily import PLACES_DAILY, places_daily
from tenantq.pipeline.silver.queue_hours import QUEUE_HOURS, queue_hours
from tenantq.pipeline.silver.queue_resets import QUEUE_RESETS
from tests.pipeline.conftest import NOW
from tests.pipeline.journals import DAY, HOUR, MINUTE, START, message_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEGMENT_OF_FILE = StructType([*JOURNAL.fields, StructField("file", StringType())])
ID = "019b76da-a800-7000-8000-000000000001"


def row(seq: int, ts: int, op: str, n: int = 0, **columns: Any) -> dict[str, Any]:
    """Return a journal row."""
    blank: dict[str, Any] = dict.fromkeys(ROW_COLUMNS, "")
    numbers = dict.fromkeys(("bytes", "priority", "attempt", "wait_ms", "process_ms"), 0)
    at = datetime.fromtimestamp(ts / 1_000, UTC)
    return {
        **blank, **numbers, "shard": "0", "seq": seq, "n": n, "ts": at, "tenant": "acme", "queue": "work", "op": op,
        "message_id": ID, "principal": "key:1", "outcome": "ok", "count": 1, **columns,
    }  # fmt: skip


def frame(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    """Return bronze with these rows, computed once like in a lake for any number of tables."""
    return valid_rows(spark.createDataFrame(rows, JOURNAL), RowRules(now_ms=NOW)).localCheckpoint()


def nothing(spark: SparkSession, schema: Any) -> DataFrame:
    """Return an empty table."""
    return spark.createDataFrame([], schema)


def life(spark: SparkSession, rows: list[dict[str, Any]], known: DataFrame | None = None) -> DataFrame:
    """Return the message lives in these rows."""
    before = known if known is not None else nothing(spark, MESSAGE_LIVES)
    return message_lives(frame(spark, rows), before, nothing(spark, QUEUE_RESETS)).frame()


def one_life() -> list[dict[str, Any]]:
    """Return the rows of a message that fails once, over two days."""
    return [
        row(1, START, "add", bytes=70),
        row(2, START + MINUTE, "poll", bytes=70, wait_ms=MINUTE, attempt=1),
        row(3, START + 2 * MINUTE, "nack", process_ms=MINUTE),
        row(4, START + DAY, "poll", bytes=70, wait_ms=5, attempt=2),
        row(5, START + DAY + 9, "ack", bytes=70, process_ms=9),
    ]


def test_a_message_life_over_several_days_is_one_row(spark: SparkSession) -> None:
    """Waits, times, attempts and the end cover all its deliveries."""
    (found,) = life(spark, one_life()).collect()
    assert (found["first_wait_ms"], found["wait_ms"], found["process_ms"]) == (MINUTE, MINUTE + 5, MINUTE + 9)
    assert (found["attempts"], found["nacks"], found["outcome"], found["bytes"]) == (2, 1, "acked", 70)
    assert found["date"] == "2026-01-01"


def test_duplicates_and_disorder_change_nothing(spark: SparkSession) -> None:
    """Duplicate rows in any order give the same life."""
    shuffled = [*one_life(), *one_life()]
    random.Random(2).shuffle(shuffled)
    assertDataFrameEqual(life(spark, shuffled), life(spark, one_life()))


def test_late_rows_are_merged_into_the_existing_life(spark: SparkSession) -> None:
    """A life in two parts, the later one first, equals the life in one part."""
    rows = one_life()
    later = life(spark, rows[3:])
    assertDataFrameEqual(life(spark, rows[:3], later), life(spark, rows))


def test_a_clock_that_went_back_does_not_reorder_a_life(spark: SparkSession) -> None:
    """Events follow the order of the journal, not the wall clock."""
    rows = one_life()
    rows[4]["ts"] = datetime.fromtimestamp((START - HOUR) / 1_000, UTC)
    (found,) = life(spark, rows).collect()
    assert found["outcome"] == "acked"


def test_no_rows_give_empty_tables(spark: SparkSession) -> None:
    """Every transformation accepts an empty table."""
    rows, lives = nothing(spark, BRONZE), nothing(spark, MESSAGE_LIVES)
    hours = queue_hours(rows, lives, nothing(spark, QUEUE_RESETS))
    assertDataFrameEqual(hours, nothing(spark, QUEUE_HOURS))
    assertDataFrameEqual(usage_hourly(hours, nothing(spark, QUEUE_RESETS)), nothing(spark, USAGE_HOURLY))
    assert slo_daily(rows, lives, [], START).count() == 0
    assert life(spark, []).count() == 0


def test_the_servers_own_tenants_are_kept_in_silver_and_in_no_gold_table(spark: SparkSession) -> None:
    """Isolation probes count as no tenant's usage, service level, anomaly or evidence."""
    rows = [row(number, START + number, "poll", tenant=PROBE_TENANTS[0], outcome="denied") for number in range(1, 31)]
    for seq, tenant in ((40, "acme"), (50, PROBE_TENANTS[0]), (60, PROBE_TENANTS[1])):
        rows += [row(seq, START, "add", tenant=tenant, bytes=7), row(seq + 1, START, "poll", tenant=tenant, bytes=7)]
    told, lives = frame(spark, rows), nothing(spark, MESSAGE_LIVES)
    hours, ops = (
        queue_hours(told, lives, nothing(spark, QUEUE_RESETS)).localCheckpoint(),
        ops_daily(told).localCheckpoint(),
    )
    usage = usage_hourly(hours, nothing(spark, QUEUE_RESETS)).localCheckpoint()
    quarantine, segments = nothing(spark, QUARANTINE), nothing(spark, SEGMENTS)
    odd = anomalies(told, usage, places_daily(told), quarantine).localCheckpoint()
    gold = [
        usage, slo_daily(told, lives, ["2026-01-01"], START + HOUR), odd, compliance_soc2(ops, told, odd, segments, quarantine),
        compliance_gdpr_art30(ops, told, segments, quarantine),
    ]  # fmt: skip
    assert [{one["tenant"] for one in table.collect()} - {""} for table in gold] == [
        {"acme"},
        {"acme"},
        set(),
        set(),
        {"acme"},
    ]
    for table in (hours, ops):
        assert {one["tenant"] for one in table.collect()} == {"acme", *PROBE_TENANTS}


def test_bad_rows_are_reported_with_reason_and_count(spark: SparkSession) -> None:
    """The other rows are processed."""
    rows = [
        row(1, START, "add"), row(2, START, "levitate"), row(3, START, "levitate"), row(4, START, "add", bytes=-1),
        row(5, NOW + 2 * DAY, "add"), row(6, START, "add", tenant=None),
    ]  # fmt: skip
    raw, rules = spark.createDataFrame([{**one, "file": "a"} for one in rows], SEGMENT_OF_FILE), RowRules(now_ms=NOW)
    found = {one["reason"]: one["count"] for one in row_faults(raw, rules).collect()}
    assert found == {"unknown_op": 2, "negative_value": 1, "future_timestamp": 1, "missing_value": 1}
    assert valid_rows(raw, rules).count() == 1


def test_a_lease_ended_by_a_remove_counts_only_in_its_hour(spark: SparkSession) -> None:
    """It comes from the message life, and adds no hour that is not being computed."""
    early = [
        row(1, START, "add", bytes=5),
        row(2, START + MINUTE, "poll", bytes=5),
        row(3, START + HOUR, "remove", bytes=5),
    ]
    lives = message_lives(frame(spark, early), None, nothing(spark, QUEUE_RESETS)).frame()
    hours = {
        at: queue_hours(frame(spark, rows), lives, nothing(spark, QUEUE_RESETS)).collect()
        for at, rows in (("00", early[:2]), ("01", early[2:]))
    }
    assert [(one["hour"], one["in_flight_net"], one["messages_net"]) for one in hours["00"]] == [("00", 1, 1)]
    assert [(one["hour"], one["in_flight_net"], one["messages_net"]) for one in hours["01"]] == [("01", -1, -1)]
    assert hours["01"][0]["bytes_net"] == -5
    assert hours["01"][0]["removed"] == 1


def test_a_lease_ended_by_a_remove_counts_on_the_current_shard(spark: SparkSession) -> None:
    """A moved message has events of two shards, and the remove belongs to the second."""
    rows = [row(1, START, "add", shard="a", bytes=5)]
    rows += [
        row(2 + at, START + (1 + at) * MINUTE, op, shard="b", bytes=5)
        for at, op in enumerate(("add", "poll", "remove"))
    ]
    lives = message_lives(frame(spark, rows), None, nothing(spark, QUEUE_RESETS)).frame()
    hours = queue_hours(frame(spark, rows), lives, nothing(spark, QUEUE_RESETS)).collect()
    assert {one["shard"]: (one["messages_net"], one["in_flight_net"]) for one in hours} == {"a": (1, 0), "b": (0, 0)}


def test_one_giant_tenant_among_small_ones_is_counted_correctly(spark: SparkSession) -> None:
    """Nine of ten rows belong to one queue; peaks, levels and byte-hours are exact for all."""
    rows = []
    for number in range(1_000):
        tenant = "giant" if number % 10 else f"small{number % 3}"
        rows.append(
            row(number + 1, START + number * 5_000, "add", tenant=tenant, bytes=10, message_id=message_id(number).hex())
        )
    hours = queue_hours(frame(spark, rows), nothing(spark, MESSAGE_LIVES), nothing(spark, QUEUE_RESETS))
    found = {(one["tenant"], one["hour"]): one for one in usage_hourly(hours, nothing(spark, QUEUE_RESETS)).collect()}
    first = [at * 5_000 for at in range(720) if at % 10]
    assert found["giant", "00"]["peak_backlog"] == found["giant", "00"]["messages_stored"] == len(first)
    assert int(found["giant", "00"]["byte_ms"]) == sum(10 * (HOUR - at) for at in first)
    assert found["giant", "01"]["messages_stored"] == 900
    assert sum(one["messages_in"] for one in found.values()) == 1_000


def test_service_levels_are_exact(spark: SparkSession) -> None:
    """Percentiles, rates and the age of the oldest message match values computed by hand."""
    rows = [row(n, START + n, "poll", wait_ms=n * 1_000, message_id=str(n)) for n in range(1, 101)]
    rows += [
        row(200, START + 200, "ack", process_ms=7),
        row(201, START + 201, "dead_letter", outcome="dead", details="to x: y"),
    ]
    open_life = life(spark, [row(1, START - HOUR, "add", bytes=1)])
    (found,) = slo_daily(frame(spark, rows), open_life, ["2026-01-01"], START + 2 * HOUR).collect()
    assert (found["wait_p50_ms"], found["wait_max_ms"], found["deliveries"]) == (50_500.0, 100_000, 100)
    assert (found["success_rate"], found["dead_letter_rate"], found["slow"]) == (0.5, 0.5, 40)
    assert found["oldest_age_ms"] == 3 * HOUR


def test_anomalies_have_evidence(spark: SparkSession) -> None:
    """Bursts, probing, unusual volume and new networks are found with the rows that show them; normal activity is not reported."""
    denied = [
        row(n, START + n, "poll", outcome="denied", tenant=f"t{n % 4}", message_id="", count=9) for n in range(1, 13)
    ]
    rows = frame(spark, denied)
    assert {(one["tenant"], one["observed"]) for one in denial_bursts(rows).collect()} == {
        (f"t{n}", 27.0) for n in range(4)
    }
    (probe,) = probing(rows).collect()
    assert (probe["observed"], probe["evidence"][0], len(probe["evidence"])) == (4.0, "0:1.0", 12)
    zero = dict.fromkeys(USAGE_HOURLY.names, 0)
    days = [(f"2026-01-{day:02d}", 50_000 if day == 9 else 1_000 + day) for day in range(1, 11)]
    usage = [{**zero, "tenant": "acme", "queue": "q", "hour": "00", "date": date, "messages_in": count, "byte_hours": None, "byte_ms": None} for date, count in days]  # fmt: skip
    (odd,) = unusual_volume(spark.createDataFrame(usage, USAGE_HOURLY)).collect()
    assert (odd["date"], odd["severity"]) == ("2026-01-09", "high")
    at = datetime.fromtimestamp(START / 1_000, UTC)
    seen = [
        ("acme", "key:1", net, 1, at, "0:1.0", date)
        for net, date in (("a", "2026-01-01"), ("a", "2026-01-02"), ("b", "2026-01-02"))
    ]
    (place,) = new_places(spark.createDataFrame(seen, PLACES_DAILY)).collect()
    assert "from b" in place["details"]
