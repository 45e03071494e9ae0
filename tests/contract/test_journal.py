"""The journal: every change has a row, every row is a real change, and the chain reveals tampering."""

import asyncio

import pytest

from tenantq.domain.message import Caller, Result
from tenantq.errors import Conflict, Draining, Invalid, NotFound, StoreDamaged
from tenantq.journal.record import ANCHOR_KEY, GENESIS, JournalRow, Record, decode_record, rows
from tenantq.runtime.clock import ManualClock
from tests.administration import delete_queue, finished, pause_queue, purge, put_queue, put_tenant, unpause_queue
from tests.conftest import OpenShard
from tests.shards import Q, T, message, pass_time, wait_until_idle
from tests.verbs import Shard

WHO = Caller("ci-key", "10.0.0.1", "req-1")


def stored(shard: Shard) -> list[bytes]:
    """Return the journal's values in order."""
    return [value for _, value in shard.state.store.scan_items(shard.state.store.jn, b"", b"\xff" * 9, 100_000)]


def verified(shard: Shard, link: bytes = GENESIS) -> list[Record]:
    """Walk the chain from ``link`` and return its records."""
    records = []
    for value in stored(shard):
        link, record = decode_record(value, link)
        records.append(record)
    assert link == shard.state.journal.link
    return records


def journal(shard: Shard, op: str | None = None) -> list[JournalRow]:
    """Return the journal's rows, or those of one operation."""
    found = [row for record in verified(shard) for row in rows(record)]
    return [row for row in found if op is None or row.op == op]


async def test_every_change_has_a_row_with_its_caller(shard: Shard, clock: ManualClock) -> None:
    """One operation of each kind runs, in order."""
    await put_tenant(shard, "acme", WHO, weight=2)
    await put_tenant(shard, "acme", WHO, weight=3)
    await put_queue(shard, "acme", Q, WHO, max_attempts=2)
    await put_queue(shard, "acme", Q, WHO, lease_ms=5_000)
    a, b = await shard.add("acme", Q, [message("a"), message("b")], WHO)
    first, second = await shard.poll("acme", Q, max=2, caller=WHO)
    await shard.extend("acme", Q, [first.receipt], lease_ms=9_000, caller=WHO)
    await shard.release("acme", Q, [first.receipt], WHO)
    await shard.nack("acme", Q, [second.receipt], delay_ms=0, reason="why", caller=WHO)
    first, second = await shard.poll("acme", Q, max=2, caller=WHO)
    await shard.ack("acme", Q, [first.receipt], caller=WHO)
    await shard.nack("acme", Q, [second.receipt], caller=WHO)
    await finished(shard, await shard.redrive("acme", Q, caller=WHO))
    await shard.remove("acme", Q, [b.id], WHO)
    await pause_queue(shard, "acme", Q, WHO)
    await unpause_queue(shard, "acme", Q, WHO)
    await purge(shard, "acme", Q, reason="empty it", caller=WHO)
    await delete_queue(shard, "acme", Q, reason="no use", caller=WHO)
    await wait_until_idle(shard)
    await shard.erasure.delete_tenant("acme", reason="left", caller=WHO)
    found = [row for row in journal(shard) if row.tenant == "acme"]
    mine = [(row.op, row.message_id) for row in found if row.principal == "ci-key"]
    assert mine == [
        ("create_tenant", ""),
        ("configure_tenant", ""),
        ("create_queue", ""),
        ("configure_queue", ""),
        ("add", a.id),
        ("add", b.id),
        ("poll", a.id),
        ("poll", b.id),
        ("extend", a.id),
        ("release", a.id),
        ("nack", b.id),
        ("poll", a.id),
        ("poll", b.id),
        ("ack", a.id),
        ("nack", b.id),
        ("redrive", ""),
        ("redrive", b.id),
        ("remove", b.id),
        ("pause_queue", ""),
        ("resume_queue", ""),
        ("purge", ""),
        ("delete_queue", ""),
        ("delete_tenant", ""),
    ]
    assert {(row.remote, row.request_id) for row in found if row.principal == "ci-key"} == {("10.0.0.1", "req-1")}
    system = [row.op for row in found if row.principal == "system"]
    assert system == ["create_queue", "dead_letter", "redrive", "drop_queue"]


async def test_background_changes_have_rows(shard: Shard, clock: ManualClock) -> None:
    """Covers expired leases, discarded messages, dead letters and collected keys."""
    await put_queue(shard, T, Q, max_attempts=1, dedup_ms=1_000)
    held, short = await shard.add(T, Q, [message("a", key="k"), message("b", ttl_ms=1_000)])
    await shard.poll(T, Q, lease_ms=1_000)
    await pass_time(shard, clock, 1_000)
    assert [row.message_id for row in journal(shard, "lease_expired")] == [held.id]
    assert [(row.message_id, row.details) for row in journal(shard, "dead_letter")] == [
        (held.id, "to work-dlq: LEASE_EXPIRED")
    ]
    assert [(row.message_id, row.outcome) for row in journal(shard, "expire")] == [(short.id, "expired")]
    assert journal(shard, "collect")


async def test_columns_are_correct(shard: Shard, clock: ManualClock) -> None:
    """Covers bytes, priority, attempt, waiting and processing time, and wall time."""
    batch = [message("12345", priority=3), message("1", delay_ms=400), message("", attributes={"a": "b"})]
    await shard.add(T, Q, batch)
    added = journal(shard, "add")
    assert [(row.bytes, row.priority) for row in added][:2] == [(5, 3), (1, 0)]
    assert added[2].bytes > 2  # attributes are charged too
    assert {row.ts for row in added} == {clock.wall_ms()}
    await pass_time(shard, clock, 1_000)
    got = await shard.poll(T, Q, max=3, lease_ms=5_000)
    polled = {row.message_id: row for row in journal(shard, "poll")}
    assert [polled[one.id].wait_ms for one in got] == [1_000, 1_000, 600]
    assert [polled[one.id].attempt for one in got] == [1, 1, 1]
    assert polled[got[0].id].bytes == 5
    assert polled[got[0].id].priority == 3
    await pass_time(shard, clock, 250)
    await shard.ack(T, Q, [got[0].receipt])
    await shard.nack(T, Q, [got[1].receipt], delay_ms=100, reason="why")
    (acked,), (nacked,) = journal(shard, "ack"), journal(shard, "nack")
    assert (acked.process_ms, acked.attempt, acked.bytes, acked.priority) == (250, 1, 5, 3)
    assert (nacked.process_ms, nacked.details) == (250, "why")
    await pass_time(shard, clock, 300)
    (again,) = await shard.poll(T, Q)
    last = journal(shard, "poll")[-1]
    assert (last.message_id, last.attempt, last.wait_ms) == (again.id, 2, 200)
    await pass_time(shard, clock, 4_450)
    (expired,) = journal(shard, "lease_expired")
    assert (expired.message_id, expired.process_ms, expired.attempt, expired.outcome) == (
        got[2].id,
        5_000,
        1,
        "expired",
    )


async def test_refused_operations_are_journaled(shard: Shard) -> None:
    """The row has the caller, the outcome and the error code."""
    await put_queue(shard, T, Q)
    (added,) = await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    await shard.ack(T, Q, [got.receipt])
    await shard.ack(T, Q, [got.receipt], caller=WHO)
    (row,) = [row for row in journal(shard, "ack") if row.outcome == "refused"]
    assert (row.message_id, row.error_code, row.principal) == (added.id, "lease_lost", "ci-key")
    with pytest.raises(NotFound):
        await shard.poll(T, "nowhere", caller=WHO)
    (row,) = [row for row in journal(shard, "poll") if row.outcome == "refused"]
    assert (row.tenant, row.queue, row.error_code, row.request_id) == (T, "nowhere", "not_found", "req-1")
    await shard.add(T, Q, [message()])
    await shard.poll(T, Q)
    await delete_queue(shard, T, Q)
    with pytest.raises(Draining):
        await shard.add(T, Q, [message()], WHO)
    assert [row.error_code for row in journal(shard, "add") if row.outcome == "refused"] == ["draining"]
    with pytest.raises(Invalid):
        await put_queue(shard, T, "new", WHO, lease_ms=0)
    assert [row.error_code for row in journal(shard) if row.outcome == "refused"][-1] == "invalid"


async def test_refused_messages_of_a_batch_are_journaled(shard: Shard) -> None:
    """This covers key conflicts and unknown IDs, as well as lost leases."""
    await shard.add(T, Q, [message("x", key="k")])
    (reply,) = await shard.add(T, Q, [message("y", key="k")], WHO)
    assert isinstance(reply.error, Conflict)
    await shard.remove(T, Q, [bytes(16)], WHO)
    refused = [(row.op, row.error_code) for row in journal(shard) if row.outcome == "refused"]
    assert refused == [("add", "conflict"), ("remove", "not_found")]


async def test_reads_and_empty_polls_add_no_row(shard: Shard) -> None:
    """They change nothing."""
    (added,) = await shard.add(T, Q, [message(delay_ms=1_000)])
    span = shard.journal.span
    await shard.poll(T, Q)
    await shard.reads.peek(T, Q)
    await shard.reads.get(T, Q, added.id)
    await shard.reads.result(T, Q, added.id)
    await shard.reads.trace(T, Q, added.id)
    shard.reads.stats(T, Q)
    assert shard.journal.span == span


async def test_duplicates_are_not_journaled_as_adds(shard: Shard) -> None:
    """Only real changes have rows."""
    await shard.add(T, Q, [message("x", key="k")])
    await shard.add(T, Q, [message("x", key="k")])
    assert len([row for row in journal(shard, "add") if row.outcome == "ok"]) == 1


async def test_the_chain_verifies_from_genesis_across_restarts(open_shard: OpenShard) -> None:
    """Every record links to its predecessor and the numbers have no gap."""
    shard = await open_shard()
    for _ in range(3):
        await shard.add(T, Q, [message()])
        await shard.poll(T, Q)
        await shard.close()
        shard = await open_shard()
    records = verified(shard)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert [record.engine_ms for record in records] == sorted(record.engine_ms for record in records)


async def test_changed_record_breaks_the_chain(shard: Shard) -> None:
    """Its content or its position is changed."""
    await shard.add(T, Q, [message("a")])
    await shard.add(T, Q, [message("b")])
    values = stored(shard)
    link, _ = decode_record(values[-2])
    changed = values[-1][:-1] + bytes((values[-1][-1] ^ 1,))
    with pytest.raises(StoreDamaged):
        decode_record(changed, link)
    with pytest.raises(StoreDamaged):
        decode_record(values[-1], GENESIS)
    with pytest.raises(StoreDamaged):
        decode_record(values[-1][:40])


async def test_trimming_keeps_the_chain(open_shard: OpenShard) -> None:
    """It continues from the anchor across restarts, even if everything was trimmed."""
    shard = await open_shard()
    for _ in range(10):
        await shard.add(T, Q, [message()])
    first, last = shard.journal.span
    assert (first, last) == (1, 11)
    await shard.journal.trim(5)
    assert shard.journal.span == (6, 12)
    anchor = shard.state.store.get(shard.state.store.meta, ANCHOR_KEY)
    assert anchor is not None
    records = verified(shard, anchor[8:40])
    assert [record.seq for record in records] == list(range(6, 13))
    await shard.journal.trim(shard.journal.span[1])
    await shard.close()
    shard = await open_shard()
    assert shard.journal.span == (13, 13)
    await shard.add(T, Q, [message()])
    anchor = shard.state.store.get(shard.state.store.meta, ANCHOR_KEY)
    assert anchor is not None
    assert [record.seq for record in verified(shard, anchor[8:40])] == [13, 14]
    for wrong in (0, 12, 15):
        with pytest.raises(Invalid, match="upto_seq"):
            await shard.journal.trim(wrong)


async def test_trimming_under_load_keeps_the_chain(shard: Shard) -> None:
    """The trim is a record among the others."""
    await shard.add(T, Q, [message()])
    adds = [asyncio.create_task(shard.add(T, Q, [message()])) for _ in range(20)]
    await shard.journal.trim(1)
    await asyncio.gather(*adds)
    anchor = shard.state.store.get(shard.state.store.meta, ANCHOR_KEY)
    assert anchor is not None
    numbers = [record.seq for record in verified(shard, anchor[8:40])]
    assert numbers == list(range(2, shard.journal.span[1] + 1))


async def test_trace_shows_the_life_of_a_message(shard: Shard, clock: ManualClock) -> None:
    """It covers the add, the dead letter and the redrive."""
    await put_queue(shard, T, Q, max_attempts=1)
    other, mine = await shard.add(T, Q, [message("other"), message("mine")])
    await pass_time(shard, clock, 10)
    first, second = await shard.poll(T, Q, max=2)
    await shard.nack(T, Q, [second.receipt], reason="why")
    await shard.ack(T, Q, [first.receipt], results=[Result("completed", b"r")])
    await finished(shard, await shard.redrive(T, Q))
    rows_found = await shard.reads.trace(T, Q, mine.id)
    ops = [row.op for row in rows_found]
    assert (ops[:2], set(ops[2:4]), ops[4:]) == (["add", "poll"], {"nack", "dead_letter"}, ["redrive"])
    assert {row.message_id for row in rows_found} == {mine.id}
    assert [row.op for row in await shard.reads.trace(T, Q, other.raw_id)] == ["add", "poll", "ack"]


async def test_trace_of_a_foreign_message_is_not_found(shard: Shard) -> None:
    """It looks the same as an unknown ID."""
    await put_tenant(shard, "other")
    await put_queue(shard, "other", Q)
    await put_queue(shard, T, "elsewhere")
    (added,) = await shard.add(T, Q, [message()])
    for tenant, queue, id in ((T, Q, bytes(16)), ("other", Q, added.raw_id), (T, "elsewhere", added.raw_id)):
        with pytest.raises(NotFound):
            await shard.reads.trace(tenant, queue, id)


async def test_trace_finds_a_message_added_right_after_a_restart(open_shard: OpenShard) -> None:
    """IDs of the same millisecond run ahead of the clock."""
    shard = await open_shard()
    await shard.add(T, Q, [message()])
    await shard.close()
    shard = await open_shard()
    (added,) = await shard.add(T, Q, [message()])
    await shard.poll(T, Q, max=2)
    assert [row.op for row in await shard.reads.trace(T, Q, added.id)] == ["add", "poll"]
