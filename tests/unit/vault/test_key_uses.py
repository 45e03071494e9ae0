"""How often a data key seals, over all processes and runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.errors import (
    KmsUnavailable,
)
from tenantq.vault.envelope import key_number
from tenantq.vault.settings import VaultSettings
from tenantq.vault.vault import Vault
from tests.unit.vault.doubles import ID, POLICY, House, settle

if TYPE_CHECKING:
    from tenantq.runtime.clock import ManualClock


async def test_a_data_key_is_used_only_so_often_over_all_runs(clock: ManualClock) -> None:
    """Uses are reserved in the store before they are used, so that a restart forgets none."""
    house = House(clock, VaultSettings(uses_max=100, uses_reserved=20))
    numbers: dict[int, int] = {}
    for _ in range(12):
        vault = house.restarted()
        for _ in range(15):
            sealer = vault.cipher(7, POLICY) or await vault.ready(7, POLICY)
            number = key_number(sealer.encrypt("q", ID, "body", b"x"))
            numbers[number] = numbers.get(number, 0) + 1
            await settle()
        await vault.close()
    assert sum(numbers.values()) == 180
    assert len(numbers) > 1
    assert max(numbers.values()) <= 100
    assert all(key.uses <= 100 for key in house.book.keys[7].values())


async def test_a_batch_has_room_before_it_begins(clock: ManualClock) -> None:
    """``uses`` records can be sealed after ready, without a further wait."""
    house = House(clock, VaultSettings(uses_max=10_000, uses_reserved=10))
    for _ in range(5):
        sealer = await house.vault.ready(7, POLICY, uses=25)
        for _ in range(25):
            sealer.encrypt("q", ID, "body", b"x")
    with pytest.raises(KmsUnavailable):
        await house.vault.ready(7, POLICY, uses=100_000)
    await house.vault.close()


async def test_without_room_nothing_is_sealed(clock: ManualClock) -> None:
    """Whoever seals without asking for more gets a typed error, not one use too many."""
    house = House(clock, VaultSettings(uses_max=5, uses_reserved=5))
    sealer = await house.vault.ready(7, POLICY)
    for _ in range(5):
        sealer.encrypt("q", ID, "body", b"x")
    with pytest.raises(KmsUnavailable):
        sealer.encrypt("q", ID, "body", b"x")
    assert key_number((await house.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"x")) == 2
    await house.vault.close()


async def test_several_processes_share_the_bound(clock: ManualClock) -> None:
    """Reservations of one are seen by the others."""
    house = House(clock, VaultSettings(uses_max=60, uses_reserved=10))
    vaults = [house.vault, house.restarted(), house.restarted()]
    numbers: dict[int, int] = {}

    async def work(vault: Vault) -> None:
        for _ in range(100):
            number = key_number((await vault.ready(7, POLICY)).encrypt("q", ID, "body", b"x"))
            numbers[number] = numbers.get(number, 0) + 1
            await asyncio.sleep(0)

    await asyncio.gather(*(work(vault) for vault in vaults))
    assert sum(numbers.values()) == 300
    assert max(numbers.values()) <= 60
    for vault in vaults:
        await vault.close()


async def test_nonces_are_never_the_same(house: House) -> None:
    """Each record has 96 fresh random bits."""
    sealer = await house.vault.ready(7, POLICY, uses=5_000)
    assert len({sealer.encrypt("q", ID, "body", b"x")[5:17] for _ in range(5_000)}) == 5_000
