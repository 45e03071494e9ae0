"""Encrypted tenants at work: authorized callers see bodies, the store never does, and nothing else differs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.doctor.store_check import examine
from tenantq.domain import limits
from tenantq.domain.message import NewMessage, Result
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.errors import Conflict, Invalid, KeyDisabled, KmsError, TenantqError, TooLarge
from tenantq.service import encryption
from tests.administration import tenants
from tests.contract.encryption.harness import PLAINTEXT, EncryptedHarness
from tests.shards import freeze, message
from tests.verbs import verbs

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock
    from tenantq.service.call import Call
    from tests.conftest import OpenShard
    from tests.contract.encryption.conftest import OpenEncryptedHarness


async def stored(harness: EncryptedHarness, id: str, queue: str = "work") -> NewMessage:
    """Return a message as the engine stores it."""
    facts = await harness.shard.reads.get("acme", queue, id)
    return NewMessage(
        body=facts.body, encrypted=facts.encrypted, encrypted_attributes=facts.encrypted_attributes, attributes=facts.attributes,
        raw_id=facts.raw_id,
    )  # fmt: skip


async def test_55_bodies_attributes_and_results_are_encrypted_in_the_store(
    harness: EncryptedHarness,
) -> None:
    """Poll, peek, get and result return plaintext; the rows contain none of it."""
    owner = await harness.encrypted()
    attributes = {"secret_token": PLAINTEXT, "kind": "order"}
    (added,) = await harness.add(owner, "work", PLAINTEXT, attributes=attributes)
    row = await stored(harness, added.id)
    assert row.encrypted
    assert row.attributes == {"kind": "order"}
    assert PLAINTEXT.encode() not in row.body + row.encrypted_attributes
    page = await harness.service.message_reads.peek(owner, None, "work")
    facts = await harness.service.message_reads.get(owner, None, "work", added.id)
    for seen in (page.messages[0], facts):
        assert (seen.body, seen.attributes, seen.encrypted) == (PLAINTEXT.encode(), attributes, True)
    (got,) = await harness.take(owner, "work")
    assert (got.body, got.attributes, got.id, got.encrypted) == (PLAINTEXT.encode(), attributes, added.id, False)
    await harness.service.settlement.ack(owner, None, "work", [got.receipt], [Result("completed", PLAINTEXT.encode())])
    kept = await harness.shard.reads.result("acme", "work", added.id)
    assert kept.encrypted
    assert PLAINTEXT.encode() not in (kept.value or b"")
    found, hidden = await harness.service.message_reads.result(owner, None, "work", added.id)
    assert (found, hidden) == (Result("completed", PLAINTEXT.encode()), False)


async def test_snapshot_is_decrypted_for_authorized_readers_only(harness: EncryptedHarness) -> None:
    """This includes messages that were consumed since."""
    owner = await harness.encrypted()
    viewer = await harness.key("acme", role="viewer")
    await harness.add(owner, "work", PLAINTEXT, attributes={"secret_token": PLAINTEXT})
    taken = await harness.service.message_reads.open_snapshot(owner, None, "work")
    (got,) = await harness.take(owner, "work")
    await harness.service.settlement.ack(owner, None, "work", [got.receipt])
    (seen,) = (await harness.service.message_reads.read_snapshot(owner, None, "work", taken.id)).messages
    assert (seen.body, seen.attributes) == (PLAINTEXT.encode(), {"secret_token": PLAINTEXT})
    (seen,) = (await harness.service.message_reads.read_snapshot(viewer, None, "work", taken.id)).messages
    assert (seen.body, seen.attributes, seen.hidden) == (b"", {}, True)


async def test_55_error_of_a_failed_result_is_encrypted(harness: EncryptedHarness) -> None:
    """It may contain parts of the body."""
    owner = await harness.encrypted()
    (added,) = await harness.add(owner, "work", "x")
    (got,) = await harness.take(owner, "work")
    await harness.service.settlement.ack(owner, None, "work", [got.receipt], [Result("failed", None, PLAINTEXT)])
    assert (await harness.shard.reads.result("acme", "work", added.id)).error is None
    assert (await harness.service.message_reads.result(owner, None, "work", added.id))[0] == Result(
        "failed", None, PLAINTEXT
    )


async def test_viewer_never_gets_plaintext_and_needs_no_kms(harness: EncryptedHarness) -> None:
    """Bodies, attributes and results are hidden, also while the keys are unavailable."""
    owner = await harness.encrypted()
    viewer = await harness.key("acme", "viewer")
    first, second = await harness.add(owner, "work", PLAINTEXT, PLAINTEXT, attributes={"secret_token": PLAINTEXT})
    (got,) = await harness.take(owner, "work")
    await harness.service.settlement.ack(owner, None, "work", [got.receipt], [Result("completed", PLAINTEXT.encode())])
    harness.forget_keys()
    harness.provider.failure = KmsError("no")
    facts = await harness.service.message_reads.get(viewer, None, "work", second.id)
    page = await harness.service.message_reads.peek(viewer, None, "work")
    for seen in (facts, *page.messages):
        assert (seen.body, seen.attributes, seen.encrypted_attributes, seen.hidden) == (b"", {}, b"", True)
    found, hidden = await harness.service.message_reads.result(viewer, None, "work", first.id)
    assert (found.value, found.error, hidden) == (None, None, True)


async def test_56_dead_letter_decrypts_in_its_queue_and_after_a_redrive(harness: EncryptedHarness) -> None:
    """Its AAD stays that of its origin."""
    owner = await harness.encrypted()
    await harness.service.queues.put(owner, None, "work", {"max_attempts": 1})
    (added,) = await harness.add(owner, "work", PLAINTEXT, attributes={"secret_a": PLAINTEXT})
    (got,) = await harness.take(owner, "work")
    await harness.service.settlement.nack(owner, None, "work", [got.receipt])
    assert (await harness.service.message_reads.get(owner, None, "work-dlq", added.id)).body == PLAINTEXT.encode()
    (letter,) = (await harness.service.message_reads.peek(owner, None, "work-dlq")).messages
    assert (letter.body, letter.attributes) == (PLAINTEXT.encode(), {"secret_a": PLAINTEXT})
    (got,) = await harness.take(owner, "work-dlq")
    assert (got.body, got.attributes) == (PLAINTEXT.encode(), {"secret_a": PLAINTEXT})
    await harness.service.settlement.release(owner, None, "work-dlq", [got.receipt])
    await harness.redrive(owner, "work", RedriveFilter())
    (got,) = await harness.take(owner, "work")
    assert (got.body, got.id) == (PLAINTEXT.encode(), added.id)


async def test_fleet_poll_mixes_encrypted_and_unencrypted_tenants(harness: EncryptedHarness) -> None:
    """One poll returns plaintext of both."""
    await harness.encrypted("acme")
    await harness.encrypted("blue")
    await harness.tenant("plain")
    for tenant in ("acme", "blue", "plain"):
        await harness.add(harness.admin, "work", f"of {tenant}", tenant=tenant)
    got = await harness.service.fleet.poll(harness.admin, "work", max=10)
    assert sorted(one.body for one in got) == [b"of acme", b"of blue", b"of plain"]


async def test_sizes_are_those_of_the_plaintext(harness: EncryptedHarness) -> None:
    """Encryption changes neither figures, quotas and journal, nor the body limit."""
    owner = await harness.encrypted()
    await harness.tenant("acme", quotas={"message_bytes": limits.BODY_BYTES_MAX})
    (added,) = await harness.add(owner, "work", "x" * limits.BODY_BYTES_MAX)
    assert added.error is None
    assert harness.shard.reads.stats("acme", "work").bytes == limits.BODY_BYTES_MAX
    assert (await harness.service.message_reads.get(owner, None, "work", added.id)).size == limits.BODY_BYTES_MAX
    (row,) = await harness.rows(tenant="acme", op="add")
    assert row.bytes == limits.BODY_BYTES_MAX
    (added,) = await harness.add(owner, "work", "x" * (limits.BODY_BYTES_MAX + 1))
    assert isinstance(added.error, TooLarge)
    (got,) = await harness.take(owner, "work")
    await harness.service.settlement.ack(owner, None, "work", [got.receipt])
    assert harness.shard.reads.stats("acme", "work").bytes == 0


async def test_invalid_messages_of_a_batch_keep_their_positions(harness: EncryptedHarness) -> None:
    """As without encryption, each is checked separately."""
    owner = await harness.encrypted()
    batch: list[NewMessage | TenantqError] = [
        message("a"),
        message("b", priority=99),
        Invalid("unreadable"),
        message("c", group="g", delay_ms=5),
    ]
    added = await harness.service.messages.add(owner, None, "work", batch)
    assert [one.error is None for one in added] == [True, False, False, True]
    assert [one.body for one in await harness.take(owner, "work", 10)] == [b"a"]
    await harness.pass_time(5)
    assert [one.body for one in await harness.take(owner, "work", 10)] == [b"c"]


async def test_order_groups_and_priorities_are_kept(harness: EncryptedHarness) -> None:
    """IDs are assigned before encryption, and still increase in the order of adding."""
    owner = await harness.encrypted()
    for number in range(5):
        await harness.add(owner, "work", f"low {number}", f"low {number} again")
        await harness.add(owner, "orders.fifo", f"step {number}", group="one")
    await harness.add(owner, "work", "high", priority=9)
    got = await harness.take(owner, "work", 20)
    assert [one.body.decode() for one in got] == [
        "high", *(f"low {number}{again}" for number in range(5) for again in ("", " again"))
    ]  # fmt: skip
    for number in range(5):
        (step,) = await harness.take(owner, "orders.fifo", 9)
        assert step.body == f"step {number}".encode()
        await harness.service.settlement.ack(owner, None, "orders.fifo", [step.receipt])


# ---- idempotency ----


async def add_keyed(harness: EncryptedHarness, call: Call, body: str) -> str:
    """Add with the key 'k' and return the ID, or the error code."""
    (added,) = await harness.add(call, "work", body, key="k")
    return added.error.code if added.error is not None else added.id


async def test_29_idempotency_key_works_although_ciphertexts_differ(harness: EncryptedHarness) -> None:
    """It adds once, sequentially and with 20 concurrent adds; with another body it is a conflict."""
    owner = await harness.encrypted()
    ids = {await add_keyed(harness, owner, PLAINTEXT) for _ in range(3)}
    ids |= set(await asyncio.gather(*(add_keyed(harness, owner, PLAINTEXT) for _ in range(20))))
    assert len(ids) == 1
    assert await add_keyed(harness, owner, "another") == "conflict"
    assert harness.shard.reads.stats("acme", "work").ready == 1


async def test_29_batch_with_a_key_adds_once(harness: EncryptedHarness) -> None:
    """Other bodies are a conflict."""
    owner = await harness.encrypted()
    batch = [message("a"), message("b")]
    first = await harness.service.messages.add(owner, None, "work", batch, "k")
    again = await harness.service.messages.add(owner, None, "work", batch, "k")
    assert [one.id for one in first] == [one.id for one in again]
    with pytest.raises(Conflict):
        await harness.service.messages.add(owner, None, "work", [message("a"), message("c")], "k")


@pytest.mark.parametrize("first", [True, False])
async def test_29_idempotency_key_survives_turning_encryption_on_or_off(harness: EncryptedHarness, first: bool) -> None:  # noqa: FBT001
    """It changes between an attempt and its retry."""
    owner = await harness.encrypted()
    await harness.add(owner, "other", "so that there are keys")
    await harness.tenant("acme", encryption={"enabled": first})
    id = await add_keyed(harness, owner, PLAINTEXT)
    batch = await harness.service.messages.add(owner, None, "work", [message("a")], "b")
    await harness.tenant("acme", encryption={"enabled": not first})
    assert await add_keyed(harness, owner, PLAINTEXT) == id
    assert await add_keyed(harness, owner, "another") == "conflict"
    again = await harness.service.messages.add(owner, None, "work", [message("a")], "b")
    assert [one.id for one in again] == [one.id for one in batch]


# ---- switching, restarting ----


async def test_turning_encryption_on_and_off_keeps_everything_readable(harness: EncryptedHarness) -> None:
    """A live tenant gets messages of both kinds in one poll."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    bodies = []
    for number, enabled in enumerate((False, True, False, True)):
        await harness.tenant("acme", encryption={"enabled": enabled})
        (added,) = await harness.add(owner, "work", f"body {number}")
        assert (await stored(harness, added.id)).encrypted is enabled
        bodies.append(f"body {number}".encode())
    assert [one.body for one in await harness.take(owner, "work", 9)] == bodies


async def test_58_everything_decrypts_after_a_restart(open_harness: OpenEncryptedHarness) -> None:
    """Covers leased and ready messages, results and idempotency keys."""
    harness = await open_harness()
    owner = await harness.encrypted()
    id = await add_keyed(harness, owner, PLAINTEXT)
    (got,) = await harness.take(owner, "work")
    await harness.add(owner, "work", "waits")
    await harness.close()
    await harness.shard.close()
    harness = await open_harness()
    assert await add_keyed(harness, owner, PLAINTEXT) == id
    results = [Result("completed", b"done")]
    assert (await harness.service.settlement.ack(owner, None, "work", [got.receipt], results))[0].ok
    assert (await harness.service.message_reads.result(owner, None, "work", id))[0].value == b"done"
    assert [one.body for one in await harness.take(owner, "work", 9)] == [b"waits"]


async def test_engine_refuses_plaintext_once_encryption_is_on(harness: EncryptedHarness) -> None:
    """Calls that bypass the service are refused; calls queued before the switch are encrypted after all."""
    owner = await harness.encrypted()
    await harness.add(owner, "work", "x")
    with pytest.raises(Conflict, match="not encrypted"):
        await harness.shard.add("acme", "work", [message("plain")])
    (got,) = await harness.take(owner, "work")
    with pytest.raises(Conflict, match="not encrypted"):
        await verbs(harness.shard).ack("acme", "work", [got.receipt], results=[Result("completed", b"plain")])
    await harness.tenant("acme", encryption={"enabled": False})
    switching = asyncio.ensure_future(harness.tenant("acme", encryption={"enabled": True}))
    added = await asyncio.gather(*(harness.add(owner, "work", PLAINTEXT) for _ in range(3)))
    await switching
    rows = [await stored(harness, one.id) for (one,) in added]
    assert [row.encrypted or row.body == PLAINTEXT.encode() for row in rows] == [True] * 3


async def test_unusable_key_is_refused_before_anything_changes(harness: EncryptedHarness) -> None:
    """Covers invalid names, unknown providers and keys that are not in the keyring."""
    await harness.tenant("acme")
    await harness.encrypted("blue")
    wrong = (
        ("nonsense", Invalid), ("aws-kms:alias/x", KmsError), ("local:unknown", KeyDisabled), ("local:tenant-blue", Invalid)
    )  # fmt: skip
    for key, error in wrong:
        with pytest.raises(error):
            await harness.tenant("acme", encryption={"enabled": True, "key": key})
    assert not harness.shard.tenant("acme").config.encryption.enabled
    with pytest.raises(KeyDisabled):
        await harness.tenant("newcomer", encryption={"enabled": True, "key": "local:unknown"})
    assert "newcomer" not in tenants(harness.shard)


@pytest.mark.parametrize("patterns", [["pin", "card_*"], ["*"], []])
async def test_tenant_chooses_which_attributes_are_secret(harness: EncryptedHarness, patterns: list[str]) -> None:
    """They are selected by name with wildcards, all, or none."""
    owner = await harness.encrypted(secret_attributes=patterns)
    attributes = {"pin": "1", "card_no": "2", "secret_x": "3"}
    (added,) = await harness.add(owner, "work", "x", attributes=attributes)
    shown = {"pin", "card_no"} if len(patterns) == 2 else set(attributes) if patterns else set()
    assert set((await stored(harness, added.id)).attributes) == set(attributes) - shown
    (got,) = await harness.take(owner, "work")
    assert got.attributes == attributes


@pytest.mark.rocksdb_only("copies its files")
async def test_58_crash_under_load_loses_no_message_and_no_key(
    open_harness: OpenEncryptedHarness, open_shard: OpenShard, clock: ManualClock, tmp_path: Path
) -> None:
    """Copies of the live store, as kills would leave it, decrypt while data keys are rotated."""
    harness = await open_harness()
    owner = await harness.encrypted()
    acknowledged: dict[str, bytes] = {}

    async def produce(name: str) -> None:
        for number in range(12):
            body = f"{name} {number}"
            (one,) = await harness.add(owner, "work", body, key=body)
            acknowledged[one.id] = body.encode()

    producing = [asyncio.ensure_future(produce(name)) for name in ("a", "b", "c")]
    crashes: list[tuple[Path, dict[str, bytes]]] = []
    for number in range(3):
        await harness.service.encryption.rotate(owner, None)
        known = dict(acknowledged)
        freeze(tmp_path / "data", tmp_path / f"crash-{number}")
        crashes.append((tmp_path / f"crash-{number}", known))
    await asyncio.gather(*producing)
    for directory, known in crashes:
        again = EncryptedHarness(await open_shard(directory.name), clock, directory)
        got = await again.service.messages.poll(again.admin, "acme", "work", max=100)
        assert known.items() <= {one.id: one.body for one in got}.items()
        await again.close()
        await again.shard.close()
        assert not examine(directory).findings


async def test_large_batch_is_encrypted_in_parts_and_stays_one_batch(
    harness: EncryptedHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part lets other tasks run. The batch key covers all of it, and refused messages keep their positions."""
    owner = await harness.encrypted()
    pauses = list[int]()

    async def pause() -> None:
        pauses.append(1)
        await asyncio.sleep(0)

    monkeypatch.setattr(encryption, "next_slice", pause)
    batch: list[NewMessage | TenantqError] = [message(bytes([n]) * (1 << 19)) for n in range(5)]
    batch[1:1] = [message(b"5" * 400_000), message(bytes(1 << 20))]  # one part, although it is large
    batch.insert(2, Invalid("body: wrong"))
    batch.append(message(b"last", priority=3, attributes={"secret_token": "x"}))
    add = harness.service.messages.add
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
    while got := await harness.service.messages.poll(owner, None, "work", max=10):
        bodies += [one.body for one in got]
    assert sorted(bodies) == sorted(one.body for one in batch if isinstance(one, NewMessage))


async def test_encrypted_and_decrypted_records_are_counted_for_their_tenant(harness: EncryptedHarness) -> None:
    """Bodies and results count once each time."""
    owner = await harness.encrypted()
    added = await harness.add(owner, "work", *["x"] * 5)
    got = await harness.take(owner, "work", 3)
    await harness.service.settlement.ack(owner, None, "work", [got[0].receipt], [Result("completed", b"done")])
    await harness.service.message_reads.result(owner, None, "work", added[0].id)
    text = (await harness.service.status.metrics(harness.admin)).decode()
    assert 'tenantq_tenant_encryption_total{tenant="acme",operation="encrypt"} 6\n' in text
    assert 'tenantq_tenant_encryption_total{tenant="acme",operation="decrypt"} 4\n' in text
