"""Reads of contents without a lease are journaled: peek, get, result and snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.domain.message import Result
from tenantq.errors import Forbidden
from tenantq.journal.audit_event import audit_event
from tenantq.service.audit_trail import AuditQuery
from tenantq.service.gate_settings import GateSettings

if TYPE_CHECKING:
    from tenantq.journal.record import JournalRow
    from tests.contract.gates.conftest import OpenHarness
    from tests.contract.gates.harness import ServiceHarness

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


async def test_reads_of_configuration_and_the_audit_trail_are_journaled(harness: ServiceHarness) -> None:
    """Rows have the caller and address; further pages of a query add no row."""
    await harness.tenant("acme")
    owner, key = await harness.key_and_id("acme")
    await harness.rows()
    after, service = await harness.journal_end(), harness.service
    page = await service.audit.query(owner, None, AuditQuery(limit=1))
    await service.audit.query(owner, None, AuditQuery(limit=1, cursor=page.cursor))
    await service.compliance.tenant(owner, None)
    for look in (
        service.tenants.get,
        service.encryption.get,
        service.access.list_keys,
        service.access.list_grants,
        service.templates.list,
    ):
        await look(owner, None)
    await service.access.list_platform_keys(harness.admin)
    await service.signups.list(harness.admin)
    await service.containment.list(harness.admin)
    await service.audit.query_platform(harness.admin)
    await service.compliance.platform(harness.admin)
    seen = await harness.rows(after)
    assert [(row.op, row.tenant, row.details) for row in seen] == [
        ("audit", "acme", ""), ("audit", "acme", "compliance"), ("get_tenant", "acme", ""),
        ("get_encryption", "acme", ""), ("list_keys", "acme", ""), ("list_grants", "acme", ""),
        ("list_templates", "acme", ""), ("list_platform_keys", "", ""), ("list_signups", "", ""), ("list_containments", "", ""),
        ("audit_platform", "", ""), ("audit_platform", "", "compliance"),
    ]  # fmt: skip
    assert {row.principal for row in seen if row.tenant} == {f"key:{key}"}
    assert {row.outcome for row in seen} == {"ok"}
