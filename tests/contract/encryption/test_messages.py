"""Encrypted tenants at work: who may see bodies sees them, the store never does, and nothing else is different."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.doctor.store_check import examine
from tenantq.domain import limits
from tenantq.domain.message import NewMessage, Result
from tenantq.engine.ops.redrive import RedriveFilter
from tenantq.errors import Conflict, Invalid, KeyDisabled, KmsError, TenantqError, TooLarge
from tenantq.service import encryption
from tests.administration import tenants
from tests.contract.encryption.house import PLAINTEXT, EncryptedHouse
from tests.shards import freeze, message
from tests.verbs import verbs

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock
    from tenantq.service.call import Call
    from tests.conftest import OpenShard
    from tests.contract.encryption.conftest import OpenEncryptedHouse


async def stored(house: EncryptedHouse, id: str, queue: str = "work") -> NewMessage:
    """Return a message as the engine has it."""
    facts = await house.shard.reads.get("acme", queue, id)
    return NewMessage(
        body=facts.body, encrypted=facts.encrypted, encrypted_attributes=facts.encrypted_attributes, attributes=facts.attributes,
        raw_id=facts.raw_id,
    )  # fmt: skip


async def test_55_bodies_attributes_and_results_are_sealed_in_the_store_and_open_for_who_may_read_them(
    house: EncryptedHouse,
) -> None:
    """Poll, peek, get and result give plaintext; the rows hold none of it."""
    owner = await house.encrypted()
    attributes = {"secret_token": PLAINTEXT, "kind": "order"}
    (added,) = await house.add(owner, "work", PLAINTEXT, attributes=attributes)
    row = await stored(house, added.id)
    assert row.encrypted
    assert row.attributes == {"kind": "order"}
    assert PLAINTEXT.encode() not in row.body + row.encrypted_attributes
    page = await house.service.message_reads.peek(owner, None, "work")
    facts = await house.service.message_reads.get(owner, None, "work", added.id)
    for seen in (page.messages[0], facts):
        assert (seen.body, seen.attributes, seen.encrypted) == (PLAINTEXT.encode(), attributes, True)
    (got,) = await house.take(owner, "work")
    assert (got.body, got.attributes, got.id, got.encrypted) == (PLAINTEXT.encode(), attributes, added.id, False)
    await house.service.settlement.ack(owner, None, "work", [got.receipt], [Result("completed", PLAINTEXT.encode())])
    kept = await house.shard.reads.result("acme", "work", added.id)
    assert kept.encrypted
    assert PLAINTEXT.encode() not in (kept.value or b"")
    found, hidden = await house.service.message_reads.result(owner, None, "work", added.id)
    assert (found, hidden) == (Result("completed", PLAINTEXT.encode()), False)


async def test_a_snapshot_opens_what_it_holds_and_only_for_who_may_read_it(house: EncryptedHouse) -> None:
    """Also when the message was consumed since."""
    owner = await house.encrypted()
    viewer = await house.key("acme", role="viewer")
    await house.add(owner, "work", PLAINTEXT, attributes={"secret_token": PLAINTEXT})
    taken = await house.service.message_reads.open_snapshot(owner, None, "work")
    (got,) = await house.take(owner, "work")
    await house.service.settlement.ack(owner, None, "work", [got.receipt])
    (seen,) = (await house.service.message_reads.read_snapshot(owner, None, "work", taken.id)).messages
    assert (seen.body, seen.attributes) == (PLAINTEXT.encode(), {"secret_token": PLAINTEXT})
    (seen,) = (await house.service.message_reads.read_snapshot(viewer, None, "work", taken.id)).messages
    assert (seen.body, seen.attributes, seen.hidden) == (b"", {}, True)


async def test_55_a_failed_results_error_is_sealed_too(house: EncryptedHouse) -> None:
    """It may tell of the body."""
    owner = await house.encrypted()
    (added,) = await house.add(owner, "work", "x")
    (got,) = await house.take(owner, "work")
    await house.service.settlement.ack(owner, None, "work", [got.receipt], [Result("failed", None, PLAINTEXT)])
    assert (await house.shard.reads.result("acme", "work", added.id)).error is None
    assert (await house.service.message_reads.result(owner, None, "work", added.id))[0] == Result(
        "failed", None, PLAINTEXT
    )


async def test_a_viewer_never_gets_plaintext_and_needs_no_key_management(house: EncryptedHouse) -> None:
    """Bodies, attributes and results are hidden, also while the keys cannot be had."""
    owner = await house.encrypted()
    viewer = await house.key("acme", "viewer")
    first, second = await house.add(owner, "work", PLAINTEXT, PLAINTEXT, attributes={"secret_token": PLAINTEXT})
    (got,) = await house.take(owner, "work")
    await house.service.settlement.ack(owner, None, "work", [got.receipt], [Result("completed", PLAINTEXT.encode())])
    house.forget_keys()
    house.provider.failure = KmsError("no")
    facts = await house.service.message_reads.get(viewer, None, "work", second.id)
    page = await house.service.message_reads.peek(viewer, None, "work")
    for seen in (facts, *page.messages):
        assert (seen.body, seen.attributes, seen.encrypted_attributes, seen.hidden) == (b"", {}, b"", True)
    found, hidden = await house.service.message_reads.result(viewer, None, "work", first.id)
    assert (found.value, found.error, hidden) == (None, None, True)


async def test_56_a_dead_letter_opens_where_it_lies_and_where_it_goes_back_to(house: EncryptedHouse) -> None:
    """Its record is the one of its origin, wherever it is read."""
    owner = await house.encrypted()
    await house.service.queues.put(owner, None, "work", {"max_attempts": 1})
    (added,) = await house.add(owner, "work", PLAINTEXT, attributes={"secret_a": PLAINTEXT})
    (got,) = await house.take(owner, "work")
    await house.service.settlement.nack(owner, None, "work", [got.receipt])
    assert (await house.service.message_reads.get(owner, None, "work-dlq", added.id)).body == PLAINTEXT.encode()
    (letter,) = (await house.service.message_reads.peek(owner, None, "work-dlq")).messages
    assert (letter.body, letter.attributes) == (PLAINTEXT.encode(), {"secret_a": PLAINTEXT})
    (got,) = await house.take(owner, "work-dlq")
    assert (got.body, got.attributes) == (PLAINTEXT.encode(), {"secret_a": PLAINTEXT})
    await house.service.settlement.release(owner, None, "work-dlq", [got.receipt])
    await house.redrive(owner, "work", RedriveFilter())
    (got,) = await house.take(owner, "work")
    assert (got.body, got.id) == (PLAINTEXT.encode(), added.id)


async def test_a_fleet_gets_plaintext_of_encrypted_and_other_tenants_alike(house: EncryptedHouse) -> None:
    """In one poll."""
    await house.encrypted("acme")
    await house.encrypted("blue")
    await house.tenant("plain")
    for tenant in ("acme", "blue", "plain"):
        await house.add(house.admin, "work", f"of {tenant}", tenant=tenant)
    got = await house.service.fleet.poll(house.admin, "work", max=10)
    assert sorted(one.body for one in got) == [b"of acme", b"of blue", b"of plain"]


async def test_what_is_charged_and_counted_is_the_plaintext(house: EncryptedHouse) -> None:
    """Encryption changes neither sizes in figures, quotas and journal, nor the limit of a body."""
    owner = await house.encrypted()
    await house.tenant("acme", quotas={"message_bytes": limits.BODY_BYTES_MAX})
    (added,) = await house.add(owner, "work", "x" * limits.BODY_BYTES_MAX)
    assert added.error is None
    assert house.shard.reads.stats("acme", "work").bytes == limits.BODY_BYTES_MAX
    assert (await house.service.message_reads.get(owner, None, "work", added.id)).size == limits.BODY_BYTES_MAX
    (row,) = await house.rows(tenant="acme", op="add")
    assert row.bytes == limits.BODY_BYTES_MAX
    (added,) = await house.add(owner, "work", "x" * (limits.BODY_BYTES_MAX + 1))
    assert isinstance(added.error, TooLarge)
    (got,) = await house.take(owner, "work")
    await house.service.settlement.ack(owner, None, "work", [got.receipt])
    assert house.shard.reads.stats("acme", "work").bytes == 0


async def test_bad_messages_of_a_batch_keep_their_places(house: EncryptedHouse) -> None:
    """As without encryption: each is judged by itself."""
    owner = await house.encrypted()
    batch: list[NewMessage | TenantqError] = [
        message("a"),
        message("b", priority=99),
        Invalid("unreadable"),
        message("c", group="g", delay_ms=5),
    ]
    added = await house.service.messages.add(owner, None, "work", batch)
    assert [one.error is None for one in added] == [True, False, False, True]
    assert [one.body for one in await house.take(owner, "work", 10)] == [b"a"]
    await house.pass_time(5)
    assert [one.body for one in await house.take(owner, "work", 10)] == [b"c"]


async def test_order_groups_and_priorities_hold(house: EncryptedHouse) -> None:
    """Ids are handed out beforehand, and still rise in the order of adding."""
    owner = await house.encrypted()
    for number in range(5):
        await house.add(owner, "work", f"low {number}", f"low {number} again")
        await house.add(owner, "orders.fifo", f"step {number}", group="one")
    await house.add(owner, "work", "high", priority=9)
    got = await house.take(owner, "work", 20)
    assert [one.body.decode() for one in got] == [
        "high", *(f"low {number}{again}" for number in range(5) for again in ("", " again"))
    ]  # fmt: skip
    for number in range(5):
        (step,) = await house.take(owner, "orders.fifo", 9)
        assert step.body == f"step {number}".encode()
        await house.service.settlement.ack(owner, None, "orders.fifo", [step.receipt])


# ---- idempotency ----


async def add_keyed(house: EncryptedHouse, call: Call, body: str) -> str:
    """Add under the key 'k' and return the id, or the error's code."""
    (added,) = await house.add(call, "work", body, key="k")
    return added.error.code if added.error is not None else added.id


async def test_29_the_same_key_adds_once_though_every_record_is_another(house: EncryptedHouse) -> None:
    """Sequentially and 20 at a time; with another body it is a conflict."""
    owner = await house.encrypted()
    ids = {await add_keyed(house, owner, PLAINTEXT) for _ in range(3)}
    ids |= set(await asyncio.gather(*(add_keyed(house, owner, PLAINTEXT) for _ in range(20))))
    assert len(ids) == 1
    assert await add_keyed(house, owner, "another") == "conflict"
    assert house.shard.reads.stats("acme", "work").ready == 1


async def test_29_a_batch_under_a_key_adds_once(house: EncryptedHouse) -> None:
    """And is a conflict with other bodies."""
    owner = await house.encrypted()
    batch = [message("a"), message("b")]
    first = await house.service.messages.add(owner, None, "work", batch, "k")
    again = await house.service.messages.add(owner, None, "work", batch, "k")
    assert [one.id for one in first] == [one.id for one in again]
    with pytest.raises(Conflict):
        await house.service.messages.add(owner, None, "work", [message("a"), message("c")], "k")


@pytest.mark.parametrize("first", [True, False])
async def test_29_a_key_is_known_again_after_encryption_was_switched(house: EncryptedHouse, first: bool) -> None:  # noqa: FBT001
    """On or off, between a try and the next one."""
    owner = await house.encrypted()
    await house.add(owner, "other", "so that there are keys")
    await house.tenant("acme", encryption={"enabled": first})
    id = await add_keyed(house, owner, PLAINTEXT)
    batch = await house.service.messages.add(owner, None, "work", [message("a")], "b")
    await house.tenant("acme", encryption={"enabled": not first})
    assert await add_keyed(house, owner, PLAINTEXT) == id
    assert await add_keyed(house, owner, "another") == "conflict"
    again = await house.service.messages.add(owner, None, "work", [message("a")], "b")
    assert [one.id for one in again] == [one.id for one in batch]


# ---- switching, restarting ----


async def test_switching_on_and_off_keeps_everything_readable(house: EncryptedHouse) -> None:
    """On a live tenant, with messages of both kinds in one poll."""
    await house.tenant("acme")
    owner = await house.key("acme")
    bodies = []
    for number, enabled in enumerate((False, True, False, True)):
        await house.tenant("acme", encryption={"enabled": enabled})
        (added,) = await house.add(owner, "work", f"body {number}")
        assert (await stored(house, added.id)).encrypted is enabled
        bodies.append(f"body {number}".encode())
    assert [one.body for one in await house.take(owner, "work", 9)] == bodies


async def test_58_after_a_restart_everything_opens(open_house: OpenEncryptedHouse) -> None:
    """Leased messages, waiting ones, results, and keys of idempotency."""
    house = await open_house()
    owner = await house.encrypted()
    id = await add_keyed(house, owner, PLAINTEXT)
    (got,) = await house.take(owner, "work")
    await house.add(owner, "work", "waits")
    await house.close()
    await house.shard.close()
    house = await open_house()
    assert await add_keyed(house, owner, PLAINTEXT) == id
    results = [Result("completed", b"done")]
    assert (await house.service.settlement.ack(owner, None, "work", [got.receipt], results))[0].ok
    assert (await house.service.message_reads.result(owner, None, "work", id))[0].value == b"done"
    assert [one.body for one in await house.take(owner, "work", 9)] == [b"waits"]


async def test_plaintext_never_gets_past_the_engine_once_encryption_is_on(house: EncryptedHouse) -> None:
    """Whoever goes around the service is refused; who stood in line while it was switched on is encrypted after all."""
    owner = await house.encrypted()
    await house.add(owner, "work", "x")
    with pytest.raises(Conflict, match="not encrypted"):
        await house.shard.add("acme", "work", [message("plain")])
    (got,) = await house.take(owner, "work")
    with pytest.raises(Conflict, match="not encrypted"):
        await verbs(house.shard).ack("acme", "work", [got.receipt], results=[Result("completed", b"plain")])
    await house.tenant("acme", encryption={"enabled": False})
    switching = asyncio.ensure_future(house.tenant("acme", encryption={"enabled": True}))
    added = await asyncio.gather(*(house.add(owner, "work", PLAINTEXT) for _ in range(3)))
    await switching
    rows = [await stored(house, one.id) for (one,) in added]
    assert [row.encrypted or row.body == PLAINTEXT.encode() for row in rows] == [True] * 3


async def test_a_key_that_does_not_work_is_refused_before_anything_changes(house: EncryptedHouse) -> None:
    """A name that is none, a provider that is not there, a key that is not in the keyring."""
    await house.tenant("acme")
    await house.encrypted("blue")
    wrong = (
        ("nonsense", Invalid), ("aws-kms:alias/x", KmsError), ("local:unknown", KeyDisabled), ("local:tenant-blue", Invalid)
    )  # fmt: skip
    for key, error in wrong:
        with pytest.raises(error):
            await house.tenant("acme", encryption={"enabled": True, "key": key})
    assert not house.shard.tenant("acme").config.encryption.enabled
    with pytest.raises(KeyDisabled):
        await house.tenant("newcomer", encryption={"enabled": True, "key": "local:unknown"})
    assert "newcomer" not in tenants(house.shard)


@pytest.mark.parametrize("patterns", [["pin", "card_*"], ["*"], []])
async def test_which_attributes_are_secret_is_the_tenants_choice(house: EncryptedHouse, patterns: list[str]) -> None:
    """By name, with wildcards; all; or none."""
    owner = await house.encrypted(secret_attributes=patterns)
    attributes = {"pin": "1", "card_no": "2", "secret_x": "3"}
    (added,) = await house.add(owner, "work", "x", attributes=attributes)
    shown = {"pin", "card_no"} if len(patterns) == 2 else set(attributes) if patterns else set()
    assert set((await stored(house, added.id)).attributes) == set(attributes) - shown
    (got,) = await house.take(owner, "work")
    assert got.attributes == attributes


@pytest.mark.rocksdb_only("copies its files")
async def test_58_after_a_crash_under_load_every_acknowledged_message_opens_and_no_key_is_lost(
    open_house: OpenEncryptedHouse, open_shard: OpenShard, clock: ManualClock, tmp_path: Path
) -> None:
    """Copies of the live store, as kills at these moments would leave it, while data keys are rotated."""
    house = await open_house()
    owner = await house.encrypted()
    acknowledged: dict[str, bytes] = {}

    async def produce(name: str) -> None:
        for number in range(12):
            body = f"{name} {number}"
            (one,) = await house.add(owner, "work", body, key=body)
            acknowledged[one.id] = body.encode()

    producing = [asyncio.ensure_future(produce(name)) for name in ("a", "b", "c")]
    crashes: list[tuple[Path, dict[str, bytes]]] = []
    for number in range(3):
        await house.service.encryption.rotate(owner, None)
        known = dict(acknowledged)
        freeze(tmp_path / "data", tmp_path / f"crash-{number}")
        crashes.append((tmp_path / f"crash-{number}", known))
    await asyncio.gather(*producing)
    for directory, known in crashes:
        again = EncryptedHouse(await open_shard(directory.name), clock, directory)
        got = await again.service.messages.poll(again.admin, "acme", "work", max=100)
        assert known.items() <= {one.id: one.body for one in got}.items()
        await again.close()
        await again.shard.close()
        assert not examine(directory).findings


async def test_a_large_batch_is_encrypted_in_parts_and_stays_one_batch(
    house: EncryptedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part lets other tasks run. The batch's key covers all of it, with the places of refused messages."""
    owner = await house.encrypted()
    pauses = list[int]()

    async def pause() -> None:
        pauses.append(1)
        await asyncio.sleep(0)

    monkeypatch.setattr(encryption, "next_slice", pause)
    batch: list[NewMessage | TenantqError] = [message(bytes([n]) * (1 << 19)) for n in range(5)]
    batch[1:1] = [message(b"5" * 400_000), message(bytes(1 << 20))]  # one part, although it is large
    batch.insert(2, Invalid("body: wrong"))
    batch.append(message(b"last", priority=3, attributes={"secret_token": "x"}))
    add = house.service.messages.add
    added = await add(owner, None, "work", batch, "once")
    assert len(pauses) >= 5
    assert [one.error is not None for one in added] == [False, False, True, *[False] * 6]
    again = await add(owner, None, "work", batch, "once")
    assert [(one.raw_id, one.duplicate) for one in again if one.error is None] == [
        (one.raw_id, True) for one in added if one.error is None
    ]
    with pytest.raises(Conflict):
        await add(owner, None, "work", list(reversed(batch)), "once")
    bodies = []
    while got := await house.service.messages.poll(owner, None, "work", max=10):
        bodies += [one.body for one in got]
    assert sorted(bodies) == sorted(one.body for one in batch if isinstance(one, NewMessage))


async def test_encrypted_and_decrypted_records_are_counted_for_their_tenant(house: EncryptedHouse) -> None:
    """Bodies and results, once for each time."""
    owner = await house.encrypted()
    added = await house.add(owner, "work", *["x"] * 5)
    got = await house.take(owner, "work", 3)
    await house.service.settlement.ack(owner, None, "work", [got[0].receipt], [Result("completed", b"done")])
    await house.service.message_reads.result(owner, None, "work", added[0].id)
    text = (await house.service.status.metrics(house.admin)).decode()
    assert 'tenantq_tenant_encryption_total{tenant="acme",operation="encrypt"} 6\n' in text
    assert 'tenantq_tenant_encryption_total{tenant="acme",operation="decrypt"} 4\n' in text
