"""Nothing crosses a tenant: a valid ID or receipt with another tenant's credential works like an invented one."""

# ruff: noqa: ARG005  # all functions take the same arguments

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.message import Result
from tenantq.errors import Forbidden, LeaseLost, NotFound, TenantqError
from tenantq.service.audit_trail import AuditQuery
from tests.administration import tenants, usage
from tests.contract.gates.harness import REASON, ServiceHarness
from tests.shards import message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.domain.message import Delivery
    from tenantq.service.call import Call
    from tenantq.service.service import Service

LOST = "0" * 31 + "1" + "f" * 16  # looks like a receipt

Act = tuple[str, "Callable[[Service, Call, str | None, str, str], Awaitable[Any]]"]

# name, and function of (service, call, tenant, message id, receipt)
CALLS: list[Act] = [
    ("get", lambda s, c, t, i, r: s.message_reads.get(c, t, "work", i)),
    ("result", lambda s, c, t, i, r: s.message_reads.result(c, t, "work", i)),
    ("trace", lambda s, c, t, i, r: s.message_reads.trace(c, t, "work", i)),
    ("remove", lambda s, c, t, i, r: s.settlement.remove(c, t, "work", [i])),
    ("ack", lambda s, c, t, i, r: s.settlement.ack(c, t, "work", [r])),
    ("ack with result", lambda s, c, t, i, r: s.settlement.ack(c, t, "work", [r], [Result("completed", b"mine now")])),
    ("nack", lambda s, c, t, i, r: s.settlement.nack(c, t, "work", [r], delay_ms=0)),
    ("release", lambda s, c, t, i, r: s.settlement.release(c, t, "work", [r])),
    ("extend", lambda s, c, t, i, r: s.settlement.extend(c, t, "work", [r], lease_ms=1_000)),
]
QUEUE_CALLS: list[Act] = [
    ("peek", lambda s, c, t, i, r: s.message_reads.peek(c, t, "work")),
    ("poll", lambda s, c, t, i, r: s.messages.poll(c, t, "work")),
    ("add", lambda s, c, t, i, r: s.messages.add(c, t, "work", [message()])),
    ("get_queue", lambda s, c, t, i, r: s.queues.get(c, t, "work")),
    ("put_queue", lambda s, c, t, i, r: s.queues.put(c, t, "work", {"lease_ms": 1})),
    ("pause_queue", lambda s, c, t, i, r: s.queues.pause(c, t, "work")),
    ("resume_queue", lambda s, c, t, i, r: s.queues.unpause(c, t, "work")),
    ("purge", lambda s, c, t, i, r: s.queues.purge(c, t, "work", confirm="work", reason=REASON)),
    ("delete_queue", lambda s, c, t, i, r: s.queues.delete(c, t, "work", confirm="work", reason=REASON)),
    ("redrive", lambda s, c, t, i, r: s.redrives.start(c, t, "work", filter=None)),
    ("redrive_status", lambda s, c, t, i, r: s.redrives.get(c, t, "work", "0" * 16)),
    ("cancel_redrive", lambda s, c, t, i, r: s.redrives.cancel(c, t, "work", "0" * 16)),
    ("list_queues", lambda s, c, t, i, r: s.queues.workers(c, t)),
    ("list_queues", lambda s, c, t, i, r: s.queues.list(c, t)),
    ("get_tenant", lambda s, c, t, i, r: s.tenants.get(c, t)),
    ("get_metrics", lambda s, c, t, i, r: s.status.tenant_metrics(c, t)),
    ("usage", lambda s, c, t, i, r: s.tenants.usage(c, t)),
    ("audit", lambda s, c, t, i, r: s.audit.query(c, t)),
    ("list_keys", lambda s, c, t, i, r: s.access.list_keys(c, t)),
    ("list_grants", lambda s, c, t, i, r: s.access.list_grants(c, t)),
    ("fleet_poll", lambda s, c, t, i, r: s.fleet.poll(c, "work", tenants=[t])),  # type: ignore[list-item]  # a name
]


async def two_tenants(harness: ServiceHarness) -> tuple[Call, Call, Delivery, str]:
    """Return calls of the owner and of the thief, a delivery of the owner, and the ID of a completed message."""
    for name in ("acme", "globex"):
        await harness.tenant(name)
    owner, thief = await harness.key("acme"), await harness.key("globex")
    await harness.add(owner, "work", "secret", "finished")
    for one in await harness.take(owner, "work", max=2, lease_ms=60_000):
        if one.body == b"finished":
            await harness.service.settlement.ack(
                owner, None, "work", [one.receipt], [Result("completed", b"the secret result")]
            )
            finished = one.id
        else:
            held = one
    return owner, thief, held, finished


async def answer(asked: Awaitable[Any]) -> tuple[type[TenantqError], str, int]:
    """Return how a call was refused: kind, text and status; for a batch of one, those of its item."""
    try:
        reply = await asked
    except TenantqError as error:
        return type(error), error.message, error.status
    (item,) = reply
    assert not item.ok
    return type(item.error), item.error.message, item.error.status


@pytest.mark.parametrize(("name", "act"), CALLS, ids=[name for name, _ in CALLS])
@pytest.mark.parametrize("own_queue", [False, True], ids=["no such queue", "a queue of the same name"])
async def test_38_exact_id_and_receipt_do_not_work_in_another_tenant(
    harness: ServiceHarness, name: str, act: Callable[..., Awaitable[Any]], *, own_queue: bool
) -> None:
    """The reply is that for an invented one, and the attempt is journaled."""
    owner, thief, held, finished = await two_tenants(harness)
    if own_queue:
        await harness.add(thief, "work", "my own")
    before = harness.shard.reads.stats("acme", "work")
    end = await harness.journal_end()
    true_answers = [await answer(act(harness.service, thief, None, id, held.receipt)) for id in (held.id, finished)]
    rows = [row for row in await harness.rows(end) if row.principal != "system"]
    invented = await answer(act(harness.service, thief, None, str(uuid.UUID(int=77)), LOST))
    assert true_answers == [invented, invented]
    assert invented[0] in {NotFound, LeaseLost}
    assert len(rows) == 2
    assert {(row.tenant, row.outcome, row.op, row.remote) for row in rows} == {
        ("globex", "refused", name.split(maxsplit=1)[0], "10.1.2.3")
    }
    assert harness.shard.reads.stats("acme", "work") == before
    assert (await harness.service.settlement.ack(owner, None, "work", [held.receipt]))[0].ok
    result, _ = await harness.service.message_reads.result(owner, None, "work", finished)
    assert result.value == b"the secret result"


@pytest.mark.parametrize(("name", "act"), [*CALLS, *QUEUE_CALLS], ids=[name for name, _ in [*CALLS, *QUEUE_CALLS]])
async def test_38_path_of_another_tenant_is_forbidden_whether_or_not_it_exists(
    harness: ServiceHarness, name: str, act: Callable[..., Awaitable[Any]]
) -> None:
    """The reply does not show whether the tenant exists."""
    owner, thief, held, _ = await two_tenants(harness)
    before = harness.shard.reads.stats("acme", "work"), usage(harness.shard, "acme")
    end = await harness.journal_end()
    true_answer = await answer(act(harness.service, thief, "acme", held.id, held.receipt))
    (row,) = await harness.rows(end)
    assert (row.outcome, row.error_code, row.remote, row.request_id) == ("denied", "forbidden", "10.1.2.3", "r-1")
    assert row.principal.startswith("key:")
    assert true_answer == await answer(act(harness.service, thief, "no-such-tenant", held.id, held.receipt))
    assert true_answer[0] is Forbidden
    assert (harness.shard.reads.stats("acme", "work"), usage(harness.shard, "acme")) == before
    assert (await harness.service.settlement.ack(owner, None, "work", [held.receipt]))[0].ok


async def test_38_denied_access_is_in_the_audit_trail_of_the_target_tenant(harness: ServiceHarness) -> None:
    """The target's auditor sees the caller, with result=DENIED."""
    _, thief, held, _ = await two_tenants(harness)
    with pytest.raises(Forbidden):
        await harness.service.message_reads.get(thief, "acme", "work", held.id)
    auditor = await harness.key("acme", "auditor")
    await harness.wait_until_idle()
    (row,), _ = await harness.service.audit.query(auditor, None, AuditQuery(result="DENIED"))
    assert (row.op, row.outcome, row.queue) == ("get", "denied", "work")


async def test_38_lists_and_counts_show_nothing_of_another_tenant(harness: ServiceHarness) -> None:
    """Queues, usage, keys, grants, audit and fleet polls show only the caller's own tenant."""
    _, thief, held, _ = await two_tenants(harness)
    service = harness.service
    assert await service.queues.list(thief, None) == []
    usage = await service.tenants.usage(thief, None)
    assert {item.used for item in usage.quotas.values()} == {0}
    assert len(await service.access.list_keys(thief, None)) == 1
    assert await service.access.list_grants(thief, None) == []
    rows, _ = await service.audit.query(thief, None)
    assert {row.tenant for row in rows} == {"globex"}
    rows, _ = await service.audit.query(thief, None, AuditQuery(message=held.id))
    assert rows == []
    assert await service.fleet.poll(thief, "work") == []


async def test_38_redrive_of_another_tenant_cannot_be_read_or_cancelled(harness: ServiceHarness) -> None:
    """Its exact ID gets the same reply as an invented one."""
    owner, thief, _, _ = await two_tenants(harness)
    await harness.service.queues.put(owner, None, "work-dlq", {})
    await harness.service.queues.put(thief, None, "work", {})
    await harness.service.queues.put(thief, None, "work-dlq", {})
    task = await harness.service.redrives.start(owner, None, "work", filter=None, rate=1)
    for look in (harness.service.redrives.get, harness.service.redrives.cancel):
        for queue in ("work", "work-dlq"):
            assert await answer(look(thief, None, queue, task.id)) == await answer(look(thief, None, queue, "0" * 16))
    assert task.state != "cancelled"


@pytest.mark.parametrize(
    "name", ["acme\0", "ACME", "acme ", "acme/", "acme%00", "%61cme", "\u0430cme", "\uff41cme", "acme\u0301"]
)
async def test_38_no_other_spelling_of_a_name_reaches_a_tenant(harness: ServiceHarness, name: str) -> None:
    """Covers case, look-alikes, separators and escapes, with its own key, other keys and the platform's."""
    owner, thief, held, _ = await two_tenants(harness)
    for call in (owner, thief):
        with pytest.raises(Forbidden):
            await harness.service.message_reads.get(call, name, "work", held.id)
    with pytest.raises(NotFound):
        await harness.service.message_reads.get(harness.admin, name, "work", held.id)
    with pytest.raises(TenantqError) as caught:
        await harness.service.tenants.put(harness.admin, name, {})
    assert caught.value.code == "invalid"
    assert set(tenants(harness.shard)) == {"default", "acme", "globex"}


async def test_39_same_queue_name_in_two_tenants_is_two_queues(harness: ServiceHarness) -> None:
    """Neither shows messages, keys or results of the other, and deleting one leaves the other."""
    await harness.tenant("acme")
    await harness.tenant("acme-2")
    one, two = await harness.key("acme"), await harness.key("acme-2")
    first = await harness.add(one, "work", "one", key="k")
    second = await harness.add(two, "work", "one", key="k")
    assert not second[0].duplicate
    assert first[0].id != second[0].id
    assert [got.body for got in await harness.take(one, "work", max=9)] == [b"one"]
    assert (await harness.service.queues.get(two, None, "work")).stats.ready == 1
    await harness.service.queues.delete(one, None, "work", confirm="work", reason=REASON, force=True)
    await harness.wait_until_idle()
    assert await harness.service.queues.list(one, None) == []
    assert (await harness.service.queues.get(two, None, "work")).stats.ready == 1
