"""How long a key stays in memory, and what happens in an outage."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from tenantq.errors import (
    KeyDisabled,
    KmsUnavailable,
)
from tenantq.vault.data_keys import MARGIN_MS, RENEWAL_DELAY_MS
from tenantq.vault.settings import VaultSettings
from tests.unit.vault.doubles import DAY_MS, HOUR_MS, ID, POLICY, House, opened, settle

if TYPE_CHECKING:
    from tenantq.runtime.clock import ManualClock


async def test_a_key_in_memory_is_used_up_to_its_age_and_not_a_moment_longer(house: House, clock: ManualClock) -> None:
    """While the key management is out: sealing, opening and digests go on, then each is a typed error."""
    await house.vault.ready(8, POLICY)
    clock.advance(HOUR_MS // 10)  # so that no sweep forgets the keys just when they are too old
    sealer = await house.vault.ready(7, POLICY)
    blob = sealer.encrypt("q", ID, "body", b"hello")
    house.kms.error = KmsUnavailable()
    clock.advance(HOUR_MS - MARGIN_MS - 1)
    assert await house.vault.ready(7, POLICY) is sealer
    assert await opened(house.vault, blob) == b"hello"
    clock.advance(MARGIN_MS)
    assert sealer.decrypt("q", ID, "body", sealer.encrypt("q", ID, "body", b"x")) == b"x"
    clock.advance(1)
    with pytest.raises(KmsUnavailable):
        sealer.encrypt("q", ID, "body", b"x")
    with pytest.raises(KmsUnavailable):
        sealer.decrypt("q", ID, "body", blob)
    with pytest.raises(KmsUnavailable):
        sealer.digest(b"x")
    with pytest.raises(KmsUnavailable):
        await house.vault.ready(7, POLICY)
    with pytest.raises(KmsUnavailable):
        await opened(house.vault, blob)
    house.kms.error = None
    assert await opened(house.vault, blob) == b"hello"
    assert (await house.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"x")


async def test_the_age_runs_on_the_monotonic_clock(house: House, clock: ManualClock) -> None:
    """A wall clock that jumps neither ends a key's life nor prolongs it."""
    sealer = await house.vault.ready(7, POLICY)
    clock.jump_wall(-10 * DAY_MS)
    assert sealer.encrypt("q", ID, "body", b"x")
    clock.jump_wall(12 * DAY_MS)
    assert sealer.encrypt("q", ID, "body", b"x")


async def test_57_an_outage_is_a_typed_error_and_never_plaintext(house: House) -> None:
    """From the beginning, without any key in memory."""
    house.kms.error = KmsUnavailable("out of order")
    with pytest.raises(KmsUnavailable, match="out of order"):
        await house.vault.ready(7, POLICY)
    assert house.book.keys == {}
    house.kms.error = KeyDisabled("switched off")
    with pytest.raises(KeyDisabled, match="switched off"):
        await house.vault.ready(7, POLICY)
    house.kms.error = None
    assert await house.vault.ready(7, POLICY)


async def test_keys_in_use_are_renewed_before_they_are_too_old(house: House, clock: ManualClock) -> None:
    """Beside the work: nobody waits, and the age begins anew."""
    sealer = await house.vault.ready(7, POLICY)
    house.kms.unwraps.clear()
    clock.advance(HOUR_MS * 8 // 10)
    assert house.vault.cipher(7, POLICY) is None
    house.kms.gate = asyncio.Event()
    assert await asyncio.wait_for(house.vault.ready(7, POLICY), 5) is sealer
    house.kms.gate.set()
    await settle()
    assert sorted(house.kms.unwraps) == ["0", "1"]
    clock.advance(HOUR_MS * 6 // 10)
    assert await house.vault.ready(7, POLICY) is sealer
    assert house.vault.cipher(7, POLICY) is sealer
    assert sealer.encrypt("q", ID, "body", b"x")


async def test_a_renewal_that_fails_is_tried_again_after_a_while(
    house: House, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not with every call, and with one line in the log."""
    sealer = await house.vault.ready(7, POLICY)
    house.kms.unwraps.clear()
    house.kms.error = KmsUnavailable("out of order")
    clock.advance(HOUR_MS * 8 // 10)
    with caplog.at_level(logging.WARNING, "tenantq"):
        for _ in range(5):
            await house.vault.ready(7, POLICY)
            await settle()
    assert len(house.kms.unwraps) == 2
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == 2
    assert house.vault.cipher(7, POLICY) is sealer
    house.kms.error = None
    clock.advance(RENEWAL_DELAY_MS)
    await house.vault.ready(7, POLICY)
    await settle()
    assert len(house.kms.unwraps) == 4
    clock.advance(HOUR_MS // 2)
    assert sealer.encrypt("q", ID, "body", b"x")


async def test_keys_are_forgotten_when_they_are_too_old_though_nobody_asks(house: House, clock: ManualClock) -> None:
    """They do not stay in memory."""
    await house.vault.ready(7, POLICY)
    assert house.vault.health().cached_keys == 2
    clock.advance(HOUR_MS * 5 // 4)
    assert house.vault.health().cached_keys == 0


async def test_no_more_keys_are_in_memory_than_allowed(clock: ManualClock) -> None:
    """The oldest go; what was sealed stays readable."""
    house = House(clock, VaultSettings(cached_keys_max=4))
    blobs = {
        tenant: (await house.vault.ready(tenant, POLICY)).encrypt("q", ID, "body", b"hi") for tenant in range(1, 6)
    }
    assert house.vault.health().cached_keys == 4
    for tenant, blob in blobs.items():
        assert await opened(house.vault, blob, tenant) == b"hi"
        assert (await house.vault.ready(tenant, POLICY)).encrypt("q", ID, "body", b"hi")
    assert house.vault.health().cached_keys == 4
    await house.vault.close()
