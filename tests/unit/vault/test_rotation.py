"""New data keys, on schedule and on demand, while work goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.errors import (
    Invalid,
    KmsError,
    KmsUnavailable,
)
from tenantq.vault.data_keys import RENEWAL_DELAY_MS
from tenantq.vault.envelope import key_number
from tenantq.vault.settings import KeyPolicy
from tests.unit.vault.doubles import DAY_MS, HOUR_MS, ID, OTHER, POLICY, REF, House, opened, settle

if TYPE_CHECKING:
    from tenantq.runtime.clock import ManualClock


async def test_57_rotation_under_load_loses_nothing(house: House) -> None:
    """While producers seal and consumers open, keys change; everything opens, and the newest key seals."""
    sealed: list[bytes] = []
    done = False

    async def produce() -> None:
        while not done:
            sealer = house.vault.cipher(7, POLICY, 10) or await house.vault.ready(7, POLICY, 10)
            sealed.extend(sealer.encrypt("q", ID, "body", b"message %d" % n) for n in range(10))
            await asyncio.sleep(0)

    async def consume() -> None:
        seen = 0
        while not done:
            fresh = sealed[seen : seen + 50]
            reader = house.vault.reader(7)
            await reader.load(fresh)
            for blob in fresh:
                assert reader.decrypt("q", ID, "body", blob).startswith(b"message ")
            seen += len(fresh)
            await asyncio.sleep(0)

    workers = [asyncio.create_task(work()) for work in (produce, produce, produce, consume, consume)]
    await settle()
    for turn in range(20):
        assert await house.vault.rotate(7) == turn + 2
        await settle()
    done = True
    await asyncio.gather(*workers)
    assert {key_number(blob) for blob in sealed} == set(range(1, 22))
    again = house.restarted()
    for blob in sealed:
        assert (await opened(again, blob)).startswith(b"message ")
    await again.close()


async def test_a_rotation_that_waits_for_the_key_management_holds_nobody_up(house: House) -> None:
    """The old key seals until the new one is stored."""
    sealer = await house.vault.ready(7, POLICY)
    house.kms.gate = asyncio.Event()
    rotation = asyncio.create_task(house.vault.rotate(7))
    await settle()
    assert key_number((await house.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"x")) == 1
    house.kms.gate.set()
    assert await rotation == 2
    assert key_number(sealer.encrypt("q", ID, "body", b"x")) == 2


async def test_a_data_key_is_rotated_when_it_is_due(house: House, clock: ManualClock) -> None:
    """Beside the first use after its time, which still gets the old one."""
    await house.vault.ready(7, POLICY)
    clock.advance(30 * DAY_MS - 1)
    sealer = await house.vault.ready(7, POLICY)
    await settle()
    assert key_number(sealer.encrypt("q", ID, "body", b"x")) == 1
    clock.advance(1)
    assert house.vault.cipher(7, POLICY) is None
    await house.vault.ready(7, POLICY)
    await settle()
    assert key_number(sealer.encrypt("q", ID, "body", b"x")) == 2
    assert sorted(house.book.keys[7]) == [0, 1, 2]


async def test_a_due_rotation_that_fails_leaves_the_old_key_at_work(house: House, clock: ManualClock) -> None:
    """It is tried again later; no key is stored that could not be had back."""
    policy = KeyPolicy(REF, rotate_every_ms=HOUR_MS // 2)
    sealer = await house.vault.ready(7, policy)
    clock.advance(HOUR_MS // 2)
    house.kms.error = KmsUnavailable()
    for _ in range(3):
        assert await house.vault.ready(7, policy) is sealer
        await settle()
    assert key_number(sealer.encrypt("q", ID, "body", b"x")) == 1
    assert house.kms.wraps == ["0", "1", "2"]
    house.kms.error = None
    clock.advance(RENEWAL_DELAY_MS)
    await house.vault.ready(7, policy)
    await settle()
    assert key_number(sealer.encrypt("q", ID, "body", b"x")) == 2


async def test_a_key_that_does_not_come_back_as_it_was_is_never_used(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sealed would be lost."""

    async def unwrap(*_: object) -> bytes:
        return bytes(32)

    monkeypatch.setattr(house.kms, "unwrap", unwrap)
    with pytest.raises(KmsError, match="unwraps to different bytes"):
        await house.vault.ready(7, POLICY)
    assert house.book.keys == {}


async def test_a_new_key_in_the_policy_wraps_the_next_data_key(house: House) -> None:
    """The older ones stay with the old key until they are wrapped anew."""
    sealer = await house.vault.ready(7, POLICY)
    old = sealer.encrypt("q", ID, "body", b"x")
    await house.vault.ready(7, KeyPolicy(OTHER))
    await settle()
    new = sealer.encrypt("q", ID, "body", b"x")
    assert (key_number(old), key_number(new)) == (1, 2)
    assert [key.key for _, key in sorted(house.book.keys[7].items())] == [REF, REF, OTHER]


async def test_a_rotation_in_another_process_is_taken_up_with_the_next_renewal(
    house: House, clock: ManualClock
) -> None:
    """Without making yet another key."""
    sealer = await house.vault.ready(7, POLICY)
    other = house.restarted()
    assert await other.rotate(7) == 2
    assert key_number(sealer.encrypt("q", ID, "body", b"x")) == 1
    clock.advance(HOUR_MS * 8 // 10)
    await house.vault.ready(7, POLICY)
    await settle()
    await house.vault.ready(7, POLICY)
    assert key_number(sealer.encrypt("q", ID, "body", b"x")) == 2
    assert sorted(house.book.keys[7]) == [0, 1, 2]
    await other.close()


async def test_a_tenant_without_keys_has_nothing_to_rotate(house: House) -> None:
    """A typed error says when keys are made."""
    with pytest.raises(Invalid, match="no data keys yet"):
        await house.vault.rotate(7)
