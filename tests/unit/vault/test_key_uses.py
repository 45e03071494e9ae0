"""How often a data key encrypts, over all processes and restarts."""

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
from tests.unit.vault.doubles import ID, POLICY, VaultEnvironment, settle

if TYPE_CHECKING:
    from tenantq.runtime.clock import ManualClock


async def test_the_uses_of_a_data_key_are_bounded_across_restarts(clock: ManualClock) -> None:
    """Uses are reserved in the store first, so a restart forgets none."""
    env = VaultEnvironment(clock, VaultSettings(uses_max=100, uses_reserved=20))
    numbers: dict[int, int] = {}
    for _ in range(12):
        vault = env.restarted()
        for _ in range(15):
            cipher = vault.cipher(7, POLICY) or await vault.ready(7, POLICY)
            number = key_number(cipher.encrypt("q", ID, "body", b"x"))
            numbers[number] = numbers.get(number, 0) + 1
            await settle()
        await vault.close()
    assert sum(numbers.values()) == 180
    assert len(numbers) > 1
    assert max(numbers.values()) <= 100
    assert all(key.uses <= 100 for key in env.book.keys[7].values())


async def test_ready_reserves_the_uses_of_a_batch(clock: ManualClock) -> None:
    """``uses`` records can be encrypted after ready without another wait."""
    env = VaultEnvironment(clock, VaultSettings(uses_max=10_000, uses_reserved=10))
    for _ in range(5):
        cipher = await env.vault.ready(7, POLICY, uses=25)
        for _ in range(25):
            cipher.encrypt("q", ID, "body", b"x")
    with pytest.raises(KmsUnavailable):
        await env.vault.ready(7, POLICY, uses=100_000)
    await env.vault.close()


async def test_encrypting_without_reserved_uses_is_a_typed_error(clock: ManualClock) -> None:
    """Not a single use beyond the limit is allowed."""
    env = VaultEnvironment(clock, VaultSettings(uses_max=5, uses_reserved=5))
    cipher = await env.vault.ready(7, POLICY)
    for _ in range(5):
        cipher.encrypt("q", ID, "body", b"x")
    with pytest.raises(KmsUnavailable):
        cipher.encrypt("q", ID, "body", b"x")
    assert key_number((await env.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"x")) == 2
    await env.vault.close()


async def test_several_processes_share_the_limit(clock: ManualClock) -> None:
    """Each sees the reservations of the others."""
    env = VaultEnvironment(clock, VaultSettings(uses_max=60, uses_reserved=10))
    vaults = [env.vault, env.restarted(), env.restarted()]
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


async def test_nonces_are_unique(env: VaultEnvironment) -> None:
    """Each record has 96 fresh random bits."""
    cipher = await env.vault.ready(7, POLICY, uses=5_000)
    assert len({cipher.encrypt("q", ID, "body", b"x")[5:17] for _ in range(5_000)}) == 5_000
