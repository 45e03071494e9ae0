"""Reads are journaled: of contents without a lease, of configuration and of the audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.domain.message import Result
from tenantq.errors import Forbidden
from tenantq.journal.audit_event import audit_event
from tenantq.service.audit_trail import AuditQuery
from tenantq.service.gate_settings import GateSettings
from tests.contract.gates.harness import REASON
from tests.shards import journal_rows

if TYPE_CHECKING:
    from tenantq.journal.record import JournalRow
    from tests.conftest import OpenShard
    from tests.contract.gates.conftest import OpenHarness
    from tests.contract.gates.harness import ServiceHarness

WINDOW_MS = GateSettings().view_window_ms
LOOKS = {"peek", "get", "result"}


async def read_rows(harness: ServiceHarness, after: int = 0) -> list[JournalRow]:
    """Return the rows about reads."""
    return [row for row in await harness.rows(after) if row.op in LOOKS]


async def test_reads_of_contents_are_journaled(harness: ServiceHarness) -> None:
    """The row has the caller, address and target; a read that returns nothing adds none."""
    await harness.tenant("acme")
    owner, key = await harness.key_and_id("acme")
    first, second = await harness.add(owner, "work", "one", "two")
    (got,) = await harness.take(owner, "work")
    await harness.service.settlement.ack(owner, None, "work", [got.receipt], [Result("completed", b"42")])
    await harness.service.message_reads.peek(owner, None, "work")
    await harness.service.message_reads.get(owner, None, "work", second.id)
    await harness.service.message_reads.result(owner, None, "work", first.id)
    taken = await harness.service.message_reads.open_snapshot(owner, None, "work")
    await harness.service.message_reads.read_snapshot(owner, None, "work", taken.id)
    await harness.service.message_reads.result(owner, None, "work", second.id)
    seen = await read_rows(harness)
    assert [(row.op, row.details) for row in seen] == [
        ("peek", "1 messages"),
        ("get", f"message {second.id}"),
        ("result", f"message {first.id}"),
        ("peek", "1 messages"),
    ]
    assert {(row.tenant, row.queue, row.principal, row.remote, row.request_id, row.outcome) for row in seen} == {
        ("acme", "work", f"key:{key}", "10.1.2.3", "r-1", "ok")
    }


async def test_reads_by_a_viewer_are_not_journaled(harness: ServiceHarness) -> None:
    """A viewer gets neither bodies nor values."""
    await harness.tenant("acme")
    owner, viewer = await harness.key("acme"), await harness.key("acme", "viewer")
    first, second = await harness.add(owner, "work", "one", "two")
    (got,) = await harness.take(owner, "work")
    await harness.service.settlement.ack(owner, None, "work", [got.receipt], [Result("completed", b"42")])
    await harness.service.message_reads.peek(viewer, None, "work")
    await harness.service.message_reads.get(viewer, None, "work", second.id)
    await harness.service.message_reads.result(viewer, None, "work", first.id)
    assert await read_rows(harness) == []


async def test_flood_of_reads_adds_few_rows_and_keeps_the_count(open_harness: OpenHarness) -> None:
    """It takes no rows from the refusals, which have their own budget."""
    harness = await open_harness(settings=GateSettings(refusal_rows_per_second=5))
    await harness.tenant("acme")
    owner = await harness.key("acme")
    await harness.add(owner, "work", "one")
    for _ in range(300):
        await harness.service.message_reads.peek(owner, None, "work")
    await harness.pass_time(2_000)
    seen = await read_rows(harness)
    assert sum(row.count for row in seen) == 300
    assert len(seen) <= 20


async def test_audit_rows_have_every_required_field(harness: ServiceHarness) -> None:
    """Control calls, denials, work and reads all show who, what, when, from where, with what, and the outcome."""
    await harness.tenant("acme")
    owner, key = await harness.key_and_id("acme")
    viewer, viewer_key = await harness.key_and_id("acme", "viewer")
    before = await harness.journal_end()
    await harness.service.queues.put(owner, None, "work", {"lease_ms": 5_000})
    with pytest.raises(Forbidden):
        await harness.service.queues.purge(viewer, None, "work", confirm="work", reason="because a test says so")
    (added,) = await harness.add(owner, "work", "one")
    await harness.service.message_reads.get(owner, None, "work", added.id)
    events = {row.op: audit_event(row) for row in await harness.rows(before)}
    assert set(events) == {"create_queue", "purge", "add", "get"}
    for op, event in events.items():
        who = f"key:{viewer_key}" if op == "purge" else f"key:{key}"
        assert (event["principal"], event["remote"], event["request_id"], event["user_agent"]) == (
            who, "10.1.2.3", "r-1", "test",
        ), op  # fmt: skip
        assert (event["tenant"], event["queue"]) == ("acme", "work")
        assert event["event_id"] == f"e{event['shard']}-{event['seq']}-{event['n']}"
        assert event["ts"] > 0
        assert event["resource"].startswith("tenants/acme/queues/work")
    assert {op: (event["result"], event["error_code"]) for op, event in events.items()} == {
        "create_queue": ("SUCCESS", ""),
        "purge": ("DENIED", "forbidden"),
        "add": ("SUCCESS", ""),
        "get": ("SUCCESS", ""),
    }
    assert events["add"]["resource"].endswith(f"/messages/{added.id}")


async def test_a_page_of_an_audit_query_is_one_read(harness: ServiceHarness) -> None:
    """Further pages of a query add no row. Other reads of the trail do, under the same action."""
    await harness.tenant("acme")
    owner, key = await harness.key_and_id("acme")
    after, service = await harness.journal_end(), harness.service
    page = await service.audit.query(owner, None, AuditQuery(limit=1))
    await service.audit.query(owner, None, AuditQuery(limit=1, cursor=page.cursor))
    await service.compliance.tenant(owner, None)
    await harness.pass_time(WINDOW_MS)
    seen = [row for row in await harness.rows(after) if row.principal != "system"]
    assert [(row.op, row.principal, row.details, row.count) for row in seen] == [
        ("audit", f"key:{key}", "", 1),
        ("audit", f"key:{key}", "compliance", 1),
    ]


async def test_polled_settings_of_a_queue_are_journaled_at_once_and_then_counted(harness: ServiceHarness) -> None:
    """An autoscaler that asks every second causes one row per window; another caller or queue gets its own row at once."""
    await harness.tenant("acme")
    scaler, scaler_key = await harness.key_and_id("acme", "viewer")
    other, other_key = await harness.key_and_id("acme")
    for queue in ("work", "mail"):
        await harness.service.queues.put(other, None, queue, {})
    after = await harness.journal_end()
    for second in range(WINDOW_MS // 1_000):
        await harness.service.queues.get(scaler, None, "work")
        if second == 5:
            await harness.service.queues.get(scaler, None, "mail")
            await harness.service.queues.get(other, None, "work")
        await harness.pass_time(1_000)
    seen = [row for row in await harness.rows(after) if row.principal != "system"]
    assert [(row.op, row.queue, row.principal, row.outcome, row.count) for row in seen] == [
        ("get_queue", "work", f"key:{scaler_key}", "ok", 1),
        ("get_queue", "mail", f"key:{scaler_key}", "ok", 1),
        ("get_queue", "work", f"key:{other_key}", "ok", 1),
        ("get_queue", "work", f"key:{scaler_key}", "ok", WINDOW_MS // 1_000 - 1),
    ]
    assert (seen[0].remote, seen[0].request_id, seen[0].user_agent) == ("10.1.2.3", "r-1", "test")


async def test_repeated_reads_cause_no_commit(harness: ServiceHarness) -> None:
    """Only the first writes a record."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    await harness.service.queues.put(owner, None, "work", {})
    await harness.service.queues.get(owner, None, "work")
    end = await harness.journal_end()
    for _ in range(500):
        await harness.service.queues.get(owner, None, "work")
    assert await harness.journal_end() == end


async def test_counted_reads_are_journaled_at_a_clean_stop(open_harness: OpenHarness, open_shard: OpenShard) -> None:
    """The count of the last window is not lost."""
    harness = await open_harness()
    await harness.tenant("acme")
    owner = await harness.key("acme")
    await harness.service.queues.put(owner, None, "work", {})
    for _ in range(4):
        await harness.service.queues.get(owner, None, "work")
    await harness.admission.close()
    await harness.wait_until_idle()
    await harness.shard.close()
    again = await open_shard("data")
    assert [row.count for row in await journal_rows(again) if row.op == "get_queue"] == [1, 3]


async def test_no_read_of_a_deleted_tenant_is_journaled_later(harness: ServiceHarness) -> None:
    """Counted reads are written before the deletion: a new tenant of the same name does not see them."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    for _ in range(3):
        await harness.service.tenants.get(owner, None)
    await harness.service.erasures.delete_tenant(harness.admin, "acme", confirm="acme", reason=REASON)
    await harness.tenant("acme")
    new_owner = await harness.key("acme")
    await harness.pass_time(2 * WINDOW_MS)
    page = await harness.service.audit.query(new_owner, None)
    assert [row.op for row in page.rows] == ["create_tenant", "create_key"]
    assert [row.count for row in await harness.rows() if row.op == "get_tenant"] == [1, 2]


async def test_reading_the_history_of_a_message_is_journaled(harness: ServiceHarness) -> None:
    """It is a part of the audit trail."""
    await harness.tenant("acme")
    owner, key = await harness.key_and_id("acme")
    (added,) = await harness.add(owner, "work", "one")
    await harness.service.message_reads.trace(owner, None, "work", added.id)
    (row,) = [row for row in await harness.rows() if row.op == "trace"]
    assert (row.tenant, row.queue, row.principal, row.outcome) == ("acme", "work", f"key:{key}", "ok")
    assert row.details == f"message {added.id}"
