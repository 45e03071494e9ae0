"""Gold tables compared with plain Python: many random tenants, and cases computed by hand."""

from __future__ import annotations

import json
import math
import random
import re
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.testing import assertDataFrameEqual

from tenantq.pipeline.bronze.quarantine import QUARANTINE
from tenantq.pipeline.bronze.segments import SEGMENTS
from tenantq.pipeline.gold.anomalies import ANOMALIES, alerts, denial_bursts, new_places, probing, unusual_volume
from tenantq.pipeline.gold.compliance_gdpr_art30 import ACTIVITIES, compliance_gdpr_art30
from tenantq.pipeline.gold.compliance_soc2 import ACTIVITIES as SOC2_ACTIVITIES
from tenantq.pipeline.gold.compliance_soc2 import compliance_soc2
from tenantq.pipeline.gold.slo_daily import Objective, slo_daily
from tenantq.pipeline.gold.tenant_growth import tenant_growth
from tenantq.pipeline.gold.usage_hourly import USAGE_HOURLY, usage_hourly
from tenantq.pipeline.silver.message_lives import MESSAGE_LIVES, message_lives
from tenantq.pipeline.silver.ops_daily import OPS_DAILY, ops_daily
from tenantq.pipeline.silver.places_daily import places_daily
from tenantq.pipeline.silver.queue_hours import queue_hours
from tenantq.pipeline.silver.queue_resets import QUEUE_RESETS, queue_resets
from tenantq.pipeline.silver.tenant_changes import TENANT_CHANGES
from tests.pipeline.journals import DAY, HOUR, MINUTE, START, message_id
from tests.pipeline.test_golden import frame, nothing, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST = date(2026, 1, 1)


def usage_of(spark: SparkSession, days: dict[tuple[str, date], int]) -> DataFrame:
    """Return usage_hourly in which a tenant added and stored a number of messages on a day."""
    zero = dict.fromkeys(USAGE_HOURLY.names, 0)
    rows = [
        {
            **zero, "tenant": tenant, "queue": "q", "hour": "00", "date": f"{day}", "messages_in": count,
            "messages_stored": count, "byte_hours": None, "byte_ms": None,
        }
        for (tenant, day), count in days.items()
    ]  # fmt: skip
    return spark.createDataFrame(rows, USAGE_HOURLY)


def changed(tenant: str, quota: int, seq: int = 1) -> tuple[Any, ...]:
    """Return a row of TENANT_CHANGES that sets a quota."""
    text = f'{{"quotas":{{"messages_per_day":{quota}}}}}'
    return ("0", seq, 0, datetime(2026, 1, 1, tzinfo=UTC), tenant, "configure_tenant", text, "2026-01-01")


def test_growth_is_the_line_through_the_last_28_days(spark: SparkSession) -> None:
    """Trend, mean and the day of reaching the quota match plain least squares, with missing days."""
    chance = random.Random(11)
    days: dict[tuple[str, date], int] = {}
    quotas: dict[str, int] = {}
    for number in range(20):
        tenant, slope = f"t{number:02d}", chance.choice((-30, 0, 5, 50))
        quotas[tenant] = chance.choice((10, 1_500, 5_000, 10**9))
        for at in range(chance.choice((1, 2, 9, 40))):
            if at < 2 or chance.random() < 0.8:
                days[tenant, FIRST + timedelta(at)] = max(0, 1_000 + slope * at + chance.randint(-20, 20))
    changes = spark.createDataFrame([changed(tenant, quota) for tenant, quota in quotas.items()], TENANT_CHANGES)
    found = tenant_growth(usage_of(spark, days), changes).where("metric = 'messages_per_day'").collect()
    assert len(found) == len(days)
    for one in found:
        day, quota = date.fromisoformat(one["date"]), quotas[one["tenant"]]
        points = [
            ((at - day).days, count)
            for (tenant, at), count in days.items()
            if tenant == one["tenant"] and 0 <= (day - at).days < 28
        ]
        mean_x, mean = (sum(part) / len(points) for part in zip(*points, strict=True))
        spread = sum((x - mean_x) ** 2 for x, _ in points)
        trend = sum((x - mean_x) * (y - mean) for x, y in points) / spread if spread else 0.0
        assert (one["days"], one["last_value"], one["quota"]) == (len(points), days[one["tenant"], day], quota)
        assert one["mean"] == pytest.approx(mean)
        assert one["trend_per_day"] == pytest.approx(trend, abs=1e-9)
        assert one["quota_hit_on"] == _hit(day, days[one["tenant"], day], quota, mean - trend * mean_x, trend)


def _hit(day: date, value: int, quota: int, now: float, trend: float) -> str | None:
    if value >= quota:
        return f"{day}"
    if trend <= 0 or quota <= now:
        return None
    ahead = math.ceil(round((quota - now) / trend, 9))
    return f"{day + timedelta(ahead)}" if ahead <= 3_650 else None


def test_linear_growth_reaches_its_quota_on_the_computed_day(spark: SparkSession) -> None:
    """100 more each day from 100 reaches a quota of 1,000 on the tenth day. The last change of a quota applies."""
    days = {("acme", FIRST + timedelta(at)): 100 * (at + 1) for at in range(5)}
    changes = spark.createDataFrame([changed("acme", 600), changed("acme", 1_000, seq=2)], TENANT_CHANGES)
    found = tenant_growth(usage_of(spark, days), changes, "2026-01-05").where("metric = 'messages_per_day'").collect()
    assert [(one["trend_per_day"], one["quota_hit_on"]) for one in found] == [(pytest.approx(100.0), "2026-01-10")]


def test_service_levels_of_random_queues_match_plain_python(spark: SparkSession) -> None:
    """Percentiles are interpolated; rates and the error budget follow from counts."""
    chance = random.Random(4)
    rows: list[dict[str, Any]] = []
    waits: dict[str, list[int]] = defaultdict(list)
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for seq in range(1, 401):
        queue = f"q{chance.randint(0, 9)}"
        op = chance.choice(("poll", "poll", "ack", "dead_letter", "expire"))
        outcome = {"dead_letter": "dead", "expire": "expired"}.get(op, "ok")
        wait = chance.randint(0, 3_000)
        rows.append(row(seq, START + seq, op, queue=queue, wait_ms=wait, outcome=outcome, message_id=str(seq)))
        counts[queue][op] += 1
        if op == "poll":
            waits[queue].append(wait)
    objective = Objective(target=0.9, wait_ms=2_000)
    found = slo_daily(
        frame(spark, rows), nothing(spark, MESSAGE_LIVES), ["2026-01-01"], START + HOUR, objective
    ).collect()
    assert {one["queue"] for one in found} == set(counts)
    for one in found:
        mine, seen = counts[one["queue"]], sorted(waits[one["queue"]])
        ended = mine["ack"] + mine["dead_letter"] + mine["expire"]
        slow = sum(wait > 2_000 for wait in seen)
        bad = (slow + mine["dead_letter"] + mine["expire"]) / (len(seen) + mine["dead_letter"] + mine["expire"])
        assert (one["deliveries"], one["slow"], one["wait_max_ms"]) == (len(seen), slow, seen[-1])
        for share, name in ((0.5, "wait_p50_ms"), (0.95, "wait_p95_ms"), (0.99, "wait_p99_ms")):
            at = share * (len(seen) - 1)
            low, high = seen[math.floor(at)], seen[math.ceil(at)]
            assert one[name] == pytest.approx(low + (high - low) * (at - math.floor(at)))
        assert one["success_rate"] == pytest.approx(mine["ack"] / ended)
        assert one["dead_letter_rate"] == pytest.approx(mine["dead_letter"] / ended)
        assert one["error_budget_left"] == pytest.approx(1 - bad / 0.1)


def test_denials_within_a_minute_are_a_burst_with_a_severity(spark: SparkSession) -> None:
    """19 are none, 20 are medium and 200 high. The evidence is the first twenty rows as journal offsets."""
    rows: list[dict[str, Any]] = []
    for tenant, calls in (("calm", 19), ("loud", 20), ("mad", 200)):
        for number in range(calls):
            rows.append(row(len(rows) + 1, START + number, "poll", tenant=tenant, outcome="denied", message_id=""))
    for number in range(40):  # the same number, spread over minutes
        rows.append(row(len(rows) + 1, START + number * 10_000, "poll", tenant="slow", outcome="denied"))
    found = {one["tenant"]: one for one in denial_bursts(frame(spark, rows)).collect()}
    assert {name: (one["severity"], one["observed"]) for name, one in found.items()} == {
        "loud": ("medium", 20.0), "mad": ("high", 200.0),
    }  # fmt: skip
    assert found["loud"]["evidence"] == [f"0:{seq}.0" for seq in range(20, 40)]
    assert len(found["mad"]["evidence"]) == 20


def test_probing_and_alerts_of_the_server_are_reported(spark: SparkSession) -> None:
    """Denials in two tenants are a mistake, in three they are probing. Alerts of the server are copied unchanged."""
    rows = [
        row(number, START, "poll", tenant=tenant, principal=who, outcome="denied", message_id="")
        for number, (who, tenant) in enumerate([("key:1", "a"), ("key:1", "b"), *(("key:2", name) for name in "abc")])
    ]
    rows.append(row(9, START, "alert", outcome="probing", details="key:2 asks for others", message_id=""))
    (probe,) = probing(frame(spark, rows)).collect()
    assert (probe["principal"], probe["severity"], probe["details"]) == ("key:2", "high", "denied in a, b, c")
    (alert,) = alerts(frame(spark, rows)).collect()
    assert (alert["kind"], alert["evidence"]) == ("alert:probing", ["0:9.0"])


def test_an_unusual_volume_is_compared_with_the_median_of_previous_days(spark: SparkSession) -> None:
    """One extreme day neither hides the next nor makes normal days unusual, and a new tenant has no baseline yet."""
    days = {("steady", FIRST + timedelta(at)): 10_000 + at for at in range(12)}
    days[("steady", FIRST + timedelta(6))] = 90_000
    days[("steady", FIRST + timedelta(8))] = 100
    days |= {("new", FIRST + timedelta(at)): 10 ** (at + 1) for at in range(4)}
    days |= {("tiny", FIRST + timedelta(at)): at % 3 for at in range(12)}
    found = unusual_volume(usage_of(spark, days)).collect()
    assert {(one["tenant"], one["date"], one["severity"]) for one in found} == {
        ("steady", "2026-01-07", "high"), ("steady", "2026-01-09", "low"),
    }  # fmt: skip
    assert {one["evidence"][0] for one in found} == {f"usage_hourly/date=2026-01-0{day}/steady" for day in (7, 9)}


def test_a_key_used_from_a_new_network_is_reported_once(spark: SparkSession) -> None:
    """Networks are /24 and /48. On the first day of a key no network is new."""
    rows = [
        row(1, START, "poll", remote="10.1.2.3:400"), row(2, START, "poll", remote="10.1.2.99:401"),
        row(3, START + DAY, "poll", remote="10.1.3.3:1"), row(4, START + 2 * DAY, "poll", remote="10.1.3.4:1"),
        row(5, START + 2 * DAY, "poll", remote="[2001:db8:7:1::5]:80"), row(6, START, "poll", remote="9.9.9.9:1", outcome="denied"),
    ]  # fmt: skip
    places = places_daily(frame(spark, rows))
    networks = {(one["date"], one["network"], one["calls"]) for one in places.collect()}
    assert networks == {
        ("2026-01-01", "10.1.2.0/24", 2), ("2026-01-02", "10.1.3.0/24", 1), ("2026-01-03", "10.1.3.0/24", 1),
        ("2026-01-03", "2001:db8:7::/48", 1),
    }  # fmt: skip
    found = {(one["date"], one["details"], one["evidence"][0]) for one in new_places(places).collect()}
    assert found == {
        ("2026-01-02", "first use from 10.1.3.0/24", "0:3.0"), ("2026-01-03", "first use from 2001:db8:7::/48", "0:5.0"),
    }  # fmt: skip


def test_evidence_of_controls_is_counted_with_the_verification(spark: SparkSession) -> None:
    """Each control has its operations by tenant and day; verified segments pass, quarantined ones fail."""
    rows = [
        row(1, START, "create_key", message_id=""), row(2, START, "put_grant", message_id=""),
        row(3, START, "purge", details="2 messages", message_id=""), row(4, START, "peek", outcome="denied", count=4),
        row(5, START, "add", outcome="throttled", count=3), row(6, START, "configure_queue", message_id=""),
        row(7, START, "add"), row(8, START, "expire", outcome="expired", principal="system"), row(9, START, "peek"),
    ]  # fmt: skip
    ops = ops_daily(frame(spark, rows))
    assert ops.schema.names == OPS_DAILY.names
    verdict = dict.fromkeys(SEGMENTS.names, "") | {
        "first_seq": 1,
        "last_seq": 2,
        "rows": 2,
        "signed": True,
        "file": "date=2026-01-01/f",
    }
    segments = spark.createDataFrame([verdict, {**verdict, "reason": "truncated"}], SEGMENTS)
    quarantine = spark.createDataFrame([("truncated", "f", "0", 1, 2, 7, "")], QUARANTINE)
    odd: list[tuple[Any, ...]] = [
        ("denial_burst", "high", "acme", "", "key:1", None, None, 1.0, 1.0, "", [], "2026-01-01")
    ]
    evaluated = frame(
        spark,
        [
            row(1, START, "compliance", tenant="", queue="", outcome="failed", details=results(backup=(0, 1))),
            row(2, START + HOUR, "compliance", tenant="", queue="", outcome="failed", details=results(backup=(1, 0))),
            row(
                3,
                START,
                "compliance",
                queue="",
                outcome="failed",
                details=results(encryption=(2, 1), key_rotation=(0, 0)),
            ),
        ],
    )
    soc2 = compliance_soc2(ops, evaluated, spark.createDataFrame(odd, ANOMALIES), segments, quarantine)
    signed = "segments verified against manifest, hash chain and records, with signatures"
    common = {(signed, 1, "pass"), ("quarantined: truncated", 7, "fail")}
    failed = ("encryption: 1 of 3 failed, such as a fact", 3, "fail")
    assert evidence(soc2) == {
        "CC6.1": {("peek denied", 4, "recorded"), ("key_rotation: a threshold", 0, "not_applicable")},
        "CC6.2": {("create_key ok", 1, "recorded")}, "CC6.3": {("put_grant ok", 1, "recorded")},
        "CC6.5": {("purge ok", 1, "recorded"), ("expire expired", 1, "recorded")}, "CC6.6": {("add throttled", 3, "recorded")},
        "CC6.7": {failed}, "CC8.1": {("configure_queue ok", 1, "recorded")}, "A1.2": {("backup: a threshold", 1, "pass")},
        "CC7.2": {("high: denial_burst", 1, "recorded")}, "PI1.4": common,
    }  # fmt: skip
    assert evidence(compliance_gdpr_art30(ops, evaluated, segments, quarantine)) == {
        "30.1.b": {("add ok", 1, "recorded")}, "30.1.d": {("peek ok", 1, "recorded")},
        "30.1.f": {("purge ok", 1, "recorded"), ("expire expired", 1, "recorded")},
        "30.1.g": {
            ("peek denied", 4, "recorded"), ("add throttled", 3, "recorded"), failed,
            ("key_rotation: a threshold", 0, "not_applicable"), *common,
        },
    }  # fmt: skip


def results(**controls: tuple[int, int]) -> str:
    """Return the journal entries of a server's control checks, with the evidence that passed and failed."""
    return json.dumps(
        {
            name: {"status": "", "passed": passed, "failed": failed, "threshold": "a threshold", "text": "a fact"}
            for name, (passed, failed) in controls.items()
        }
    )


def evidence(table: DataFrame) -> dict[str, set[tuple[str, int, str]]]:
    """Return the evidence of each control."""
    found: dict[str, set[tuple[str, int, str]]] = {}
    for one in table.collect():
        found.setdefault(one["control"], set()).add((one["evidence"], one["count"], one["status"]))
        assert one["date"] == "2026-01-01"
    return found


def test_reads_of_configuration_and_the_trail_are_not_billed(spark: SparkSession) -> None:
    """They are journaled for auditors."""
    rows = [row(1, START, "peek"), row(2, START, "audit", queue=""), row(3, START, "get_tenant", queue="", count=9)]
    hours = queue_hours(frame(spark, rows), nothing(spark, MESSAGE_LIVES), nothing(spark, QUEUE_RESETS))
    assert sum(one["operations"] for one in hours.collect()) == 1


def test_deleting_a_tenant_ends_its_messages_and_its_name_can_be_reused(spark: SparkSession) -> None:
    """Messages end with the tenant, storage is charged up to that time, and a new tenant with the name starts at zero."""
    old, new = (message_id(number).hex() for number in (1, 2))
    old, new = (f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}" for one in (old, new))
    rows = frame(
        spark,
        [
            row(1, START, "add", bytes=100, message_id=old), row(2, START + MINUTE, "poll", bytes=100, message_id=old),
            row(3, START + 2 * MINUTE, "delete_tenant", queue="", message_id="", details="closed"),
            row(4, START + 90 * MINUTE, "add", bytes=7, message_id=new),
        ],
    )  # fmt: skip
    resets = queue_resets(rows).localCheckpoint()
    lives = message_lives(rows, nothing(spark, MESSAGE_LIVES), resets).frame().localCheckpoint()
    ends = {one["message_id"]: (one["outcome"], one["ended_at"]) for one in lives.collect()}
    assert ends[old][0] == "dropped"
    assert ends[old][1].astimezone(UTC) == datetime(2026, 1, 1, 0, 2, tzinfo=UTC)
    assert ends[new] == ("waiting", None)
    hours = usage_hourly(queue_hours(rows, lives, resets), nothing(spark, QUEUE_RESETS).unionByName(resets)).collect()
    by_hour = {one["hour"]: one for one in hours if one["queue"] == "work"}
    assert (int(by_hour["00"]["byte_ms"]), by_hour["00"]["messages_stored"]) == (100 * 2 * MINUTE, 0)
    assert (int(by_hour["01"]["byte_ms"]), by_hour["01"]["peak_in_flight"]) == (7 * 30 * MINUTE, 0)


def test_a_tenant_recreated_on_another_shard_starts_at_zero(spark: SparkSession) -> None:
    """A deletion in one shard's journal does not apply to another, whose records are numbered separately."""
    old, new = (message_id(number).hex() for number in (1, 2))
    old, new = (f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}" for one in (old, new))
    rows = frame(
        spark,
        [
            row(900, START, "add", bytes=100, message_id=old),
            row(901, START + 2 * MINUTE, "delete_tenant", queue="", message_id="", details="closed"),
            row(4, START + 90 * MINUTE, "add", shard="1", bytes=7, message_id=new),
        ],
    )
    resets = queue_resets(rows).localCheckpoint()
    lives = message_lives(rows, None, resets).frame().localCheckpoint()
    assert {one["message_id"]: one["outcome"] for one in lives.collect()} == {old: "dropped", new: "waiting"}
    hours = usage_hourly(queue_hours(rows, lives, resets), resets).collect()
    found = {one["hour"]: (int(one["byte_ms"]), one["messages_stored"]) for one in hours if one["queue"] == "work"}
    assert found == {"00": (100 * 2 * MINUTE, 0), "01": (7 * 30 * MINUTE, 1)}


def test_a_message_migrated_to_another_shard_ends_there(spark: SparkSession) -> None:
    """IDs are kept when a tenant is migrated away and back. The later shard decides the end, in one run and incrementally."""
    done, open_ = (message_id(number).hex() for number in (1, 2))
    done, open_ = (f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}" for one in (done, open_))
    before = [
        row(900, START, "add", bytes=5, message_id=done), row(901, START, "add", bytes=5, message_id=open_),
        row(902, START + 1, "poll", bytes=5, message_id=done, wait_ms=1),
        row(903, START + 2, "nack", message_id=done, process_ms=1),
    ]  # fmt: skip
    gone = [row(904, START + MINUTE, "delete_tenant", queue="", message_id="", details="moved away")]
    back = [
        row(4, START + HOUR, "add", shard="1", bytes=5, message_id=done),
        row(4, START + HOUR, "add", n=1, shard="1", bytes=5, message_id=open_),
        row(5, START + HOUR + 1, "poll", shard="1", bytes=5, message_id=done, wait_ms=70),
    ]
    end = [row(6, START + HOUR + 2, "ack", shard="1", bytes=5, message_id=done, process_ms=1)]
    resets = queue_resets(frame(spark, gone)).localCheckpoint()
    whole = message_lives(frame(spark, before + back + end), None, resets).frame().localCheckpoint()
    found = {one["message_id"]: one for one in whole.collect()}
    assert {id: one["outcome"] for id, one in found.items()} == {done: "acked", open_: "waiting"}
    assert (found[done]["first_wait_ms"], found[done]["attempts"], found[done]["shard"]) == (1, 2, "0")
    known: DataFrame | None = None
    for part in (before, back, end):
        known = message_lives(frame(spark, part), known, resets).frame().localCheckpoint()
    assert known is not None
    assertDataFrameEqual(known, whole)


def test_compliance_counts_only_journaled_operations() -> None:
    """An operation that is never journaled would be evidence that never appears. The audit page lists all of them."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "audit.md").read_text()
    journaled = set(re.findall(r"`([a-z_]+)`", page))
    counted = {op for _, ops, _ in (*SOC2_ACTIVITIES.values(), *ACTIVITIES.values()) for op in ops} - {"*"}
    assert counted <= journaled
