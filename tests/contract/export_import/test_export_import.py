"""An export is a complete snapshot; an import restores it exactly, and never adds a message twice."""

from __future__ import annotations

import asyncio
import json
import threading
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from tenantq.domain.access import Grant
from tenantq.domain.message import Result
from tenantq.domain.validation import build
from tenantq.engine.shard_journal import ShardJournal
from tenantq.engine.tenant_snapshot import TenantSnapshot
from tenantq.errors import Conflict, Draining, Forbidden, Invalid, NotFound, QuotaExceeded, Suspended
from tenantq.wire.exports import ExportedMessage, ExportedResult, part_digest
from tests.administration import delete_queue, purge, put_queue, queues, usage
from tests.contract.export_import.archive import import_export, lines, written
from tests.contract.gates.harness import REASON, ServiceHarness
from tests.shards import count_slices, examined, message
from tests.unit.client.doubles import until
from tests.verbs import verbs

if TYPE_CHECKING:
    from tenantq.service.call import Call

HOUR = 3_600_000


async def fill_tenant(harness: ServiceHarness) -> Call:
    """Create the tenant acme with some of everything; return a call of its administrator."""
    shard, clock = verbs(harness.shard), harness.clock
    await harness.tenant("acme", weight=4, quotas={"backlog": 10_000})
    owner = await harness.key("acme")
    await put_queue(shard, "acme", "work", max_attempts=3, ttl_ms=50 * HOUR)
    await shard.add("acme", "work", [message(f"p{n}", priority=n) for n in (1, 9, 5)])
    await shard.add("acme", "work", [message("later", delay_ms=HOUR, attributes={"a": "b", "c": "\u00e9"})])
    await shard.add("acme", "work", [message(b"\xff\x00binary", max_attempts=7)])
    (tried,) = await shard.poll("acme", "work")
    assert tried.body == b"p9"
    await shard.nack("acme", "work", [tried.receipt], reason="not today", delay_ms=5_000)
    (leased,) = await shard.poll("acme", "work", lease_ms=60_000)
    assert leased.body == b"p5"
    await shard.add("acme", "line.fifo", [message(f"g{n}", group="g") for n in range(3)])
    await put_queue(shard, "acme", "doomed", max_attempts=1)
    await shard.add("acme", "doomed", [message("dies"), message("succeeds")])
    dies, succeeds = await shard.poll("acme", "doomed", max=2)
    await shard.nack("acme", "doomed", [dies.receipt], reason="broken for good")
    await shard.ack("acme", "doomed", [succeeds.receipt], results=[Result("completed", b"\x80 42")])
    await put_queue(shard, "acme", "quiet")
    await harness.service.access.put_grant(owner, None, "jwt:worker", Grant(role="consumer", queues=("work",)))
    clock.advance(1_000)
    return owner


async def facts_of(harness: ServiceHarness, tenant: str) -> dict[str, list[dict[str, Any]]]:
    """Return everything known about a tenant's waiting messages, in delivery order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for queue in sorted(queues(harness.shard, tenant)):
        page = await harness.shard.reads.peek(tenant, queue, limit=100)
        found[queue] = [{**msgspec.structs.asdict(one), "tenant": "", "lease_until": None} for one in page.messages]
    return found


async def test_import_restores_everything(harness: ServiceHarness) -> None:
    """Covers IDs, order, bodies, attributes, groups, delays, TTLs, attempts, history, dead letters and results."""
    owner = await fill_tenant(harness)
    files = await written(await harness.service.exports.export(owner, None))
    assert json.loads(files["tenant.json"])["config"]["weight"] == 4
    counts = json.loads(files["manifest.json"])["counts"]
    assert {kind: counts[kind] for kind in ("tenant", "queues", "messages", "results", "keys", "grants")} == {
        "tenant": 1, "queues": 5, "messages": 9, "results": 2, "keys": 1, "grants": 1,
    }  # fmt: skip
    assert "token_hash" not in files["keys-000001.jsonl"].decode()
    assert {row["tenant"] for row in lines(files, "audit")} == {"acme"}
    harness.clock.advance(2_000)
    await harness.tenant("other")
    admin = harness.admin
    taken = await import_export(harness, admin, files, "other")
    assert (sum(one.messages for one in taken), sum(one.results for one in taken)) == (9, 2)
    (leased,) = [one for one in lines(files, "messages") if one.get("body") == "p5"]
    assert leased.get("attempts", 0) == 0  # leases are not exported; the delivery in progress does not count
    harness.clock.advance(60_000)  # and it ends here too
    await harness.wait_until_idle()
    mine, theirs = await facts_of(harness, "acme"), await facts_of(harness, "other")
    for queue in mine:
        for one, other in zip(mine[queue], theirs[queue], strict=True):
            if one["body"] == b"p5":
                assert (one["attempts"], other["attempts"]) == (1, 0)
                continue
            assert one == other, queue
    id = lines(files, "results")[0]["id"]
    assert await harness.shard.reads.result("other", "doomed", id) == await harness.shard.reads.result(
        "acme", "doomed", id
    )
    order = []
    for _ in range(4):
        (got,) = await verbs(harness.shard).poll("other", "work")
        order.append(got.body)
    assert order == [b"p9", b"p5", b"p1", b"\xff\x00binary"]
    assert [one.body for one in await verbs(harness.shard).poll("other", "line.fifo", max=9)] == [b"g0"]
    await harness.shard.close()
    report = examined(harness.shard)
    assert report.clean, report.findings


async def test_export_is_a_snapshot(harness: ServiceHarness) -> None:
    """Later adds, acks and queue deletions do not change it."""
    owner = await fill_tenant(harness)
    before = [
        (one["id"], one.get("body"))
        for one in lines(await written(await harness.service.exports.export(owner, None)), "messages")
    ]
    exporting = await harness.service.exports.export(owner, None)
    await purge(harness.shard, "acme", "work", reason=REASON)
    await delete_queue(harness.shard, "acme", "line.fifo", force=True, reason=REASON)
    await harness.add(owner, "work", "new", "newer")
    await harness.wait_until_idle()
    files = await written(exporting)
    assert [(one["id"], one.get("body")) for one in lines(files, "messages")] == before
    assert len(lines(files, "queues")) == 5
    assert max(row["seq"] for row in lines(files, "audit")) <= json.loads(files["manifest.json"])["last_seq"]


async def test_second_import_adds_nothing(harness: ServiceHarness) -> None:
    """Completed messages do not return, parts out of order are refused, and an interrupted import resumes."""
    owner = await fill_tenant(harness)
    files = await written(await harness.service.exports.export(owner, None))
    await harness.tenant("other")
    await import_export(harness, harness.admin, files, "other")
    (got,) = await verbs(harness.shard).poll("other", "work")
    await verbs(harness.shard).ack("other", "work", [got.receipt])
    total = usage(harness.shard, "other")
    again = await import_export(harness, harness.admin, files, "other")
    assert all(one.duplicate for one in again)
    assert usage(harness.shard, "other") == total
    with pytest.raises(Conflict, match=r"part: out of order \(9, expected: "):
        await harness.service.exports.import_part(
            harness.admin, "other", "work", export="ab" * 16, part=9, messages=[], results=[]
        )
    taken = await harness.service.exports.import_part(
        harness.admin, "other", "work", export="ab" * 16, part=1,
        messages=[msgspec.convert(one, ExportedMessage) for one in lines(files, "messages")[:4]], results=[],
    )  # fmt: skip
    assert (taken.messages, taken.there) == (1, 3)  # another export: existing messages are recognized by their IDs


async def test_import_returns_the_digest_of_its_messages(harness: ServiceHarness) -> None:
    """It is the XOR of the SHA-256 of each ID and body, whatever the body's encoding."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    await harness.service.queues.put(owner, None, "work", {})
    ids = ["01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002"]
    times: Any = {"added_at": 1, "visible_at": 1}
    taken = await harness.service.exports.import_part(
        owner, None, "work", export="cd" * 16, part=1, results=[],
        messages=[ExportedMessage(id=ids[0], body="é", **times), ExportedMessage(id=ids[1], body_base64="/wA=", **times)],
    )  # fmt: skip
    bodies = "é".encode(), b"\xff\x00"
    hashes = [sha256(UUID(id).bytes + body).digest() for id, body in zip(ids, bodies, strict=True)]
    assert taken.digest == bytes(one ^ other for one, other in zip(*hashes, strict=True)).hex()


async def test_expired_messages_are_not_imported(harness: ServiceHarness) -> None:
    """TTLs continue during the move."""
    owner = await fill_tenant(harness)
    files = await written(await harness.service.exports.export(owner, None))
    harness.clock.advance(60 * HOUR)
    await harness.tenant("other")
    taken = await import_export(harness, harness.admin, files, "other")
    assert (sum(one.messages for one in taken), sum(one.expired for one in taken)) == (4, 7)


async def test_quota_refuses_a_whole_part(harness: ServiceHarness) -> None:
    """With a higher quota the same import continues from there."""
    owner = await fill_tenant(harness)
    files = await written(await harness.service.exports.export(owner, None))
    await harness.tenant("other", quotas={"backlog": 6})
    with pytest.raises(QuotaExceeded, match=r"quotas\.backlog"):
        await import_export(harness, harness.admin, files, "other")
    assert usage(harness.shard, "other")["backlog"] == 5
    await harness.tenant("other", quotas={"backlog": 100})
    await import_export(harness, harness.admin, files, "other")
    assert usage(harness.shard, "other")["backlog"] == 9


async def test_import_needs_an_active_queue_and_tenant(harness: ServiceHarness) -> None:
    """A missing or draining queue and a suspended tenant refuse it."""
    await harness.tenant("other")
    part: dict[str, Any] = {"export": "ab" * 16, "part": 1, "messages": [], "results": []}
    with pytest.raises(NotFound):
        await harness.service.exports.import_part(harness.admin, "other", "work", **part)
    await harness.shard.add("other", "work", [message()])
    assert await verbs(harness.shard).poll("other", "work", lease_ms=60_000)
    await harness.service.tenants.suspend(harness.admin, "other", REASON)
    with pytest.raises(Suspended):
        await harness.service.exports.import_part(harness.admin, "other", "work", **part)
    await harness.service.tenants.resume(harness.admin, "other")
    await delete_queue(harness.shard, "other", "work", reason=REASON)
    with pytest.raises(Draining):
        await harness.service.exports.import_part(harness.admin, "other", "work", **part)
    for role in ("operator", "auditor", "viewer", "consumer", "producer"):
        with pytest.raises(Forbidden):
            await harness.service.exports.export(await harness.key("other", role), None)


GOOD: dict[str, Any] = {"id": "0190163d-8694-739b-aea5-966c26f8ad91", "body": "x", "added_at": 1, "visible_at": 1}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ({**GOOD, "id": "no"}, "messages[0].id"),
        ({**GOOD, "priority": 10}, "messages[0].priority: out of range (10, "),
        ({**GOOD, "body_base64": "eA=="}, "messages[0].body: give body or body_base64, not both"),
        ({**GOOD, "visible_at": -1}, "messages[0].visible_at"),
        ({**GOOD, "expires_at": 1 << 60}, "messages[0].expires_at"),
        ({**GOOD, "attempts": -1}, "messages[0].attempts"),
        ({**GOOD, "history": [{"attempt": 1, "at": 1, "outcome": "eaten"}]}, "messages[0].history: the outcome"),
        ({**GOOD, "dead": {"reason": "r", "source": "a b", "attempts": 1, "at": 1}}, "messages[0].dead.source"),
        ({**GOOD, "group": ""}, "messages[0].group"),
    ],
)
async def test_invalid_line_is_named(harness: ServiceHarness, line: dict[str, Any], text: str) -> None:
    """The error has its position and field, and nothing changes."""
    await harness.add(harness.admin, "work", tenant="default")
    with pytest.raises(Invalid) as caught:
        await harness.service.exports.import_part(
            harness.admin, None, "work", export="ab" * 16, part=1, results=[],
            messages=[build(ExportedMessage, line, "messages[0].")],
        )  # fmt: skip
    assert caught.value.message.startswith(text), caught.value.message


async def test_invalid_import_parts_are_refused(harness: ServiceHarness) -> None:
    """Covers an invalid export ID, part numbers below one, duplicate IDs and results without a value."""
    await harness.add(harness.admin, "work", tenant="default")
    twice = [msgspec.convert(GOOD, ExportedMessage)] * 2
    empty = ExportedResult(id=GOOD["id"], status="completed", expires_at=1)
    for given, text in (
        ({"export": "xyz"}, "export: invalid value"),
        ({"part": 0}, "part: out of range"),
        ({"messages": twice}, "duplicate id"),
        ({"messages": twice * 600}, "more than 1000"),
        ({"results": [empty]}, "results"),
    ):
        part: dict[str, Any] = {"export": "ab" * 16, "part": 1, "messages": [], "results": [], **given}
        with pytest.raises(Invalid, match=text.replace("[", r"\[")):
            await harness.service.exports.import_part(harness.admin, None, "work", **part)


async def test_large_part_does_not_block_the_event_loop(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is converted in slices and hashed on a thread."""
    await harness.add(harness.admin, "work", tenant="default")
    slices, threads = count_slices(monkeypatch, "tenantq.runtime.loop_slices"), set[int]()

    def digest(messages: list[tuple[bytes, bytes]]) -> str:
        threads.add(threading.get_ident())
        return part_digest(messages)

    monkeypatch.setattr("tenantq.service.export_import.part_digest", digest)
    lines = [
        msgspec.convert({**GOOD, "id": str(UUID(int=n)), "body": "x" * 5_000}, ExportedMessage) for n in range(500)
    ]
    imported = await harness.service.exports.import_part(
        harness.admin, None, "work", export="ab" * 16, part=1, results=[], messages=lines
    )
    assert imported.messages == 500
    assert imported.digest == part_digest([(UUID(int=n).bytes, b"x" * 5_000) for n in range(500)])
    assert len(slices) >= 9
    assert threading.get_ident() not in threads


async def test_a_cancelled_export_closes_its_snapshot(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep deleted rows in the store."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    await harness.add(owner, "work", "a")
    taken, closed = list[object](), list[object]()
    real = TenantSnapshot.close

    async def wait_forever(_: ShardJournal, entries: object) -> None:
        taken.append(entries)
        await asyncio.Event().wait()

    def close(snapshot: TenantSnapshot) -> None:
        closed.append(snapshot)
        real(snapshot)

    monkeypatch.setattr(TenantSnapshot, "close", close)
    monkeypatch.setattr(ShardJournal, "note", wait_forever)
    exporting = asyncio.ensure_future(harness.service.exports.export(owner, None))
    await until(lambda: taken)
    exporting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exporting
    monkeypatch.undo()
    assert len(closed) == 1
