"""Frozen tenants and queues never change; those in mode fill take imports and serve nobody."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.message import Result
from tenantq.engine.ops.lifecycle import DropQueue
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.errors import Conflict, Invalid, NotFound, Suspended
from tenantq.wire.exports import ExportedKey
from tests.contract.export_import.archive import lines, written
from tests.contract.gates.harness import REASON, ServiceHarness
from tests.shards import message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.engine.restrictions import Suspension
    from tenantq.service.call import Call

HOUR = 3_600_000


async def fill_tenant(harness: ServiceHarness) -> tuple[Call, list[str]]:
    """Create acme with a queue of messages of every kind; return its administrator and the receipts of two leases."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    await harness.service.queues.put(owner, None, "work", {"max_attempts": 1, "dead_letter": "lost"})
    await harness.add(owner, "work", "a", "b", "c", "d")
    await harness.add(owner, "work", "short", ttl_ms=HOUR)
    await harness.add(owner, "work", "once", key="k-1")
    leased = await harness.take(owner, "work", max=2, lease_ms=60_000)
    return owner, [one.receipt for one in leased]


async def freeze_tenant(harness: ServiceHarness) -> None:
    """Freeze all of acme."""
    await harness.service.tenants.suspend(harness.admin, "acme", REASON, "freeze")


async def freeze_queue(harness: ServiceHarness) -> None:
    """Freeze one queue of acme."""
    await harness.service.queues.suspend(harness.admin, "acme", "work", REASON, "freeze")


@pytest.mark.parametrize("freeze", [freeze_tenant, freeze_queue])
async def test_adds_and_polls_say_why_a_tenant_is_frozen(
    harness: ServiceHarness, freeze: Callable[[ServiceHarness], Awaitable[None]]
) -> None:
    """Callers of a tenant that has moved to another server read where it is."""
    owner, _ = await fill_tenant(harness)
    waiting = asyncio.ensure_future(harness.service.messages.poll(owner, None, "lost", wait_ms=60_000))
    early = asyncio.ensure_future(harness.service.messages.poll(owner, None, "later", wait_ms=60_000))
    await harness.pass_time(0)
    await freeze(harness)
    refused: list[Awaitable[object]] = [harness.add(owner, "work", "more"), harness.take(owner, "work")]
    if freeze is freeze_tenant:
        refused += [waiting, early, harness.add(owner, "later", "more")]
    for one in refused:
        with pytest.raises(Suspended, match=REASON):
            await one
    waiting.cancel()
    early.cancel()


@pytest.mark.parametrize("freeze", [freeze_tenant, freeze_queue])
async def test_exports_of_a_frozen_tenant_are_identical(
    harness: ServiceHarness, freeze: Callable[[ServiceHarness], Awaitable[None]]
) -> None:
    """Identity and bytes are the same, although leases and TTLs end, receipts return and the reason changes."""
    owner, receipts = await fill_tenant(harness)
    await freeze(harness)
    first = await written(await harness.service.exports.export(harness.admin, "acme", "work"))
    assert {"messages": 6, "idempotency": 1}.items() <= json.loads(first["manifest.json"])["counts"].items()
    digest = await harness.service.exports.digest(harness.admin, "acme", "work", at=harness.clock.wall_ms())
    outcomes = await harness.service.settlement.ack(owner, None, "work", [receipts[0]])
    assert [one.error.code for one in outcomes if one.error] == ["lease_lost"]
    outcomes = await harness.service.settlement.nack(owner, None, "work", [receipts[1]])
    assert [one.error.code for one in outcomes if one.error] == ["lease_lost"]
    await harness.pass_time(2 * HOUR)
    await freeze(harness)
    for refused in (
        harness.add(owner, "work", "more"),
        harness.take(owner, "work"),
        harness.service.queues.purge(owner, None, "work", confirm="work", reason=REASON),
        harness.service.settlement.remove(owner, None, "work", [lines(first, "messages")[0]["id"]]),
        harness.service.queues.put(owner, None, "work", {"max_attempts": 9}),
        harness.service.queues.pause(owner, None, "work"),
        harness.service.queues.unpause(owner, None, "work"),
        harness.service.queues.delete(owner, None, "work", confirm="work", reason=REASON, force=True),
        harness.service.queues.delete(harness.admin, "acme", "work", confirm="work", reason=REASON),
    ):
        with pytest.raises(Suspended):
            await refused
    second = await written(await harness.service.exports.export(harness.admin, "acme", "work"))
    assert second == first
    again = await harness.service.exports.digest(harness.admin, "acme", "work", at=digest.now)
    assert (again.messages, again.digest, again.bytes) == (6, digest.digest, digest.bytes)


@pytest.mark.parametrize("freeze", [freeze_tenant, freeze_queue])
async def test_export_of_a_frozen_tenant_ignores_wall_clock_changes(
    harness: ServiceHarness, freeze: Callable[[ServiceHarness], Awaitable[None]]
) -> None:
    """All times, including those of results and keys, use the clock as of the freeze."""
    owner, _ = await fill_tenant(harness)
    (done,) = await harness.take(owner, "work")
    await harness.service.settlement.ack(owner, None, "work", [done.receipt], [Result("completed", b"done")])
    await freeze(harness)
    first = await written(await harness.service.exports.export(harness.admin, "acme", "work"))
    assert {"messages": 5, "results": 1, "idempotency": 1}.items() <= json.loads(first["manifest.json"])[
        "counts"
    ].items()
    at = harness.clock.wall_ms()
    digest = await harness.service.exports.digest(harness.admin, "acme", "work", at=at)
    for step in (7_001, -2 * HOUR):
        harness.clock.jump_wall(step)
        assert await written(await harness.service.exports.export(harness.admin, "acme", "work")) == first
        assert (await harness.service.exports.digest(harness.admin, "acme", "work", at=at)).digest == digest.digest


async def test_frozen_tenant_keeps_its_queues_and_settings(harness: ServiceHarness) -> None:
    """Nobody can create or delete a queue, not even one being deleted; a new reason changes no export."""
    owner, _ = await fill_tenant(harness)
    await harness.service.queues.delete(owner, None, "work", confirm="work", reason=REASON)  # waits for two leases
    await freeze_tenant(harness)
    first = await written(await harness.service.exports.export(harness.admin, "acme"))
    for refused in (
        harness.service.queues.put(owner, None, "new", {}),
        harness.service.tenants.put(harness.admin, "acme", {"weight": 7}),
        harness.service.queues.delete(harness.admin, "acme", "work", confirm="work", reason=REASON, force=True),
    ):
        with pytest.raises(Suspended, match="nothing of this may change"):
            await refused
    await harness.service.tenants.suspend(harness.admin, "acme", "it was moved", "freeze")
    await harness.pass_time(2 * HOUR)
    assert await written(await harness.service.exports.export(harness.admin, "acme")) == first
    await harness.service.tenants.resume(harness.admin, "acme")
    await harness.wait_until_idle()
    assert "work" not in harness.shard.tenant("acme").queues


async def test_drained_queue_of_a_frozen_tenant_is_deleted_on_resume(harness: ServiceHarness) -> None:
    """It stays until then, even if its deletion was already scheduled."""
    owner, receipts = await fill_tenant(harness)
    await harness.service.queues.delete(owner, None, "work", confirm="work", reason=REASON)
    await harness.service.legal_holds.place(harness.admin, "acme", REASON)
    await harness.service.settlement.ack(owner, None, "work", receipts)  # now only the hold keeps it
    await freeze_tenant(harness)
    await harness.service.legal_holds.release(harness.admin, "acme", REASON)
    await harness.wait_until_idle()
    queue = harness.shard.tenant("acme").queues["work"]
    harness.shard.state.push(DropQueue(queue))
    await harness.wait_until_idle()
    assert (queue.messages, queue.dropping) == (4, False)
    await harness.service.tenants.resume(harness.admin, "acme")
    await harness.wait_until_idle()
    assert not harness.shard.tenant("acme").queues


async def test_platform_can_force_delete_a_frozen_queue(harness: ServiceHarness) -> None:
    """A moved queue is deleted without serving in between, and its leases are not waited for."""
    await fill_tenant(harness)
    await freeze_queue(harness)
    await harness.service.queues.delete(harness.admin, "acme", "work", confirm="work", reason=REASON, force=True)
    await harness.wait_until_idle()
    assert "work" not in harness.shard.tenant("acme").queues


@pytest.mark.parametrize(("mode", "others"), [("freeze", ("settle", "fill")), ("fill", ("settle", "freeze"))])
async def test_no_other_mode_replaces_freeze_or_fill(harness: ServiceHarness, mode: Any, others: Any) -> None:
    """It would lose the reason, which a move needs to resume. A new reason is allowed, and settle may come before."""
    await fill_tenant(harness)
    acts = harness.service

    async def suspend_tenant(reason: str, mode: Any) -> Suspension | None:
        return (await acts.tenants.suspend(harness.admin, "acme", reason, mode)).suspension

    async def suspend_queue(reason: str, mode: Any) -> Suspension | None:
        return (await acts.queues.suspend(harness.admin, "acme", "work", reason, mode)).suspension

    for suspend, remedy in ((suspend_queue, "reopen it first"), (suspend_tenant, "resume it first")):
        await suspend("moving", "settle")
        before = await suspend("moving", mode)
        for other in others:
            with pytest.raises(Conflict, match=rf"mode {mode} \(moving\).*{remedy}"):
                await suspend("unpaid", other)
        after = await suspend("moved", mode)
        assert before is not None
        assert after is not None
        assert (before.mode, before.reason, after.mode, after.reason) == (mode, "moving", mode, "moved")
    await acts.tenants.resume(harness.admin, "acme")
    await acts.queues.resume(harness.admin, "acme", "work")
    for suspend in (suspend_queue, suspend_tenant):
        assert (await suspend("unpaid", "settle")) is not None


async def test_resumed_tenant_processes_everything_due(harness: ServiceHarness) -> None:
    """Leases and TTLs that ended in the meantime end now, and ready messages are delivered."""
    owner, _ = await fill_tenant(harness)
    await freeze_tenant(harness)
    await harness.pass_time(2 * HOUR)
    assert harness.shard.reads.stats("acme", "work").in_flight == 2
    await harness.service.tenants.resume(harness.admin, "acme")
    await harness.wait_until_idle()
    stats = harness.shard.reads.stats("acme", "work")
    assert (stats.in_flight, stats.ready, stats.expired_total, stats.dead) == (0, 3, 1, 2)
    assert len(await harness.take(owner, "work", max=9)) == 3
    assert (await harness.service.tenants.get(harness.admin, "acme")).suspension is None


@pytest.mark.parametrize("mode", ["freeze", "fill"])
async def test_suspended_queue_does_not_affect_others_of_its_tenant(harness: ServiceHarness, mode: Any) -> None:
    """They work, and dead letters for it stay in their queue."""
    owner, _ = await fill_tenant(harness)
    await harness.service.queues.put(owner, None, "lost", {})
    await harness.service.queues.suspend(harness.admin, "acme", "lost", REASON, mode)
    (one,) = await harness.take(owner, "work")
    await harness.service.settlement.nack(owner, None, "work", [one.receipt])
    assert harness.shard.reads.stats("acme", "lost").ready == 0
    await harness.service.queues.resume(harness.admin, "acme", "lost")
    await harness.pass_time(10 * 60_000)
    await harness.take(owner, "work", max=9)  # retries the move
    assert harness.shard.reads.stats("acme", "lost").ready == 3  # with the two whose leases have ended
    with pytest.raises(NotFound):
        await harness.service.queues.suspend(harness.admin, "acme", "nothing", REASON)
    with pytest.raises(Invalid, match="mode"):
        await harness.service.tenants.suspend(harness.admin, "acme", REASON, "sleep")  # type: ignore[arg-type]  # a lie


@pytest.mark.parametrize(("mode", "dead"), [("settle", 2), ("fill", 0)])
async def test_leased_work_that_fails_during_suspension_becomes_dead_letters(
    harness: ServiceHarness, mode: Any, dead: int
) -> None:
    """Mode settle creates their queue if needed; mode fill moves nothing and creates no queue."""
    owner, receipts = await fill_tenant(harness)
    await harness.service.tenants.suspend(harness.admin, "acme", REASON, mode)
    await harness.service.settlement.nack(owner, None, "work", receipts[:1])
    await harness.pass_time(60_001)  # the other lease ends
    assert harness.shard.tenant("acme").queues["work"].messages == 6 - dead
    assert ("lost" in harness.shard.tenant("acme").queues) == bool(dead)
    await harness.service.tenants.resume(harness.admin, "acme")
    await harness.pass_time(1_000)
    await harness.take(owner, "work", max=9)  # retries the move
    assert harness.shard.reads.stats("acme", "lost").ready == 2


@pytest.mark.parametrize("mode", ["settle", "freeze", "fill"])
async def test_suspended_queue_is_not_redriven(harness: ServiceHarness, mode: Any) -> None:
    """By name it is refused, in a shared queue its letters are skipped, and a running redrive pauses."""
    owner, receipts = await fill_tenant(harness)
    await harness.service.settlement.nack(owner, None, "work", receipts)
    await harness.service.queues.put(owner, None, "other", {"max_attempts": 1, "dead_letter": "lost"})
    await harness.add(owner, "other", "e")
    (one,) = await harness.take(owner, "other")
    await harness.service.settlement.nack(owner, None, "other", [one.receipt])
    everything = RedriveFilter()
    await harness.service.queues.suspend(harness.admin, "acme", "work", REASON, mode)
    for queue, wanted in (("work", everything), ("lost", RedriveFilter(source="work"))):
        with pytest.raises(Suspended, match="queue is suspended"):
            await harness.service.redrives.start(owner, None, queue, filter=wanted)
    task = await harness.redrive(owner, "lost", everything)
    assert (task.moved, task.skipped) == (1, 2)
    await harness.service.queues.resume(harness.admin, "acme", "work")

    slow = await harness.service.redrives.start(owner, None, "work", filter=everything, rate=1)
    await harness.wait_until_idle()
    await harness.service.queues.suspend(harness.admin, "acme", "lost", REASON, mode)
    await harness.pass_time(10_000)
    slow = await harness.service.redrives.get(owner, None, "work", slow.id)
    assert (slow.state, slow.moved, harness.shard.reads.stats("acme", "lost").ready) == ("running", 1, 1)
    with pytest.raises(Suspended, match="queue is suspended"):
        await harness.service.redrives.start(owner, None, "work", filter=everything, dry_run=True)
    await harness.service.queues.resume(harness.admin, "acme", "lost")
    for _ in range(3):
        await harness.pass_time(1_000)
    slow = await harness.service.redrives.get(owner, None, "work", slow.id)
    assert (slow.state, slow.moved, slow.reason) == ("done", 2, None)


async def test_redrive_of_a_suspended_queue_ends_if_the_queue_is_deleted(harness: ServiceHarness) -> None:
    """Its leases keep the queue for a while, and the redrive says why it was cancelled."""
    owner, receipts = await fill_tenant(harness)
    await harness.service.settlement.nack(owner, None, "work", receipts)
    await harness.take(owner, "lost", lease_ms=60_000)
    slow = await harness.service.redrives.start(owner, None, "work", filter=RedriveFilter(), rate=1)
    await harness.service.queues.suspend(harness.admin, "acme", "lost", REASON, "settle")
    await harness.pass_time(5_000)
    await harness.service.queues.delete(owner, None, "lost", confirm="lost", reason=REASON)
    await harness.pass_time(1_000)
    slow = await harness.service.redrives.get(owner, None, "lost", slow.id)
    assert (slow.state, slow.reason) == ("cancelled", "the dead-letter queue is being deleted")


async def test_only_mode_fill_accepts_imports(harness: ServiceHarness) -> None:
    """No mode of suspension serves polls."""
    owner, _ = await fill_tenant(harness)
    for mode, taken in (("settle", False), ("freeze", False), ("fill", True)):
        await harness.service.tenants.suspend(harness.admin, "acme", REASON, mode)  # type: ignore[arg-type]  # one of them
        part = harness.service.exports.import_part(
            owner, None, "work", export="1" * 32, part=1, messages=[], results=[]
        )
        if taken:
            await part
        else:
            with pytest.raises(Suspended):
                await part
        with pytest.raises(Suspended):
            await harness.take(owner, "work")
        if mode == "freeze":
            await harness.service.tenants.resume(harness.admin, "acme")
    assert (await harness.service.exports.digest(owner, None, "work", export="1" * 32)).part == 1
    assert (await harness.service.exports.digest(owner, None, "work", export="2" * 32)).part == 0


async def test_idempotency_keys_are_imported(harness: ServiceHarness) -> None:
    """The same key adds nothing; with another body it is refused, unless the original body is unknown."""
    await fill_tenant(harness)
    files = await written(await harness.service.exports.export(harness.admin, "acme", "work"))
    (known,) = [ExportedKey(**line) for line in lines(files, "idempotency")]
    await harness.tenant("copy")
    call = await harness.key("copy")
    for queue, key in (
        ("exact", known),
        ("any", ExportedKey(hash=known.hash, ids=known.ids, expires_at=known.expires_at)),
    ):
        await harness.service.queues.put(call, None, queue, {})
        await harness.service.exports.import_part(
            call, None, queue, export="1" * 32, part=1, messages=[], results=[], idempotency=[key]
        )
        (added,) = await harness.add(call, queue, "once", key="k-1")
        assert (added.duplicate, added.raw_id.hex()) == (True, known.ids)
        (other,) = await harness.add(call, queue, "another body", key="k-1")
        assert isinstance(other.error, Conflict) if queue == "exact" else other.duplicate
    await harness.pass_time(known.expires_at - harness.clock.wall_ms() + 1)
    (added,) = await harness.add(call, "exact", "once", key="k-1")
    assert not added.duplicate
    for bad in ({"hash": "x"}, {"ids": ""}, {"ids": "0" * 31}, {"body_hash": "zz"}, {"expires_at": -1}):
        fields = {"hash": "0" * 32, "ids": "0" * 32, "expires_at": 1, **bad}
        with pytest.raises(Invalid):
            await harness.service.exports.import_part(
                call,
                None,
                "any",
                export="3" * 32,
                part=1,
                messages=[],
                results=[],
                idempotency=[ExportedKey(**fields)],  # type: ignore[arg-type]  # lies
            )


async def test_batch_key_with_unknown_bodies_matches_only_batches_of_its_size(harness: ServiceHarness) -> None:
    """Another number of messages cannot be the same batch."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    first = await harness.service.messages.add(owner, None, "work", [message("a"), message("b")], key="batch")
    files = await written(await harness.service.exports.export(harness.admin, "acme", "work"))
    (line,) = lines(files, "idempotency")
    key = ExportedKey(hash=line["hash"], ids=line["ids"], expires_at=line["expires_at"])
    await harness.service.queues.put(owner, None, "other", {})
    await harness.service.exports.import_part(
        owner, None, "other", export="1" * 32, part=1, messages=[], results=[], idempotency=[key]
    )
    again = await harness.service.messages.add(owner, None, "other", [message("a"), message("b")], key="batch")
    assert [one.raw_id for one in again] == [one.raw_id for one in first]
    assert all(one.duplicate for one in again)
    with pytest.raises(Conflict):
        await harness.service.messages.add(owner, None, "other", [message("a")], key="batch")
