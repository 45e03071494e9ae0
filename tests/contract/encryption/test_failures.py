"""Unavailable keys or changed ciphertext: typed errors, nothing lost, nothing in plaintext."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.domain.message import Result
from tenantq.errors import (
    DecryptionFailed,
    Erased,
    KeyDisabled,
    KmsDenied,
    KmsUnavailable,
    TenantqError,
    Unavailable,
)
from tenantq.http.problem import problem_reply
from tenantq.runtime.randomness import id_bytes
from tests.administration import queues, tenants
from tests.contract.encryption.harness import PLAINTEXT
from tests.contract.gates.harness import REASON
from tests.shards import message

if TYPE_CHECKING:
    from tenantq.service.call import Call
    from tests.contract.encryption.harness import EncryptedHarness

HOUR_MS = 3_600_000


@pytest.mark.parametrize("failure", [KmsUnavailable("throttled"), KmsDenied("no"), KeyDisabled("off")])
async def test_57_kms_outage_on_add_is_a_typed_error_and_writes_nothing(
    harness: EncryptedHarness, failure: TenantqError
) -> None:
    """No message, queue or plaintext is stored, and the rate tokens are refunded."""
    owner = await harness.encrypted()
    harness.provider.failure = failure
    before = await harness.journal_end()
    for call in (
        harness.add(owner, "work", PLAINTEXT),
        harness.service.messages.add(owner, None, "work", [message("a")], "key"),
    ):
        with pytest.raises(type(failure)):
            await call
    assert "work" not in queues(harness.shard, "acme")
    refused = await harness.rows(before, op="add")
    assert {(row.tenant, row.error_code) for row in refused} == {("acme", failure.code)}
    harness.provider.failure = None
    assert (await harness.add(owner, "work", PLAINTEXT))[0].error is None


async def test_57_kms_outage_on_poll_releases_the_leases_without_using_an_attempt(harness: EncryptedHarness) -> None:
    """When it is over, the messages are delivered as a first delivery."""
    owner = await harness.encrypted()
    await harness.add(owner, "work", PLAINTEXT, "second")
    harness.forget_keys()
    harness.provider.failure = KmsUnavailable("out")
    for options in ({}, {"wait_ms": 1_000}):
        with pytest.raises(KmsUnavailable):
            await harness.take(owner, "work", 5, **options)
    await harness.wait_until_idle()
    stats = harness.shard.reads.stats("acme", "work")
    assert (stats.ready, stats.in_flight) == (2, 0)
    harness.provider.failure = None
    got = await harness.take(owner, "work", 5)
    assert [(one.body, one.attempt) for one in got] == [(PLAINTEXT.encode(), 1), (b"second", 1)]


async def test_57_kms_outage_on_reads_and_ack_with_a_result_changes_nothing(harness: EncryptedHarness) -> None:
    """Peek, get and result are refused; the lease stays and can be acked later."""
    owner = await harness.encrypted()
    first, second = await harness.add(owner, "work", PLAINTEXT, "second")
    got = await harness.take(owner, "work", 1)
    await harness.service.settlement.ack(owner, None, "work", [got[0].receipt], [Result("completed", b"1")])
    (got,) = [await harness.take(owner, "work", 1)]
    harness.forget_keys()
    harness.provider.failure = KmsUnavailable("out")
    receipts, results = [got[0].receipt], [Result("completed", PLAINTEXT.encode())]
    calls = (
        harness.service.message_reads.get(owner, None, "work", second.id),
        harness.service.message_reads.result(owner, None, "work", first.id),
        harness.service.settlement.ack(owner, None, "work", receipts, results),
    )
    for call in calls:
        with pytest.raises(KmsUnavailable):
            await call
    harness.provider.failure = None
    assert (await harness.service.settlement.ack(owner, None, "work", receipts, results))[0].ok
    assert (await harness.service.message_reads.result(owner, None, "work", second.id))[0].value == PLAINTEXT.encode()


async def test_57_cached_keys_bridge_an_outage_until_they_expire(harness: EncryptedHarness) -> None:
    """Then work stops with a typed error, and never continues in plaintext."""
    owner = await harness.encrypted()
    await harness.add(owner, "work", "before")
    harness.provider.failure = KmsUnavailable("out")
    await harness.add(owner, "work", "meanwhile")
    assert [one.body for one in await harness.take(owner, "work", 5)] == [b"before", b"meanwhile"]
    await harness.pass_time(HOUR_MS)
    for call in (harness.add(owner, "work", "too late"), harness.take(owner, "work", 5)):
        with pytest.raises(KmsUnavailable):
            await call
    harness.provider.failure = None
    await harness.add(owner, "work", "after")


async def test_57_key_outage_of_one_tenant_does_not_block_a_fleet(harness: EncryptedHarness) -> None:
    """Other tenants are served. A fleet with no other tenant gets the error."""
    await harness.encrypted("acme")
    await harness.tenant("plain")
    await harness.add(harness.admin, "work", "sealed", tenant="acme")
    await harness.add(harness.admin, "work", "open", tenant="plain")
    harness.forget_keys()
    harness.provider.failure = KmsUnavailable("out")
    got = await harness.service.fleet.poll(harness.admin, "work", max=10)
    assert [one.body for one in got] == [b"open"]
    assert await harness.service.fleet.poll(harness.admin, "work", max=10) == []  # the fleet skips it for a while
    await harness.pass_time(1_000)
    with pytest.raises(KmsUnavailable):
        await harness.service.fleet.poll(harness.admin, "work", max=10)
    waiting = asyncio.ensure_future(harness.service.fleet.poll(harness.admin, "work", max=10, wait_ms=30_000))
    await harness.wait_until_idle()
    harness.provider.failure = None
    for _ in range(3):
        await harness.pass_time(1_000)
    assert [(one.body, one.attempt) for one in await waiting] == [(b"sealed", 1)]


async def test_poll_cancelled_while_keys_are_fetched_leaves_no_lease(
    harness: EncryptedHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leased messages are released."""
    owner = await harness.encrypted()
    await harness.add(owner, "work", "x")
    harness.forget_keys()
    asked, gate = asyncio.Event(), asyncio.Event()
    unwrap = harness.provider.unwrap

    async def held_up(*arguments: object) -> bytes:
        asked.set()
        await gate.wait()
        return await unwrap(*arguments)  # type: ignore[arg-type]  # forwarded unchanged

    monkeypatch.setattr(harness.provider, "unwrap", held_up)
    polling = asyncio.ensure_future(harness.take(owner, "work"))
    await asked.wait()
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    await harness.wait_until_idle()
    assert harness.shard.reads.stats("acme", "work").ready == 1
    gate.set()
    assert [one.attempt for one in await harness.take(owner, "work")] == [1]


def test_57_kms_outage_has_retry_after() -> None:
    """The value is in whole seconds."""
    error = KmsUnavailable("out")
    error.retry_after_ms = 4_200
    assert b"Retry-After: 5\r\n" in problem_reply(error, "r").headers
    assert b"Retry-After: 1\r\n" in problem_reply(Unavailable(), "r").headers


# ---- changed and moved bytes ----


def swap(harness: EncryptedHarness, one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    """Swap the stored bytes of two messages: (tenant, queue, id) each."""
    store = harness.shard.state.store
    keys = [harness.shard.tenant(tenant).queues[queue].prefix + id_bytes(id) for tenant, queue, id in (one, other)]
    values = [store.get(store.m, key) for key in keys]
    batch = store.new_batch()
    for key, value in zip(keys, reversed(values), strict=True):
        assert value is not None
        batch.put(key, value, store.m.handle)
    store.write(batch)


async def added(harness: EncryptedHarness, tenant: str, queue: str, body: str) -> tuple[str, str, str]:
    """Add a message and return its location."""
    (one,) = await harness.add(harness.admin, queue, body, tenant=tenant)
    return tenant, queue, one.id


@pytest.mark.parametrize("other", [("acme", "work"), ("acme", "elsewhere"), ("blue", "work")])
async def test_56_ciphertext_moved_to_another_message_queue_or_tenant_does_not_decrypt(
    harness: EncryptedHarness, other: tuple[str, str]
) -> None:
    """Every read gets a typed error, and the message ends among the dead letters."""
    owner = await harness.encrypted("acme")
    await harness.encrypted("blue")
    await harness.service.queues.put(owner, None, "work", {"max_attempts": 2, "backoff_base_ms": 0})
    here = await added(harness, "acme", "work", "mine")
    there = await added(harness, *other, "another's")
    swap(harness, here, there)
    with pytest.raises(DecryptionFailed):
        await harness.service.message_reads.get(owner, None, "work", here[2])
    page = await harness.service.message_reads.peek(owner, None, "work")
    assert {(one.body, one.body_error) for one in page.messages} == {(b"", "seal_broken")}
    for _ in range(2):
        with pytest.raises(DecryptionFailed):
            await harness.take(owner, "work", 1)
        if other == ("acme", "work"):
            with pytest.raises(DecryptionFailed):
                await harness.take(owner, "work", 1)
        await harness.pass_time(1)
    assert await harness.take(owner, "work", 9) == []
    (letter,) = [
        one for one in (await harness.service.message_reads.peek(owner, None, "work-dlq")).messages if one.id == here[2]
    ]
    assert (letter.dead is not None and letter.dead.reason) == "seal_broken"
    assert harness.encryption.broken >= 2
    await harness.add(owner, "work", "goes on")
    assert [one.body for one in await harness.take(owner, "work", 9)] == [b"goes on"]


async def test_56_undecryptable_message_blocks_no_other(harness: EncryptedHarness) -> None:
    """The other messages of a poll are delivered."""
    owner = await harness.encrypted()
    places = [await added(harness, "acme", "work", f"body {number}") for number in range(4)]
    swap(harness, places[0], places[1])
    assert [one.body for one in await harness.take(owner, "work", 9)] == [b"body 2", b"body 3"]


async def test_56_plaintext_in_place_of_ciphertext_is_refused(harness: EncryptedHarness) -> None:
    """A truncated record is refused too."""
    owner = await harness.encrypted()
    here = await added(harness, "acme", "work", "mine")
    store = harness.shard.state.store
    key = harness.shard.tenant("acme").queues["work"].prefix + id_bytes(here[2])
    value = store.get(store.m, key) or b""
    for forged in (value[:28] + b"plaintext" * 9, value[:34], value[:28]):
        batch = store.new_batch()
        batch.put(key, forged, store.m.handle)
        store.write(batch)
        with pytest.raises(DecryptionFailed):
            await harness.service.message_reads.get(owner, None, "work", here[2])


# ---- rotation, rewrapping, the end ----


async def work_on(harness: EncryptedHarness, call: Call, rounds: int, seen: list[bytes]) -> None:
    """Add and consume, ten at a time."""
    for number in range(rounds):
        await harness.add(call, "work", *(f"{number} {place}" for place in range(10)))
        got = await harness.take(call, "work", 10)
        seen += [one.body for one in got]
        await harness.service.settlement.ack(call, None, "work", [one.receipt for one in got])


async def test_57_rotating_and_rewrapping_under_load_loses_nothing(harness: EncryptedHarness) -> None:
    """Data keys and the keyring's key change while producers and consumers run; old messages stay readable."""
    owner = await harness.encrypted()
    (old,) = await harness.add(owner, "archive", "of the first key")
    seen: list[bytes] = []
    working = [asyncio.ensure_future(work_on(harness, owner, 15, seen)) for _ in range(4)]
    for _ in range(3):
        await harness.service.encryption.rotate(owner, None)
        await asyncio.to_thread(harness.ring.rotate_key, "tenant-acme", harness.clock.wall_ms())
        await harness.service.encryption.rewrap(owner, None)
    await asyncio.gather(*working)
    assert sorted(seen) == sorted(
        f"{number} {place}".encode() for number in range(15) for place in range(10) for _ in "1234"
    )
    reply = await harness.service.encryption.get(owner, None)
    assert [one.number for one in reply.data_keys] == [1, 2, 3, 4]
    assert (reply.key, reply.key_state, reply.enabled) == ("local:tenant-acme", "ok", True)
    harness.forget_keys()
    assert (await harness.service.message_reads.get(owner, None, "archive", old.id)).body == b"of the first key"
    assert [row.principal for row in await harness.rows(tenant="acme", op="rotate_keys")] == [
        "key:" + key_id(owner)
    ] * 3
    assert len(await harness.rows(tenant="acme", op="rewrap_keys")) == 3


def key_id(call: Call) -> str:
    """Return the ID of a caller's key."""
    return (call.bearer or "").split("_")[1]


async def test_57_data_key_is_rotated_on_schedule(harness: EncryptedHarness) -> None:
    """The next message after it is due rotates it."""
    owner = await harness.encrypted(rotate_every_ms=2 * HOUR_MS)
    await harness.add(owner, "work", "x")
    await harness.pass_time(2 * HOUR_MS)
    for _ in range(3):
        await harness.add(owner, "work", "x")
        await asyncio.sleep(0.02)  # the keyring is read on a thread
    reply = await harness.service.encryption.get(owner, None)
    assert [one.number for one in reply.data_keys] == [1, 2]


async def test_old_key_can_be_removed_after_rewrapping(harness: EncryptedHarness) -> None:
    """The tenant's key changes without touching a message, and all messages decrypt."""
    owner = await harness.encrypted()
    (added,) = await harness.add(owner, "work", "x")
    harness.ring.add_key("another", 5)
    await harness.tenant("acme", encryption={"key": "local:another"})
    reply = await harness.service.encryption.rewrap(owner, None)
    assert {one.key for one in reply.data_keys} == {"local:another"}
    harness.ring.remove_key("tenant-acme")
    harness.forget_keys()
    assert (await harness.service.message_reads.get(owner, None, "work", added.id)).body == b"x"


async def test_57_deleting_a_tenant_destroys_its_key_in_the_keyring(
    harness: EncryptedHarness,
) -> None:
    """Backups with the wrapped keys do not decrypt either; a recreated tenant has nothing of it."""
    owner = await harness.encrypted()
    await harness.add(owner, "work", PLAINTEXT)
    before = await harness.journal_end()
    await harness.service.erasures.delete_tenant(harness.admin, "acme", confirm="acme", reason=REASON)
    assert [row.op for row in await harness.rows(before)] == ["drop_data_keys", "delete_tenant", "certify_erasure"]
    assert "tenant-acme" not in harness.ring.read().document.keys
    assert not harness.shard.state.data_keys.by_tenant
    owner = await harness.encrypted()
    await harness.add(owner, "work", "anew")
    assert [one.body for one in await harness.take(owner, "work", 9)] == [b"anew"]


async def test_unwritable_keyring_stops_a_deletion_that_can_be_repeated(
    harness: EncryptedHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows stay until the keys are destroyed."""
    owner = await harness.encrypted()
    await harness.add(owner, "work", "x")
    harness.ring.path.rename(harness.ring.path.with_suffix(".away"))
    with pytest.raises(KmsUnavailable):
        await harness.service.erasures.delete_tenant(harness.admin, "acme", confirm="acme", reason=REASON)
    assert "acme" in tenants(harness.shard)
    with pytest.raises(Erased):
        await harness.add(owner, "work", "x")
    harness.ring.path.with_suffix(".away").rename(harness.ring.path)
    await harness.service.erasures.delete_tenant(harness.admin, "acme", confirm="acme", reason=REASON)
    assert "acme" not in tenants(harness.shard)


async def test_deleting_an_unencrypted_tenant_touches_no_keys(harness: EncryptedHarness) -> None:
    """The journal has no row about keys either."""
    await harness.tenant("plain")
    before = await harness.journal_end()
    await harness.service.erasures.delete_tenant(harness.admin, "plain", confirm="plain", reason=REASON)
    assert [row.op for row in await harness.rows(before)] == ["delete_tenant", "certify_erasure"]


async def test_rotating_keys_of_an_unencrypted_tenant_is_a_conflict(harness: EncryptedHarness) -> None:
    """Its status says that it is not encrypted."""
    await harness.tenant("plain")
    for call in (
        harness.service.encryption.rotate(harness.admin, "plain"),
        harness.service.encryption.rewrap(harness.admin, "plain"),
    ):
        with pytest.raises(TenantqError, match="not enabled for this tenant"):
            await call
    reply = await harness.service.encryption.get(harness.admin, "plain")
    assert (reply.enabled, reply.key, reply.data_keys) == (False, None, [])


async def test_key_health_is_in_readiness_and_metrics_without_key_names(harness: EncryptedHarness) -> None:
    """Operators can monitor it."""
    owner = await harness.encrypted()
    await harness.add(owner, "work", "x")
    assert harness.service.status.readiness()["keys"] == "ok"
    harness.forget_keys()
    harness.provider.failure = KeyDisabled("off")
    with pytest.raises(KeyDisabled):
        await harness.add(owner, "work", "x")
    assert (harness.service.status.readiness()["keys"], harness.service.status.readiness()["ready"]) == (
        "1 disabled",
        True,
    )
    text = (await harness.service.status.metrics(harness.admin)).decode()
    assert 'tenantq_kms_keys{provider="local",state="disabled"} 1.0' in text
    assert "tenantq_encrypted_tenants 1.0" in text
    assert "tenant-acme" not in text
