"""Behaviours 50 and 51, and the configuration of tenants: suspended, resumed, changed, deleted without a trace."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.access import Grant, KeyUse, StoredKey
from tenantq.domain.message import LOCAL, Result
from tenantq.engine.ops.lifecycle import PutTenant
from tenantq.errors import Conflict, Draining, Invalid, NotFound, Suspended, TenantqError
from tenantq.store.keys import FAMILIES, tenant_prefix
from tests.administration import (
    delete_queue,
    note_key_use,
    put_grant,
    put_key,
    put_queue,
    put_tenant,
    queues,
    resume_tenant,
    revoke_token,
    suspend_tenant,
    tenants,
    usage,
)
from tests.shards import journal_rows, message, pass_time, wait_until_idle

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock
    from tests.conftest import OpenShard
    from tests.verbs import Shard

ACME, Q = "acme", "work"


async def acme(shard: Shard) -> list[str]:
    """Create a tenant with two leased and three ready messages; return the receipts."""
    await put_tenant(shard, ACME)
    await shard.add(ACME, Q, [message(f"{n}") for n in range(5)])
    return [one.receipt for one in await shard.poll(ACME, Q, max=2, lease_ms=60_000)]


# ---- 50: suspended ----


async def test_50_suspended_tenant_refuses_adds_and_polls(shard: Shard) -> None:
    """The error is typed, new queues are refused too, and nothing changes."""
    await acme(shard)
    await suspend_tenant(shard, ACME, reason="unpaid")
    before = usage(shard, ACME), shard.reads.stats(ACME, Q)
    for act in (
        shard.add(ACME, Q, [message()]),
        shard.add(ACME, "new", [message()]),
        shard.poll(ACME, Q),
        shard.poll(ACME, Q, wait_ms=60_000),
    ):
        with pytest.raises(Suspended) as caught:
            await act
        assert (caught.value.code, caught.value.status, caught.value.tenant) == ("forbidden", 403, ACME)
    assert await shard.fleet_poll(Q) == []
    assert (usage(shard, ACME), shard.reads.stats(ACME, Q)) == before
    assert set(queues(shard, ACME)) == {Q}


async def test_50_leased_work_of_a_suspended_tenant_may_finish(shard: Shard) -> None:
    """Ack with a result, nack, release and extend work; returned messages wait."""
    await put_tenant(shard, ACME)
    await shard.add(ACME, Q, [message(f"{n}") for n in range(4)])
    held = await shard.poll(ACME, Q, max=4, lease_ms=60_000)
    await suspend_tenant(shard, ACME)
    assert (await shard.extend(ACME, Q, [held[0].receipt], lease_ms=90_000))[0].ok
    assert (await shard.ack(ACME, Q, [held[0].receipt], results=[Result("completed", b"done")]))[0].ok
    assert (await shard.nack(ACME, Q, [held[1].receipt], delay_ms=0))[0].ok
    assert (await shard.release(ACME, Q, [held[2].receipt]))[0].ok
    assert (await shard.reads.result(ACME, Q, held[0].id)).value == b"done"
    await resume_tenant(shard, ACME)
    assert {one.body for one in await shard.poll(ACME, Q, max=9)} == {b"1", b"2"}


async def test_50_waiting_polls_of_a_suspended_tenant_get_an_error(shard: Shard, clock: ManualClock) -> None:
    """They get it at once; fleet polls keep waiting and get nothing of the tenant."""
    await put_tenant(shard, ACME)
    for queue in (Q, "other"):
        await put_queue(shard, ACME, queue)
    waiting = [asyncio.ensure_future(shard.poll(ACME, queue, wait_ms=60_000)) for queue in (Q, "other", Q)]
    fleet = asyncio.ensure_future(shard.fleet_poll(Q, wait_ms=60_000))
    await wait_until_idle(shard)
    await suspend_tenant(shard, ACME)
    for one in waiting:
        with pytest.raises(Suspended):
            await one
    assert not fleet.done()
    await resume_tenant(shard, ACME)
    await shard.add(ACME, Q, [message()])
    assert len(await fleet) == 1


async def test_50_waiting_fleet_poll_gets_nothing_of_a_suspended_tenant(shard: Shard, clock: ManualClock) -> None:
    """Ready messages and ended leases do not wake it until the tenant resumes."""
    receipts = await acme(shard)
    await suspend_tenant(shard, ACME)
    fleet = asyncio.ensure_future(shard.fleet_poll(Q, max=9, wait_ms=60_000))
    await wait_until_idle(shard)
    await shard.release(ACME, Q, receipts)
    await pass_time(shard, clock, 1_000)
    assert not fleet.done()
    await resume_tenant(shard, ACME)
    assert len(await asyncio.wait_for(fleet, 5)) == 5


async def test_50_resuming_restores_everything(open_shard: OpenShard, clock: ManualClock) -> None:
    """Messages, leases and timers continue; a restart keeps the suspension."""
    shard = await open_shard()
    await acme(shard)
    await shard.add(ACME, Q, [message("later", delay_ms=100)])
    await suspend_tenant(shard, ACME)
    await shard.close()
    shard = await open_shard()
    with pytest.raises(Suspended):
        await shard.add(ACME, Q, [message()])
    await pass_time(shard, clock, 60_001)  # the leases end while it is suspended
    with pytest.raises(Suspended):
        await shard.poll(ACME, Q)
    await resume_tenant(shard, ACME)
    assert len(await shard.poll(ACME, Q, max=9)) == 6
    assert not (await shard.add(ACME, Q, [message()]))[0].error
    with pytest.raises(NotFound):
        await shard.poll(ACME, "other-queue")


async def test_50_tenant_suspended_twice_is_resumed_once(shard: Shard) -> None:
    """Resuming an active tenant is not an error; each change is journaled and makes a new version."""
    await acme(shard)
    for act in (suspend_tenant, suspend_tenant, resume_tenant, resume_tenant):
        before = shard.tenant(ACME).version
        await act(shard, ACME)
        assert shard.tenant(ACME).version == before + 1
    assert len(await shard.poll(ACME, Q, max=9)) == 3
    rows = await journal_rows(shard, tenant=ACME)
    assert [row.op for row in rows if row.op.endswith("_tenant")][-4:] == ["suspend_tenant"] * 2 + ["resume_tenant"] * 2


async def test_50_suspension_does_not_affect_other_tenants(shard: Shard) -> None:
    """One is suspended, the other works."""
    await acme(shard)
    await suspend_tenant(shard, ACME)
    await put_tenant(shard, "globex")
    await shard.add("globex", Q, [message()])
    assert [one.tenant for one in await shard.fleet_poll(Q, max=9)] == ["globex"]


async def test_50_concurrent_adds_and_suspensions_are_consistent(shard: Shard) -> None:
    """Each add succeeds or is refused as suspended, and the counts are correct."""
    await put_tenant(shard, ACME)
    acts: list[Any] = []
    for n in range(60):
        acts.append(shard.add(ACME, Q, [message()]))
        if n % 10 == 5:
            acts.append(suspend_tenant(shard, ACME))
        if n % 10 == 8:
            acts.append(resume_tenant(shard, ACME))
    replies = await asyncio.gather(*acts, return_exceptions=True)
    errors = [one for one in replies if isinstance(one, BaseException)]
    assert {type(one) for one in errors} <= {Suspended}
    added = sum(isinstance(one, list) for one in replies)
    await resume_tenant(shard, ACME)
    assert usage(shard, ACME)["backlog"] == added


# ---- 50: deleted ----


async def everything_of(shard: Shard) -> int:
    """Give a tenant rows in every family and every kind of meta row; return its ID."""
    await put_tenant(shard, ACME, quotas={"backlog": 99})
    await put_queue(shard, ACME, Q, max_attempts=1, result_ttl_ms=1_000_000)
    id = shard.tenant(ACME).id
    await shard.add(ACME, Q, [message(f"{n}", key=f"{n}", ttl_ms=900_000) for n in range(6)])
    await shard.add(ACME, "groups.fifo", [message(group="g"), message(group="g")])
    got = await shard.poll(ACME, Q, max=3)
    await shard.ack(ACME, Q, [got[0].receipt], results=[Result("completed", b"r")])
    await shard.nack(ACME, Q, [got[1].receipt])
    key = StoredKey(
        id="acmekey", tenant=ACME, name="n", grant=Grant(role="producer"), token_hash=b"h" * 32, created_at=0,
        created_by="system",
    )  # fmt: skip
    await put_key(shard, key)
    await note_key_use(shard, {"acmekey": KeyUse(5, ("10.0.0.0/24",))})
    await put_grant(shard, ACME, "jwt:worker", Grant(role="viewer"))
    await revoke_token(shard, ACME, token_id="j", principal="jwt:worker", until=1 << 60)  # noqa: S106  # an id, no secret
    return id


def rows_of(shard: Shard, id: int) -> dict[str, list[bytes]]:
    """Return every row with a tenant's ID, by family; the journal has none."""
    store, found = shard.state.store, {}
    prefix = tenant_prefix(id)
    for name in FAMILIES:
        keys = [key for key, _ in store.scan_items(store.family(name), b"", b"\xff" * 64, 100_000)]
        if name == "meta":
            keys = [key for key in keys if key.partition(b"/")[2].startswith(prefix) or b"acmekey" in key]
        elif name == "jn":
            continue
        else:
            keys = [key for key in keys if key.startswith(prefix)]
        found[name] = keys
    return found


async def test_50_nothing_of_a_deleted_tenant_is_left(open_shard: OpenShard) -> None:
    """No family or meta row has it, in memory or after a restart; messages, keys and grants are gone."""
    shard = await open_shard()
    id = await everything_of(shard)
    before = rows_of(shard, id)
    assert all(before[name] for name in before), before
    await shard.erasure.delete_tenant(ACME)
    await wait_until_idle(shard)
    assert not any(rows_of(shard, id).values()), rows_of(shard, id)
    await note_key_use(shard, {"acmekey": KeyUse(9, ())})  # noted late: the key is gone
    assert not any(rows_of(shard, id).values()), rows_of(shard, id)
    for _ in range(2):
        with pytest.raises(NotFound):
            usage(shard, ACME)
        assert shard.state.access.key(b"h" * 32) is None
        assert shard.state.access.grants(ACME, "jwt:worker") == ()
        assert list(shard.state.access.tenants_of("jwt:worker")) == []
        assert not shard.state.access.token_revoked(ACME, "j", "jwt:worker", 0)
        assert shard.state.access.use("acmekey") is None
        await shard.close()
        shard = await open_shard()


async def test_50_recreated_tenant_sees_nothing_of_the_old_one(open_shard: OpenShard) -> None:
    """Covers messages, keys, quotas, windows, results, history and journal, before and after a restart."""
    shard = await open_shard()
    old_id = await everything_of(shard)
    (old,) = (await shard.reads.peek(ACME, Q, limit=1)).messages
    await shard.erasure.delete_tenant(ACME)
    await put_tenant(shard, ACME)
    assert shard.tenant(ACME).id > old_id
    assert set(usage(shard, ACME).values()) == {0}
    assert queues(shard, ACME) == {}
    assert tenants(shard)[ACME].quotas.backlog is None
    for _ in range(2):
        await put_queue(shard, ACME, Q)
        (added,) = await shard.add(ACME, Q, [message("0", key="0")])
        assert added.error is None
        for look in (
            shard.reads.get(ACME, Q, old.id),
            shard.reads.result(ACME, Q, old.id),
            shard.reads.trace(ACME, Q, old.id),
        ):
            with pytest.raises(NotFound):
                await look
        assert shard.state.access.keys(shard.tenant(ACME).id) == {}
        rows = await journal_rows(shard, tenant=ACME)
        assert {row.op for row in rows} <= {"create_tenant", "create_queue", "add", "configure_queue"}
        await shard.close()
        shard = await open_shard()


async def test_50_ids_are_never_reused(open_shard: OpenShard) -> None:
    """This covers tenants and queues, whatever was deleted last, across restarts."""
    shard = await open_shard()
    seen: list[int] = []
    queue_ids: list[int] = []
    await put_tenant(shard, "keeper")
    for n in range(4):
        await put_tenant(shard, ACME)
        seen.append(shard.tenant(ACME).id)
        await put_queue(shard, "keeper", Q)
        queue_ids.append(shard.tenant("keeper").queues[Q].id)
        await shard.erasure.delete_tenant(ACME)
        await delete_queue(shard, "keeper", Q, force=True)
        await wait_until_idle(shard)
        if n % 2:
            await shard.close()
            shard = await open_shard()
    assert seen == sorted(set(seen))
    assert queue_ids == sorted(set(queue_ids))


async def test_50_work_in_progress_ends_cleanly_when_its_tenant_is_deleted(shard: Shard, clock: ManualClock) -> None:
    """Waiting polls, results and late settlements get an error; a fleet continues with the others."""
    receipts = await acme(shard)
    await put_queue(shard, ACME, "empty")
    (held,) = await shard.poll(ACME, Q)
    waiting = [
        asyncio.ensure_future(shard.poll(ACME, "empty", wait_ms=60_000)),
        asyncio.ensure_future(shard.reads.result(ACME, Q, held.id, wait_ms=60_000)),
    ]
    fleet = asyncio.ensure_future(shard.fleet_poll("empty", wait_ms=60_000))
    await wait_until_idle(shard)
    adds = [asyncio.ensure_future(shard.add(ACME, Q, [message()])) for _ in range(5)]
    await shard.erasure.delete_tenant(ACME)
    for one in waiting:
        with pytest.raises(TenantqError) as caught:
            await asyncio.wait_for(one, 5)
        assert caught.value.code in {"not_found", "draining"}
    assert {type(one) for one in await asyncio.gather(*adds, return_exceptions=True)} <= {list, NotFound}
    for act in (shard.ack(ACME, Q, receipts), shard.add(ACME, Q, [message()]), suspend_tenant(shard, ACME)):
        with pytest.raises(NotFound):
            await act
    await pass_time(shard, clock, 120_000)
    assert await fleet == []


async def test_50_default_tenant_cannot_be_deleted(shard: Shard) -> None:
    """It can be suspended."""
    with pytest.raises(Conflict):
        await shard.erasure.delete_tenant("default")
    await suspend_tenant(shard, "default")
    with pytest.raises(Suspended):
        await shard.add("default", Q, [message()])


# ---- 51 ----


async def test_51_a_queue_is_deleted_in_two_steps(shard: Shard, clock: ManualClock) -> None:
    """Draining refuses adds and polls until leases settle; then no row is left, and its quota is free."""
    await put_tenant(shard, ACME, quotas={"queues": 1})
    await shard.add(ACME, Q, [message(f"{n}", key=f"{n}", ttl_ms=900_000) for n in range(4)])
    one, two = await shard.poll(ACME, Q, max=2, lease_ms=60_000)
    id = shard.tenant(ACME).id
    await delete_queue(shard, ACME, Q, reason="no longer needed")
    for act in (shard.add(ACME, Q, [message()]), shard.poll(ACME, Q), put_queue(shard, ACME, Q, lease_ms=5)):
        with pytest.raises(Draining):
            await act
    assert await shard.fleet_poll(Q) == []
    assert shard.reads.stats(ACME, Q).status == "draining"
    assert (await shard.extend(ACME, Q, [one.receipt], lease_ms=90_000))[0].ok
    assert (await shard.ack(ACME, Q, [one.receipt]))[0].ok
    await wait_until_idle(shard)
    assert shard.reads.stats(ACME, Q).in_flight == 1
    assert (await shard.nack(ACME, Q, [two.receipt], delay_ms=0))[0].ok
    await wait_until_idle(shard)
    assert Q not in queues(shard, ACME)
    rows = rows_of(shard, id)
    assert not any(keys for name, keys in rows.items() if name != "meta"), rows
    used = usage(shard, ACME)
    assert (used["queues"], used["backlog"], used["stored_bytes"], used["in_flight"]) == (0, 0, 0, 0)
    await put_queue(shard, ACME, "another")


# ---- configuration ----

BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"weight": 0}, "weight"),
    ({"weight": True}, "weight"),
    ({"weight": 1.5}, "weight"),
    ({"weight": float("nan")}, "weight"),
    ({"weight": 10**40}, "weight"),
    ({"weight": "1"}, "weight"),
    ({"weight": None}, "weight"),
    ({"colour": "red"}, "colour"),
    ({"quotas": {"backlog": -1}}, "quotas"),
    ({"quotas": {"backlog": 1 << 60}}, "quotas"),
    ({"quotas": {"backlog": 1.0}}, "quotas"),
    ({"quotas": {"backlog": "7"}}, "quotas"),
    ({"quotas": {"backlog": True}}, "quotas"),
    ({"quotas": {"backlog": 10**400}}, "quotas"),
    ({"quotas": {"backlog": float("inf")}}, "quotas"),
    ({"quotas": {"message_bytes": 0}}, "quotas"),
    ({"quotas": {"soft_percent": 0}}, "quotas"),
    ({"quotas": {"soft_percent": 101}}, "quotas"),
    ({"quotas": {"soft_percent": None}}, "quotas"),
    ({"quotas": {"sheep": 1}}, "quotas"),
    ({"quotas": {5: 1}}, "quotas"),
    ({"quotas": []}, "quotas"),
    ({"quotas": None}, "quotas"),
    ({"limits": {"write": {"ops_per_sec": 0}}}, "limits"),
    ({"limits": {"write": {"burst": 5}}}, "limits"),
    ({"limits": {"write": {"ops_per_sec": 5, "burst": 0}}}, "limits"),
    ({"limits": {"read": {"bytes_per_sec": -5}}}, "limits"),
    ({"limits": {"read": None}}, "limits"),
    ({"limits": {"both": {}}}, "limits"),
    ({"limits": "fast"}, "limits"),
    ({"concurrency": {"requests": 0}}, "concurrency"),
    ({"concurrency": {"polls": 10**9}}, "concurrency"),
    ({"concurrency": {"adds": None}}, "concurrency"),
    ({"regions": "eu"}, "regions"),
    ({"regions": ["EU"]}, "regions"),
    ({"regions": ["eu\0"]}, "regions"),
    ({"regions": [5]}, "regions"),
    ({"regions": ["a"] * 33}, "regions"),
    ({"regions": ["eu"]}, "regions"),  # this shard has no region
    ({"create_queues": 1}, "create_queues"),
    ({"encryption": {"rotate_every_ms": 5}}, "encryption"),
    ({"encryption": {"secret_attributes": ["a"] * 33}}, "encryption"),
    ({"encryption": {"enabled": "no"}}, "encryption"),
    ({"encryption": {"key": ""}}, "encryption"),
    ({"defaults": {"lease_ms": 0}}, "lease_ms"),
    ({"defaults": {"dead_letter": "x"}}, "defaults"),
    ({"defaults": {"limits": {"write": {"ops_per_sec": -1}}}}, "limits"),
    ({"defaults": 7}, "defaults"),
    ({"name": "other"}, "name"),
    ({"caller": "me"}, "caller"),
    ({"self": 1}, "self"),
    ({"": 1}, ""),
]


@pytest.mark.parametrize(("changes", "field"), BAD_SETTINGS, ids=[repr(one)[:40] for one, _ in BAD_SETTINGS])
async def test_invalid_setting_is_named_and_changes_nothing(shard: Shard, changes: dict[str, Any], field: str) -> None:
    """For new and existing tenants, no other setting of the call is applied."""
    await put_tenant(shard, ACME, weight=3)
    before = shard.tenant(ACME)
    state = (before.config, before.version, before.status)
    for name in (ACME, "another"):
        with pytest.raises(Invalid) as caught:
            await put_tenant(shard, name, **{"create_queues": False, **changes})
        assert field in caught.value.message
    assert "another" not in tenants(shard)
    assert (before.config, before.version, before.status) == state


async def test_changes_are_versioned_merged_and_durable(open_shard: OpenShard, tmp_path: Path) -> None:
    """Settings that are not named stay; None removes a limit."""
    shard = await open_shard()
    await put_tenant(shard, ACME, quotas={"backlog": 5, "queues": 7}, limits={"write": {"ops_per_sec": 10}})
    await put_tenant(shard, ACME, quotas={"backlog": 6}, limits={"read": {"bytes_per_sec": 99}})
    await put_tenant(shard, ACME, quotas={"queues": None}, weight=4)
    await shard.close()
    shard = await open_shard()
    state = shard.tenant(ACME)
    assert state.version == 3
    assert (state.config.quotas.backlog, state.config.quotas.queues, state.config.weight) == (6, None, 4)
    assert state.config.limits.write.ops_per_sec == 10
    assert state.config.limits.read.bytes_per_sec == 99


async def test_new_queues_start_from_the_tenants_defaults(shard: Shard) -> None:
    """This covers explicit and implicit creation; existing queues keep their settings."""
    await put_tenant(shard, ACME)
    await put_queue(shard, ACME, "old")
    await put_tenant(shard, ACME, defaults={"lease_ms": 1_234, "max_attempts": 9})
    await put_queue(shard, ACME, "made", max_attempts=2)
    await shard.add(ACME, "added", [message()])
    found = queues(shard, ACME)
    assert (found["old"].lease_ms, found["made"].lease_ms, found["added"].lease_ms) == (30_000, 1_234, 1_234)
    assert (found["made"].max_attempts, found["added"].max_attempts) == (2, 9)


async def test_update_without_may_create_does_not_create_a_tenant(shard: Shard) -> None:
    """Another shard may have a tenant of that name by now."""
    await put_tenant(shard, ACME)
    change = PutTenant(shard.state.platform, LOCAL, ACME, {"weight": 2}, may_create=False)
    assert not await shard.submit(change)
    await shard.erasure.delete_tenant(ACME)
    with pytest.raises(Conflict, match="deleted a moment ago"):
        await shard.submit(PutTenant(shard.state.platform, LOCAL, ACME, {"weight": 3}, may_create=False))
    assert ACME not in tenants(shard)
