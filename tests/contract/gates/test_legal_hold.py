"""Nobody can delete anything of a tenant under legal hold, and every attempt is in its audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.errors import Conflict, Forbidden, Invalid, LegalHold, NotFound
from tests.administration import delete_queue, hold_tenant, put_data_key, put_queue, put_tenant, queues, release_hold
from tests.contract.gates.harness import REASON, ServiceHarness
from tests.shards import message, wait_until_idle

if TYPE_CHECKING:
    from tests.conftest import OpenShard


async def test_hold_prevents_every_deletion_and_journals_each_attempt(harness: ServiceHarness) -> None:
    """Covers tenant, queue, purge and remove by any caller. Work continues, and the release allows all of it."""
    await harness.tenant("acme")
    owner, service = await harness.key("acme"), harness.service
    (one, *_) = await harness.add(owner, "work", "a", "b", "c")
    held = await service.legal_holds.place(harness.admin, "acme", REASON)
    assert held.hold is not None
    assert (held.hold.reason, held.hold.by, held.version) == (
        REASON,
        (await harness.rows(op="hold_tenant"))[0].principal,
        2,
    )
    start = await harness.journal_end()

    async def deletions() -> None:
        for act in (
            lambda: service.erasures.delete_tenant(harness.admin, "acme", confirm="acme", reason=REASON),
            lambda: service.queues.delete(owner, None, "work", confirm="work", reason=REASON, force=True),
            lambda: service.queues.purge(owner, None, "work", confirm="work", reason=REASON),
            lambda: service.settlement.remove(owner, None, "work", [one.id]),
        ):
            with pytest.raises(LegalHold, match=REASON) as caught:
                await act()
            assert (caught.value.code, caught.value.status, caught.value.tenant) == ("legal_hold", 409, "acme")

    await deletions()
    rows = await harness.rows(start, tenant="acme")
    assert [(row.op, row.outcome, row.error_code) for row in rows] == [
        (op, "refused", "legal_hold") for op in ("delete_tenant", "delete_queue", "purge", "remove")
    ]
    (got,) = await harness.take(owner, "work")
    assert (await service.settlement.ack(owner, None, "work", [got.receipt]))[0].ok
    released = await service.legal_holds.release(harness.admin, "acme", REASON)
    assert (released.hold, released.version) == (None, 3)
    assert await service.queues.purge(owner, None, "work", confirm="work", reason=REASON) == 2
    await service.erasures.delete_tenant(harness.admin, "acme", confirm="acme", reason=REASON)


async def test_only_the_platform_can_hold_and_release(harness: ServiceHarness) -> None:
    """It needs a reason of at least ten characters. A tenant's administrator cannot."""
    await harness.tenant("acme")
    owner, service = await harness.key("acme"), harness.service
    for act in (service.legal_holds.place, service.legal_holds.release):
        with pytest.raises(Forbidden):
            await act(owner, "acme", REASON)
        for reason in ("", "short", "         x"):
            with pytest.raises(Invalid, match="reason: too short"):
                await act(harness.admin, "acme", reason)
        with pytest.raises(NotFound):
            await act(harness.admin, "nobody", REASON)
    with pytest.raises(NotFound, match="under no legal hold"):
        await service.legal_holds.release(harness.admin, "acme", REASON)
    await service.legal_holds.place(harness.admin, "acme", REASON)
    again = await service.legal_holds.place(harness.admin, "acme", "another reason altogether")
    assert again.hold is not None
    assert again.hold.reason == "another reason altogether"


async def test_hold_survives_a_restart_and_keeps_a_draining_queue(open_shard: OpenShard) -> None:
    """The drained queue stays through restarts, and is deleted when the hold is released."""
    shard = await open_shard()
    await put_tenant(shard, "acme")
    await put_queue(shard, "acme", "work")
    await shard.add("acme", "work", [message("a"), message("b")])
    (leased,) = await shard.poll("acme", "work", lease_ms=60_000)
    await delete_queue(shard, "acme", "work", reason=REASON)
    await hold_tenant(shard, "acme", reason=REASON)
    await shard.ack("acme", "work", [leased.receipt])
    await wait_until_idle(shard)
    assert shard.reads.stats("acme", "work").status == "draining"
    await shard.close()
    shard = await open_shard()
    held = shard.tenant("acme").hold
    assert held is not None
    assert held.reason == REASON
    await wait_until_idle(shard)
    assert shard.reads.stats("acme", "work").ready == 1
    with pytest.raises(LegalHold):
        await shard.erasure.delete_tenant("acme", reason=REASON)
    await release_hold(shard, "acme", reason=REASON)
    await wait_until_idle(shard)
    assert queues(shard, "acme") == {}


async def test_hold_keeps_the_data_keys_and_is_refused_once_they_are_destroyed(open_shard: OpenShard) -> None:
    """Erasure starts with the keys, so no hold can pretend to stop it halfway."""
    shard = await open_shard()
    await put_tenant(shard, "acme")
    id = shard.tenant("acme").id
    await put_data_key(shard, id, 0, b"wrapped")
    await hold_tenant(shard, "acme", reason=REASON)
    with pytest.raises(LegalHold):
        await shard.erasure.drop_data_keys(id)
    with pytest.raises(LegalHold):
        await shard.erasure.delete_tenant("acme", reason=REASON)
    assert shard.state.data_keys.by_tenant == {id: {0: b"wrapped"}}
    await release_hold(shard, "acme", reason=REASON)
    await shard.erasure.drop_data_keys(id)
    with pytest.raises(Conflict, match="is being deleted"):
        await hold_tenant(shard, "acme", reason=REASON)
    await shard.erasure.delete_tenant("acme", reason=REASON)
