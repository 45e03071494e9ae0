"""Billing: closed months do not change, late data becomes corrections, and exports can be reproduced."""

from __future__ import annotations

import json
from csv import DictReader
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tenantq.cli.command_line import run as command_line
from tenantq.errors import Conflict, Invalid, NotFound
from tenantq.journal.export_target import DirectoryTarget
from tenantq.pipeline.billing import approve, close_month, corrections, export
from tenantq.pipeline.gold.invoice_corrections import month_corrections
from tenantq.pipeline.gold.invoice_lines import month_lines
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.state import Approval, ClosedMonth, LakeState
from tenantq.pipeline.price_book import Item, PriceBook, SharedCost, Tier
from tenantq.pipeline.report.writer import file_name, write_reports
from tenantq.pipeline.usage_events import lago_lines, openmeter_lines, usage_corrections
from tests.pipeline.billing_services import billing_services
from tests.pipeline.conftest import NOW, RunPipeline
from tests.pipeline.journals import DAY, START, JournalWriter, entry, message_id
from tests.pipeline.test_prices import sums
from tests.pipeline.test_report import Elements

BOOK = PriceBook(items=[Item("Operations", "operations", [Tier("2.00")])])
LINE = "2026-01/acme/Operations"


def test_a_correction_is_the_difference_to_approved_corrections() -> None:
    """Late usage is one pending row per line; approved rows stay, and only the rest is pending again."""
    billed = month_lines([sums("acme", operations=5), sums("umbrella", operations=1)], BOOK)
    now = [sums("acme", operations=8), sums("umbrella", operations=1), sums("initech", operations=2)]
    month = ClosedMonth("ann", 0, BOOK)
    rows = month_corrections(month, now, billed)
    assert [(row["line"], row["quantity"], row["amount"], row["status"]) for row in rows] == [
        ("2030-01/acme/Operations/1", Decimal(3), Decimal(6), "pending"),
        ("2030-01/initech/Operations/1", Decimal(2), Decimal(4), "pending"),
    ]
    approved = ClosedMonth("ann", 0, BOOK, [Approval("2030-01/acme/Operations", "3", "6.00", "bob", 1)])
    rows = month_corrections(approved, [sums("acme", operations=9), sums("umbrella", operations=1)], billed)
    assert [(row["line"], row["amount"], row["status"], row["approved_by"]) for row in rows] == [
        ("2030-01/acme/Operations/1", Decimal(6), "approved", "bob"),
        ("2030-01/acme/Operations/2", Decimal(2), "pending", ""),
    ]


def test_approved_corrections_become_usage_events_of_their_metric() -> None:
    """Once per metric, in its unit, also negative; neither pending ones nor shares of common costs count as usage."""
    book = PriceBook(
        items=[
            Item("Storage", "gb_hours", [Tier("1.00")]), Item("Operations", "operations", [Tier("2.00")]),
            Item("Support", "operations", [Tier("0.10")]),
        ],
        shared=[SharedCost("Platform", "100.00", "operations")],
    )  # fmt: skip
    names = ("Storage", "Operations", "Support", "Platform")
    month = ClosedMonth("ann", 0, book, [Approval(f"2030-01/acme/{one}", "-2", "1", "bob", 9_999) for one in names])
    state = LakeState(closed={"2030-01": month})
    metrics = {"Storage": "gb_hours"}
    rows = [
        {"line": f"2030-01/acme/{name}/{number}", "corrects": f"2030-01/acme/{name}", "tenant": "acme", "item": name,
         "metric": metrics.get(name, "operations"), "quantity": Decimal(-2), "currency": "EUR"}
        for name in names for number in (1, 2)
    ]  # fmt: skip
    found = list(usage_corrections(state, "2030-01", rows))
    assert [(one.id, one.at.isoformat()) for one in found] == [
        ("2030-01/acme/Operations/1", "1970-01-01T00:00:09+00:00"),
        ("2030-01/acme/Storage/1", "1970-01-01T00:00:09+00:00"),
    ]
    operations, storage = (json.loads(line) for line in openmeter_lines([], found))
    assert (operations["data"]["operations"], operations["data"]["byte_hours"]) == ("-2", "0")
    assert storage["data"]["byte_hours"] == "-2000000000"
    (event,) = json.loads(list(lago_lines([], found))[1])["events"]
    assert (event["transaction_id"], event["properties"]["value"]) == (
        "2030-01/acme/Storage/1/byte_hours",
        "-2000000000",
    )
    assert event["properties"]["corrects"] == "2030-01/acme/Storage"


def test_late_data_of_a_closed_month_is_corrected_by_approval_and_exports_are_reproducible(
    spark: SparkSession, journal: DirectoryTarget, lake: Lake, pipeline: RunPipeline, tmp_path: Path
) -> None:
    """Closed lines stay byte for byte, and a pinned version set gives the same export after later runs."""
    writer = JournalWriter(journal)
    writer.record(START, entry("create_queue"), entry("add", ids=message_id(1), size=10))
    writer.segment()
    pipeline(prices=BOOK)
    with pytest.raises(Invalid, match="another price book"):
        close_month(lake, "2026-01", PriceBook(), "ann", NOW)
    with pytest.raises(NotFound, match="no invoice lines"):
        close_month(lake, "2025-12", BOOK, "ann", NOW)
    with pytest.raises(Invalid, match=r"month 2026-01: has not ended \(today is 2026-01-31, UTC\)"):
        close_month(lake, "2026-01", BOOK, "ann", START + 31 * DAY - 1)
    assert lake.state().closed == {}
    kept = close_month(lake, "2026-01", BOOK, "ann", START + 31 * DAY)
    with pytest.raises(Conflict, match="already closed"):
        close_month(lake, "2026-01", BOOK, "ann", NOW)
    before = {kind: list(export(lake, "2026-01", kind)) for kind in ("csv", "openmeter", "lago")}
    events = {kind: before[kind] for kind in ("openmeter", "lago")}
    billed = lake.read(spark, "invoice_lines").collect()

    writer.record(START + 1, entry("add", ids=message_id(2) + message_id(3), size=[10, 10]))
    writer.segment()
    dearer = PriceBook(items=[Item("Operations", "operations", [Tier("3.00")])])
    report = pipeline(prices=dearer)
    assert (report.rows, report.repriced) == (2, [])
    assert lake.read(spark, "invoice_lines").collect() == billed
    (pending,) = corrections(lake)
    assert (pending["line"], pending["amount"], pending["status"]) == (f"{LINE}/1", Decimal("4.00"), "pending")
    assert {kind: list(export(lake, "2026-01", kind)) for kind in before} == before  # type: ignore[arg-type]
    given = ["--lake", str(lake.path), "--by", "bob"]
    assert command_line(["pipeline", "invoices", "approve", f"{LINE}/1", *given]) == 0
    assert corrections(lake)[0]["approved_by"] == "bob"
    written = DictReader(export(lake, "2026-01", "csv"))
    total = sum(Decimal(row["amount"]) for row in written)
    assert total == Decimal("8.00")
    write_reports(spark, lake, tmp_path / "reports")
    for page in (tmp_path / "reports" / "index.html", tmp_path / "reports" / "tenants" / file_name("acme")):
        values = Elements(page.read_text()).values
        assert {"4.00", str(total)} <= set(values), page.name
    with pytest.raises(NotFound, match="is not pending"):
        approve(lake, f"{LINE}/1", "bob", NOW)
    pipeline(prices=dearer)
    assert [(row["status"], row["amount"]) for row in corrections(lake)] == [("approved", Decimal("4.00"))]
    *lines, last = export(lake, "2026-01", "csv")
    assert lines == before["csv"]
    assert last.startswith(f"{LINE}/1,acme,Operations,correction,operations,2.0000000000,,4.00,EUR,")

    lake.settle()
    for kind, text in before.items():
        assert list(export(lake, "2026-01", kind, kept.number)) == text  # type: ignore[arg-type]
    with billing_services() as services:
        for kind, sent in events.items():
            accepted = services.send(kind, sent)
            assert set(accepted) == {204 if kind == "openmeter" else 200}
            exported = list(export(lake, "2026-01", kind))  # type: ignore[arg-type]
            assert services.send(kind, exported) == ([204] * 2 if kind == "openmeter" else [422, 200])
            assert exported[:-1] == sent
        approved = datetime.fromtimestamp(lake.state().closed["2026-01"].approvals[0].at_ms // 1_000, UTC)
        for found in (services.openmeter, services.lago):
            counted = {at: value for at, value in found.items() if value and at[1] == "operations"}
            assert counted == {("acme", "operations", month): 2 for month in ("2026-01", f"{approved:%Y-%m}")}
    (event,) = map(json.loads, before["openmeter"])
    assert (event["subject"], event["time"], event["data"]["messages_in"]) == ("acme", "2026-01-01T00:00:00Z", "1")
    (batch,) = map(json.loads, before["lago"])
    operations = next(one for one in batch["events"] if one["code"] == "operations")
    assert operations["external_subscription_id"] == "acme"
    assert operations["properties"] == {"value": "2"}
    out = tmp_path / "lines.csv"
    assert command_line(["pipeline", "invoices", "export", "--lake", str(lake.path), "--period", "2026-01", "--out", str(out)]) == 0  # fmt: skip
    assert out.read_text() == "".join([*lines, last])
