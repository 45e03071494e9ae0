"""Redrive: dead letters return to their source queue, filtered, rate-limited, and cancellable."""

import asyncio
import contextlib

import msgspec
import pytest

from tenantq.domain import limits
from tenantq.domain.message import LOCAL, Caller
from tenantq.engine import redrive_registry
from tenantq.engine.ops import redrive
from tenantq.engine.ops.redrive import RUNNING_MAX, CancelRedrive, StartRedrive, find_redrive
from tenantq.engine.redrive_registry import REDRIVE_ROW, stored_redrives
from tenantq.engine.redrive_task import RedriveFilter, RedriveTask
from tenantq.engine.settings import ShardSettings
from tenantq.errors import Invalid, NotFound, QuotaExceeded, StoreFailed
from tenantq.runtime.clock import ManualClock
from tenantq.runtime.randomness import id_text
from tenantq.store.row_pages import rows_under
from tests.administration import delete_queue, finished, put_queue, put_tenant
from tests.conftest import OpenShard
from tests.shards import Q, T, examined, journal_rows, message, pass_time, wait_until_idle
from tests.verbs import Shard

DLQ = f"{Q}-dlq"


async def bury(shard: Shard, count: int, reason: str = "", queue: str = Q, tenant: str = T) -> list[bytes]:
    """Create ``count`` dead letters and return their IDs."""
    await put_queue(shard, tenant, queue, max_attempts=1)
    added = await shard.add(tenant, queue, [message(f"{n}") for n in range(count)])
    while got := await shard.poll(tenant, queue, max=1_000):
        await shard.nack(tenant, queue, [one.receipt for one in got], reason=reason)
    return [one.raw_id for one in added]


async def run(shard: Shard, queue: str = Q, **options: object) -> RedriveTask:
    """Redrive and wait for the end."""
    task = await shard.redrive(T, queue, **options)  # type: ignore[arg-type]
    await asyncio.wait_for(finished(shard, task), 10)
    return task


@pytest.mark.parametrize("named", [Q, DLQ])
async def test_26_redriven_letters_have_fresh_attempts_and_their_history(shard: Shard, named: str) -> None:
    """The source queue or the dead-letter queue can be named."""
    (id,) = await bury(shard, 1, "no route")
    task = await run(shard, named)
    assert (task.progress.state, task.progress.moved, task.progress.skipped) == ("done", 1, 0)
    facts = await shard.reads.get(T, Q, id)
    assert (facts.state, facts.attempts, facts.dead) == ("ready", 0, None)
    assert [entry.reason for entry in facts.history] == ["no route"]
    assert (shard.reads.stats(T, Q).dead, shard.reads.stats(T, DLQ).bytes) == (0, 0)
    assert [one.attempt for one in await shard.poll(T, Q)] == [1]


async def test_redrive_moves_only_letters_of_the_named_queue(shard: Shard) -> None:
    """Others stay in the shared dead-letter queue."""
    for queue in ("a", "b"):
        await put_queue(shard, T, queue, dead_letter="graveyard")
        await bury(shard, 2, queue=queue)
    task = await run(shard, "a")
    assert (task.progress.moved, task.progress.skipped) == (2, 2)
    assert (
        shard.reads.stats(T, "a").ready,
        shard.reads.stats(T, "b").ready,
        shard.reads.stats(T, "graveyard").ready,
    ) == (2, 0, 2)
    assert (await run(shard, "graveyard")).progress.moved == 2
    assert shard.reads.stats(T, "b").ready == 2


async def test_reason_filter_matches_a_part_of_the_text(shard: Shard) -> None:
    """It need not be the whole reason."""
    await bury(shard, 2, "timeout after 3 s")
    await bury(shard, 3, "bad address")
    task = await run(shard, filter=RedriveFilter(reason="timeout"))
    assert (task.progress.moved, task.progress.skipped) == (2, 3)
    assert shard.reads.stats(T, Q).dead == 3


async def test_id_filter_matches_exactly(shard: Shard) -> None:
    """All given conditions must hold."""
    ids = await bury(shard, 5, "x")
    assert (await run(shard, filter=RedriveFilter(ids=frozenset(ids[1:3]), reason="y"))).progress.moved == 0
    assert (await run(shard, filter=RedriveFilter(ids=frozenset(ids[1:3])))).progress.moved == 2
    assert {one.raw_id for one in await shard.poll(T, Q, max=9)} == set(ids[1:3])
    many = frozenset(number.to_bytes(16) for number in range(limits.REDRIVE_IDS_MAX + 1))
    with pytest.raises(Invalid, match="100001 ids, allowed are 100000"):
        await shard.redrive(T, Q, filter=RedriveFilter(ids=many))
    with pytest.raises(Invalid, match="ids: must be bytes"):
        StartRedrive(shard.tenant(T), LOCAL, Q, RedriveFilter(ids=frozenset((id_text(ids[0]),))))


@pytest.mark.parametrize("limit", [1, 7, 300, 2_000])
async def test_limit_is_never_exceeded(shard: Shard, limit: int) -> None:
    """This holds across slices, and the oldest move first."""
    ids = await bury(shard, 1_000)
    task = await run(shard, filter=RedriveFilter(limit=limit))
    assert task.progress.moved == min(limit, 1_000)
    got = await shard.poll(T, Q, max=1_000)
    assert [one.raw_id for one in got] == ids[:limit]


async def test_limit_counts_only_moved_letters(shard: Shard) -> None:
    """The matches of a filter may be far behind."""
    await bury(shard, 600, "other")
    await bury(shard, 4, "wanted")
    task = await run(shard, filter=RedriveFilter(reason="wanted", limit=3))
    assert task.progress.moved == 3


async def test_rate_is_never_exceeded(shard: Shard, clock: ManualClock) -> None:
    """No second exceeds the rate, and the redrive finishes."""
    await bury(shard, 100)
    task = await shard.redrive(T, Q, rate=20)
    moved = []
    for _ in range(60):
        await pass_time(shard, clock, 100)
        moved.append(task.progress.moved)
    assert all(later - earlier <= 20 for earlier, later in zip(moved, moved[10:], strict=False))
    assert (task.progress.state, task.progress.moved) == ("done", 100)


@pytest.mark.parametrize("rate", [1, 3, 15, 250])
async def test_uneven_rates_are_respected(shard: Shard, clock: ManualClock, rate: int) -> None:
    """The actual rate is between half the rate and the rate."""
    await bury(shard, 600)
    task = await shard.redrive(T, Q, rate=rate)
    await wait_until_idle(shard)
    start = task.progress.moved
    for _ in range(20):
        await pass_time(shard, clock, 100)
    assert rate <= task.progress.moved - start <= 2 * rate


async def test_a_dry_run_counts_and_changes_nothing(shard: Shard) -> None:
    """The journal has only its start and its end."""
    await bury(shard, 700, "x")
    before = shard.journal.span[1]
    task = await run(shard, filter=RedriveFilter(reason="x"), rate=1, dry_run=True)  # counting takes no time
    assert (task.progress.moved, task.order.dry_run) == (700, True)
    assert (shard.reads.stats(T, Q).dead, shard.reads.stats(T, Q).ready) == (700, 0)
    details = [row.details for row in await journal_rows(shard, before)]
    assert details == [f"{task.id}, a dry run", f"{task.id}, done: would move 700, skipped 0"]


async def test_a_cancelled_redrive_stops_and_leaves_each_message_in_one_place(shard: Shard, clock: ManualClock) -> None:
    """Each message is in exactly one queue."""
    await bury(shard, 100)
    task = await shard.redrive(T, Q, rate=10)
    await pass_time(shard, clock, 500)
    await shard.submit(CancelRedrive(shard.tenant(T), LOCAL, Q, task.id))
    moved = task.progress.moved
    await asyncio.wait_for(finished(shard, task), 5)
    await pass_time(shard, clock, 10_000)
    assert 0 < moved < 100
    assert (task.progress.state, task.progress.moved) == ("cancelled", moved)
    await shard.submit(CancelRedrive(shard.tenant(T), LOCAL, Q, task.id))  # changes nothing
    assert len(await journal_rows(shard, op="cancel_redrive")) == 1
    assert (shard.reads.stats(T, Q).ready, shard.reads.stats(T, Q).dead) == (moved, 100 - moved)


async def test_letters_of_a_deleted_queue_stay(shard: Shard) -> None:
    """The redrive moves the others, counts these as skipped, and fails with their queue's name."""
    await put_queue(shard, T, "other", dead_letter=DLQ)
    await bury(shard, 1, queue="other")
    await bury(shard, 2)
    await delete_queue(shard, T, Q)
    await wait_until_idle(shard)
    task = await run(shard, DLQ, dry_run=True)
    assert (task.progress.state, task.progress.moved, task.progress.skipped) == ("done", 1, 2)
    task = await run(shard, DLQ)
    assert (task.progress.state, task.progress.moved, task.progress.skipped) == ("failed", 1, 2)
    assert task.progress.missing == Q
    assert (shard.reads.stats(T, DLQ).ready, shard.reads.stats(T, "other").ready) == (2, 1)


async def test_letter_in_flight_is_not_moved(shard: Shard) -> None:
    """Its consumer keeps it."""
    await bury(shard, 2)
    (held,) = await shard.poll(T, DLQ)
    assert (await run(shard)).progress.moved == 1
    assert (await shard.ack(T, DLQ, [held.receipt]))[0].ok


async def test_redriving_a_queue_without_dead_letters_does_nothing(shard: Shard) -> None:
    """Its own messages are not dead letters."""
    await shard.add(T, Q, [message()])
    assert (await run(shard)).progress.moved == 0
    assert shard.reads.stats(T, Q).ready == 1
    with pytest.raises(NotFound):
        await shard.redrive(T, "nowhere")


async def test_a_rate_out_of_range_is_an_argument_error(shard: Shard) -> None:
    """Zero is not "as fast as possible"."""
    await bury(shard, 1)
    for wrong in (0, -1, True, 1.5, 10**7):
        with pytest.raises(Invalid, match="rate"):
            await shard.redrive(T, Q, rate=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["tenant", "queue"])
async def test_redrive_ends_with_its_tenant_or_queue(shard: Shard, clock: ManualClock, end: str) -> None:
    """Nobody waits for it forever, and no row of it stays."""
    await put_tenant(shard, "other")
    await bury(shard, 50, tenant="other")
    task = await shard.redrive("other", Q, rate=10)
    await shard.submit(CancelRedrive(shard.tenant("other"), LOCAL, Q, (await shard.redrive("other", Q, rate=1)).id))
    waiting = asyncio.create_task(finished(shard, task))
    await wait_until_idle(shard)
    assert len(stored_redrives(shard.state.store)) == 2
    if end == "tenant":
        await shard.erasure.delete_tenant("other")
    else:
        await delete_queue(shard, "other", DLQ, force=True)
    clock.advance(1_000)
    done, _ = await asyncio.wait([waiting], timeout=2)
    assert done
    waiting.exception()
    await wait_until_idle(shard)
    assert stored_redrives(shard.state.store) == []
    assert shard.state.redrives.get(task.id) is None
    await shard.close()
    assert examined(shard).findings == []


async def rows_of(shard: Shard, op: str) -> list[str]:
    """Return the messages of all journal rows of an operation."""
    return [row.message_id for row in await journal_rows(shard, op=op) if row.message_id]


@pytest.mark.parametrize("queue", [Q, DLQ])
async def test_a_redrive_continues_after_a_restart(open_shard: OpenShard, clock: ManualClock, queue: str) -> None:
    """It keeps its ID, rate and counts, and moves each message once."""
    shard = await open_shard()
    ids = await bury(shard, 100)
    task = await shard.redrive(T, queue, rate=20, caller=Caller("jwt:ann"))
    for _ in range(3):
        for _ in range(10):
            await pass_time(shard, clock, 100)
        await shard.close()
        before = task.progress
        assert before.state == "running"
        assert 0 < before.moved < 100
        shard = await open_shard()
        task = find_redrive(shard.state, T, queue, task.id)
        assert task.progress == before
        await wait_until_idle(shard)
        assert task.progress == before  # its rate holds across the restart
    while task.is_running:
        await pass_time(shard, clock, 100)
    assert (task.progress.state, task.progress.moved) == ("done", 100)
    assert sorted(await rows_of(shard, "redrive")) == sorted(map(id_text, ids))
    rows = await journal_rows(shard, op="redrive")
    assert {row.principal for row in rows if row.message_id} == {"jwt:ann"}
    assert (rows[-1].principal, rows[-1].details) == ("system", f"{task.id}, done: moved 100, skipped 0")
    assert len({one.raw_id for one in await shard.poll(T, Q, max=1_000)}) == 100
    await shard.close()
    assert examined(shard).findings == []


async def test_conditions_of_a_redrive_survive_a_restart(open_shard: OpenShard, clock: ManualClock) -> None:
    """IDs, limit, reason and target are the same afterwards."""
    shard = await open_shard()
    await put_queue(shard, T, "else")
    others, ids = await bury(shard, 10, "no route"), await bury(shard, 10, "timeout")
    wanted = RedriveFilter(ids=frozenset((*others, *ids[1:])), reason="time", limit=7, to="else")
    caller = Caller("jwt:ann", "192.0.2.1", "", "browser")
    task = await shard.redrive(T, Q, filter=wanted, rate=10, caller=caller)
    for _ in range(14):
        await pass_time(shard, clock, 100)
    assert 0 < task.progress.moved < 7
    await shard.close()
    shard = await open_shard()
    task = find_redrive(shard.state, T, Q, task.id)
    while task.is_running:
        await pass_time(shard, clock, 100)
    assert [one.raw_id for one in await shard.poll(T, "else", max=99)] == ids[1:8]
    kept = task.order  # nobody needs the rest any more
    assert (kept.ids, kept.reason, kept.limit, kept.caller) == (None, None, None, Caller(""))
    await shard.close()
    shard = await open_shard()
    ended = find_redrive(shard.state, T, Q, task.id)
    assert (ended.order, ended.progress) == (task.order, task.progress)
    assert (ended.progress.state, ended.progress.moved, ended.progress.skipped) == ("done", 7, 11)


async def test_a_round_that_is_not_written_moves_nothing_and_counts_nothing(open_shard: OpenShard) -> None:
    """Messages and progress are one commit: a crash before it leaves both as they were."""

    class Killed(Exception):
        pass

    rounds = 0

    def probe(point: str) -> None:
        nonlocal rounds
        if point == "before_write" and started:
            rounds += 1
            if rounds == 4:
                raise Killed

    started = False
    shard = await open_shard(settings=ShardSettings(sweep_rows=20), probe=probe)
    await bury(shard, 100)
    started = True
    task = await shard.redrive(T, Q)
    await asyncio.wait_for(task.ended.wait(), 5)
    assert isinstance(shard.failure, StoreFailed)
    with contextlib.suppress(StoreFailed):
        await shard.close()
    shard = await open_shard(settings=ShardSettings(sweep_rows=20))
    found = stored_redrives(shard.state.store)
    assert [(one.id, one.progress.state) for one in found] == [(task.id, "running")]
    again = find_redrive(shard.state, T, Q, task.id)
    assert 0 < found[0].progress.moved == 100 - shard.reads.stats(T, Q).dead < 100
    await asyncio.wait_for(finished(shard, again), 5)
    assert (again.progress.state, again.progress.moved, shard.reads.stats(T, Q).ready) == ("done", 100, 100)
    assert len(await rows_of(shard, "redrive")) == 100
    await shard.close()
    assert examined(shard).findings == []


async def test_a_dry_run_counts_everything_once_across_a_restart(open_shard: OpenShard) -> None:
    """Nothing of it is stored before its end, so it starts again."""
    shard = await open_shard()
    await bury(shard, 300, "x")
    task = await shard.redrive(T, Q, filter=RedriveFilter(reason="x"), dry_run=True)
    await shard.close()
    shard = await open_shard()
    task = find_redrive(shard.state, T, Q, task.id)
    await asyncio.wait_for(finished(shard, task), 5)
    assert (task.progress.state, task.progress.moved) == ("done", 300)
    assert shard.reads.stats(T, Q).dead == 300


async def test_only_the_newest_ended_redrives_of_a_tenant_are_kept(
    open_shard: OpenShard, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that run stay in any case, and those of other tenants too."""
    monkeypatch.setattr(redrive_registry, "ENDED_MAX", 1)
    shard = await open_shard()
    await put_tenant(shard, "other")
    await bury(shard, 1, tenant="other")
    other = await shard.redrive("other", Q)
    await finished(shard, other)
    await bury(shard, 50)
    running = await shard.redrive(T, Q, rate=1)
    ended = []
    for _ in range(5):
        clock.advance(10)
        ended.append((await run(shard, filter=RedriveFilter(limit=0))).id)
    await shard.close()
    shard = await open_shard()
    kept = shard.state.redrives.of(shard.state.queue(T, DLQ))
    assert [one.id for one in kept] == [running.id, *ended[-2:]]
    assert {one.id for one in stored_redrives(shard.state.store)} == {other.id, running.id, *ended[-2:]}
    with pytest.raises(NotFound, match="unknown redrive"):
        find_redrive(shard.state, T, Q, ended[0])


async def test_running_redrives_of_a_tenant_are_limited(shard: Shard) -> None:
    """An ended one makes room."""
    await bury(shard, 200)
    tasks = [await shard.redrive(T, Q, rate=1) for _ in range(RUNNING_MAX)]
    with pytest.raises(QuotaExceeded, match="redrives: at most 100 can run"):
        await shard.redrive(T, Q, rate=1)
    await shard.submit(CancelRedrive(shard.tenant(T), LOCAL, Q, tasks[0].id))
    assert (await shard.redrive(T, Q, rate=1)).is_running


async def test_message_ids_of_running_redrives_are_limited_together(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are kept in memory. Another tenant has its own limit."""
    monkeypatch.setattr(limits, "REDRIVE_IDS_MAX", 10)
    ids = await bury(shard, 20)
    await put_tenant(shard, "other")
    others = await bury(shard, 10, tenant="other")
    task = await shard.redrive(T, Q, filter=RedriveFilter(ids=frozenset(ids[:6])), rate=1)
    with pytest.raises(QuotaExceeded, match=r"ids: too many \(5, and 6 of redrives that run; allowed are 10 "):
        await shard.redrive(T, Q, filter=RedriveFilter(ids=frozenset(ids[6:11])))
    await shard.redrive("other", Q, filter=RedriveFilter(ids=frozenset(others)))
    await shard.submit(CancelRedrive(shard.tenant(T), LOCAL, Q, task.id))
    assert (await run(shard, filter=RedriveFilter(ids=frozenset(ids[6:16])))).progress.moved == 10


async def test_unreadable_rows_stop_only_their_redrives(open_shard: OpenShard, clock: ManualClock) -> None:
    """The shard opens and keeps the rows, and the doctor reports them."""
    shard = await open_shard()
    await bury(shard, 20)
    tasks = [await shard.redrive(T, Q, rate=10) for _ in range(3)]
    torn = msgspec.structs.replace(tasks[1].order, rate=0)
    store, prefix = shard.state.store, REDRIVE_ROW + shard.state.queue(T, DLQ).prefix
    batch = store.new_batch()
    batch.put(prefix + tasks[0].id.encode(), b"torn", store.meta.handle)
    batch.put(prefix + tasks[1].id.encode(), msgspec.msgpack.encode(torn), store.meta.handle)
    store.write(batch)
    await shard.close()
    shard = await open_shard()
    for unreadable in tasks[:2]:
        with pytest.raises(NotFound):
            find_redrive(shard.state, T, Q, unreadable.id)
    task = find_redrive(shard.state, T, Q, tasks[2].id)
    while task.is_running:
        await pass_time(shard, clock, 100)
    assert shard.reads.stats(T, Q).ready == 20
    assert {one.id for one in stored_redrives(shard.state.store)} == {one.id for one in tasks}
    await shard.close()
    found = examined(shard).findings
    assert sorted((one.kind, one.text.split(":")[0]) for one in found) == sorted(
        ("damaged", f"Redrive {one.id} cannot be read") for one in tasks[:2]
    )


async def test_a_redrive_that_moves_nothing_stores_its_position(
    open_shard: OpenShard, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart, a filter is not applied to everything again."""
    monkeypatch.setattr(redrive, "UNSTORED_MAX", 30)
    shard = await open_shard()
    await bury(shard, 200)
    task = await shard.redrive(T, Q, filter=RedriveFilter(reason="none"), rate=100)
    for _ in range(4):
        await pass_time(shard, clock, 100)
    assert task.progress.skipped == 50
    assert [one.progress.skipped for one in stored_redrives(shard.state.store)] == [30]
    rows = await journal_rows(shard, op="redrive")
    assert [row.details for row in rows[1:]] == [f"{task.id}, running: 30 messages checked"]
    assert "unexplained" not in {row.op for row in await journal_rows(shard)}
    await shard.close()
    shard = await open_shard()
    task = find_redrive(shard.state, T, Q, task.id)
    assert task.progress.skipped == 30
    while task.is_running:
        await pass_time(shard, clock, 100)
    assert (task.progress.state, task.progress.moved, task.progress.skipped) == ("done", 0, 200)


async def test_a_redrive_waits_for_free_disk_space(
    shard: Shard, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reserve is needed for settling and deleting."""
    await bury(shard, 10)
    files = type(shard.state.store.files)
    await pass_time(shard, clock, 1_000)
    with monkeypatch.context() as patch:
        patch.setattr(files, "free_bytes", lambda _: 0)
        task = await shard.redrive(T, Q)
        await pass_time(shard, clock, 5_000)
        assert (task.is_running, task.progress.moved) == (True, 0)
        assert (await run(shard, dry_run=True)).progress.moved == 10
    await pass_time(shard, clock, 1_000)
    assert (task.progress.state, task.progress.moved) == ("done", 10)


async def test_normal_operation_stores_nothing_about_redrives(shard: Shard) -> None:
    """Only a redrive has rows."""
    await bury(shard, 3)
    assert list(rows_under(shard.state.store, shard.state.store.meta, REDRIVE_ROW)) == []
    assert (await run(shard)).progress.moved == 3
    assert len(list(rows_under(shard.state.store, shard.state.store.meta, REDRIVE_ROW))) == 2


async def test_a_redriven_message_survives_a_restart(open_shard: OpenShard) -> None:
    """It is in exactly one queue."""
    shard = await open_shard()
    await bury(shard, 3)
    await run(shard)
    await shard.close()
    shard = await open_shard()
    assert (shard.reads.stats(T, Q).ready, shard.reads.stats(T, Q).dead) == (3, 0)
    assert len(await shard.poll(T, Q, max=9)) == 3


async def test_redriven_message_gets_the_ttl_of_a_new_one(shard: Shard, clock: ManualClock) -> None:
    """It counts from the move; without a queue TTL it never expires."""
    (id,) = await bury(shard, 1)
    await put_queue(shard, T, Q, ttl_ms=5_000)
    await pass_time(shard, clock, 60_000)
    await run(shard)
    moved_at = clock.wall_ms()
    assert (await shard.reads.get(T, Q, id)).expires_at == moved_at + 5_000
    (got,) = await shard.poll(T, Q, lease_ms=8_000)
    await pass_time(shard, clock, 6_000)  # messages in flight may finish
    assert shard.reads.stats(T, Q).in_flight == 1
    await shard.ack(T, Q, [got.receipt])
    (other,) = await bury(shard, 1)
    await run(shard)
    await pass_time(shard, clock, 5_001)
    with pytest.raises(NotFound):
        await shard.reads.get(T, Q, other)
    assert shard.reads.stats(T, Q).bytes == 0
    await put_queue(shard, T, Q, ttl_ms=None)
    (last,) = await bury(shard, 1)
    await run(shard)
    assert (await shard.reads.get(T, Q, last)).expires_at is None
