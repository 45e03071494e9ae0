"""The vault: keys are made, used, shown in figures, and never in a text."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import TYPE_CHECKING

import pytest

from tenantq.errors import (
    KmsError,
    KmsUnavailable,
    SealBroken,
    TenantqError,
)
from tenantq.kms.interface import KeyRef
from tenantq.vault.envelope import key_number
from tenantq.vault.settings import KeyPolicy
from tests.unit.vault.doubles import HOUR_MS, ID, OTHER, POLICY, REF, House, opened, settle

if TYPE_CHECKING:
    from tenantq.runtime.clock import ManualClock


async def test_the_first_call_makes_a_secret_and_a_data_key(house: House) -> None:
    """Both are stored wrapped, in the tenant's context, and tried before they are used."""
    sealer = await house.vault.ready(7, POLICY)
    blob = sealer.encrypt("q", ID, "body", b"hello")
    assert sealer.decrypt("q", ID, "body", blob) == b"hello"
    assert sorted(house.book.keys[7]) == [0, 1]
    assert {key.key for key in house.book.keys[7].values()} == {REF}
    assert house.kms.wraps == house.kms.unwraps == ["0", "1"]


async def test_a_ready_sealer_is_had_without_waiting(house: House) -> None:
    """Until something has to be renewed, or the policy is another one."""
    assert house.vault.cipher(7, POLICY) is None
    sealer = await house.vault.ready(7, POLICY)
    assert house.vault.cipher(7, POLICY) is sealer
    assert house.vault.cipher(7, KeyPolicy(REF)) is sealer
    assert house.vault.cipher(7, KeyPolicy(OTHER)) is None
    assert house.vault.cipher(8, POLICY) is None


async def test_after_a_restart_everything_opens_and_the_same_key_seals_on(house: House) -> None:
    """Nothing is made anew."""
    sealer = await house.vault.ready(7, POLICY)
    blob, digest = sealer.encrypt("q", ID, "body", b"hello"), sealer.digest(b"hello")
    again = house.restarted()
    assert await opened(again, blob) == b"hello"
    sealer = await again.ready(7, POLICY)
    assert key_number(sealer.encrypt("q", ID, "body", b"more")) == 1
    assert sealer.digest(b"hello") == digest
    assert house.kms.wraps == ["0", "1"]
    await again.close()


async def test_56_what_one_tenant_sealed_no_other_opens(house: House) -> None:
    """Neither with its own keys, nor when its stored keys are exchanged for the first one's."""
    blob = (await house.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"hello")
    await house.vault.ready(8, POLICY)
    with pytest.raises(SealBroken):
        await opened(house.vault, blob, 8)
    house.book.keys[8] = dict(house.book.keys[7])
    with pytest.raises(SealBroken):
        await opened(house.restarted(), blob, 8)


async def test_opening_needs_no_policy_so_it_goes_on_where_encryption_was_switched_off(house: House) -> None:
    """Also when the key that seals could not be had."""
    blob = (await house.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"hello")
    assert await opened(house.restarted(), blob) == b"hello"


async def test_a_record_of_a_key_that_never_was_is_broken_and_does_not_disturb_others(house: House) -> None:
    """Nor does something that is no record at all, or one that names the secret."""
    sealer = await house.vault.ready(7, POLICY)
    good = sealer.encrypt("q", ID, "body", b"hello")
    strange = good[:1] + (99).to_bytes(4) + good[5:]
    secret = good[:1] + bytes(4) + good[5:]
    blobs = [strange, b"plain", secret, good]
    await sealer.load(blobs)
    for blob in blobs[:3]:
        with pytest.raises(SealBroken):
            sealer.decrypt("q", ID, "body", blob)
    assert sealer.decrypt("q", ID, "body", good) == b"hello"


async def test_a_key_without_load_is_not_at_hand(house: House) -> None:
    """A typed error, not a guess."""
    blob = (await house.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"hello")
    reader = house.restarted().reader(7)
    with pytest.raises(KmsUnavailable):
        reader.decrypt("q", ID, "body", blob)
    with pytest.raises(KmsUnavailable):
        reader.encrypt("q", ID, "body", b"x")
    with pytest.raises(KmsUnavailable):
        reader.digest(b"x")


async def test_stored_keys_that_were_changed_or_exchanged_break_the_seal(house: House) -> None:
    """A wrapped key is bound to its tenant and number."""
    sealer = await house.vault.ready(7, POLICY)
    first = sealer.encrypt("q", ID, "body", b"hello")
    await house.vault.rotate(7)
    second = sealer.encrypt("q", ID, "body", b"hello")
    keys = house.book.keys[7]
    keys[1], keys[2] = (
        type(keys[1])(1, REF, keys[2].wrapped, 0),
        type(keys[2])(2, REF, bytes((keys[2].wrapped[0] ^ 1,)) + keys[2].wrapped[1:], 0),
    )
    for blob in (first, second):
        with pytest.raises(SealBroken):
            await opened(house.restarted(), blob)


async def test_health_shows_every_key_and_what_is_in_memory(house: House) -> None:
    """And a key can be tried."""
    await house.vault.ready(7, POLICY)
    await house.vault.ready(8, KeyPolicy(OTHER))
    health = house.vault.health()
    assert [(key.provider, key.key, key.state) for key in health.keys] == [
        ("local", "main", "ok"),
        ("aws-kms", "alias/other", "ok"),
    ]
    assert (health.tenants, health.cached_keys, health.ok) == (2, 4, True)
    house.kms.error = KmsUnavailable()
    assert not house.vault.health().ok
    assert (await house.vault.check(REF)).state == "unavailable"
    with pytest.raises(KmsError, match="no key management system 'gcp-kms'"):
        await house.vault.check(KeyRef("gcp-kms", "x"))


async def test_a_closed_vault_holds_no_keys_and_gives_none(house: House) -> None:
    """Work under way ends with a typed error."""
    sealer = await house.vault.ready(7, POLICY)
    blob = sealer.encrypt("q", ID, "body", b"hello")
    house.kms.gate = asyncio.Event()
    rotation = asyncio.create_task(house.vault.rotate(7))
    await settle()
    await house.vault.close()
    with pytest.raises(KmsUnavailable):
        await rotation
    assert house.vault.health().cached_keys == 0
    for later in (sealer.load([blob]), house.vault.ready(7, POLICY)):
        with pytest.raises(KmsUnavailable):
            await later


async def test_no_key_shows_in_any_text(house: House, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in what objects say of themselves, nor in the log, nor in errors."""
    caplog.set_level(logging.DEBUG)
    sealer = await house.vault.ready(7, POLICY)
    blob = sealer.encrypt("q", ID, "body", b"marked plaintext")
    await house.vault.rotate(7)
    await house.vault.rewrap(7, OTHER)
    texts = [
        repr(thing) for thing in (house.vault, sealer, house.vault.health(), house.book.keys, *sealer._held.values())
    ]
    texts += [repr(sealer._keys), repr(house.vault._cache), repr(house.vault._context)]
    errors: list[TenantqError] = []
    for queue, broken in (("other", blob), ("q", blob[:-1])):
        with pytest.raises(TenantqError) as caught:
            sealer.decrypt(queue, ID, "body", broken)
        errors.append(caught.value)
    house.kms.error = house.other.error = KmsUnavailable("out of order")
    clock.advance(2 * HOUR_MS)
    with pytest.raises(TenantqError) as caught:
        await house.vault.ready(7, POLICY)
    errors.append(caught.value)
    texts += [repr(vars(error)) + str(error) + repr(error.__context__) for error in errors]
    texts += [record.getMessage() + repr(vars(record)) for record in caplog.records]
    everything = "\n".join(texts)
    assert len(house.kms.seen) == 3
    for key in house.kms.seen | house.other.seen | {b"marked plaintext"}:
        for form in (key.hex(), repr(key)[2:-1], base64.b64encode(key).decode()):
            assert form not in everything
