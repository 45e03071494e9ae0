"""How long a key stays in memory, and what happens during an outage."""

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
from tests.unit.vault.doubles import DAY_MS, HOUR_MS, ID, POLICY, VaultEnvironment, decrypted, settle

if TYPE_CHECKING:
    from tenantq.runtime.clock import ManualClock


async def test_a_cached_key_is_used_up_to_its_maximum_age(env: VaultEnvironment, clock: ManualClock) -> None:
    """During an outage, encryption, decryption and digests continue until then, and then raise a typed error."""
    await env.vault.ready(8, POLICY)
    clock.advance(HOUR_MS // 10)  # so that no sweep removes the keys exactly when they expire
    cipher = await env.vault.ready(7, POLICY)
    blob = cipher.encrypt("q", ID, "body", b"hello")
    env.kms.error = KmsUnavailable()
    clock.advance(HOUR_MS - MARGIN_MS - 1)
    assert await env.vault.ready(7, POLICY) is cipher
    assert await decrypted(env.vault, blob) == b"hello"
    clock.advance(MARGIN_MS)
    assert cipher.decrypt("q", ID, "body", cipher.encrypt("q", ID, "body", b"x")) == b"x"
    clock.advance(1)
    with pytest.raises(KmsUnavailable):
        cipher.encrypt("q", ID, "body", b"x")
    with pytest.raises(KmsUnavailable):
        cipher.decrypt("q", ID, "body", blob)
    with pytest.raises(KmsUnavailable):
        cipher.digest(b"x")
    with pytest.raises(KmsUnavailable):
        await env.vault.ready(7, POLICY)
    with pytest.raises(KmsUnavailable):
        await decrypted(env.vault, blob)
    env.kms.error = None
    assert await decrypted(env.vault, blob) == b"hello"
    assert (await env.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"x")


async def test_the_age_is_measured_on_the_monotonic_clock(env: VaultEnvironment, clock: ManualClock) -> None:
    """A jump of the wall clock neither shortens nor extends it."""
    cipher = await env.vault.ready(7, POLICY)
    clock.jump_wall(-10 * DAY_MS)
    assert cipher.encrypt("q", ID, "body", b"x")
    clock.jump_wall(12 * DAY_MS)
    assert cipher.encrypt("q", ID, "body", b"x")


async def test_57_an_outage_is_a_typed_error_and_never_plaintext(env: VaultEnvironment) -> None:
    """From the start, without any key in memory."""
    env.kms.error = KmsUnavailable("out of order")
    with pytest.raises(KmsUnavailable, match="out of order"):
        await env.vault.ready(7, POLICY)
    assert env.book.keys == {}
    env.kms.error = KeyDisabled("switched off")
    with pytest.raises(KeyDisabled, match="switched off"):
        await env.vault.ready(7, POLICY)
    env.kms.error = None
    assert await env.vault.ready(7, POLICY)


async def test_keys_in_use_are_renewed_before_they_expire(env: VaultEnvironment, clock: ManualClock) -> None:
    """In the background: no caller waits, and the age restarts."""
    cipher = await env.vault.ready(7, POLICY)
    env.kms.unwraps.clear()
    clock.advance(HOUR_MS * 8 // 10)
    assert env.vault.cipher(7, POLICY) is None
    env.kms.gate = asyncio.Event()
    assert await asyncio.wait_for(env.vault.ready(7, POLICY), 5) is cipher
    env.kms.gate.set()
    await settle()
    assert sorted(env.kms.unwraps) == ["0", "1"]
    clock.advance(HOUR_MS * 6 // 10)
    assert await env.vault.ready(7, POLICY) is cipher
    assert env.vault.cipher(7, POLICY) is cipher
    assert cipher.encrypt("q", ID, "body", b"x")


async def test_a_failed_renewal_is_retried_after_a_while(
    env: VaultEnvironment, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not with every call, and with one log line."""
    cipher = await env.vault.ready(7, POLICY)
    env.kms.unwraps.clear()
    env.kms.error = KmsUnavailable("out of order")
    clock.advance(HOUR_MS * 8 // 10)
    with caplog.at_level(logging.WARNING, "tenantq"):
        for _ in range(5):
            await env.vault.ready(7, POLICY)
            await settle()
    assert len(env.kms.unwraps) == 2
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == 2
    assert env.vault.cipher(7, POLICY) is cipher
    env.kms.error = None
    clock.advance(RENEWAL_DELAY_MS)
    await env.vault.ready(7, POLICY)
    await settle()
    assert len(env.kms.unwraps) == 4
    clock.advance(HOUR_MS // 2)
    assert cipher.encrypt("q", ID, "body", b"x")


async def test_expired_keys_are_removed_from_memory_without_a_call(env: VaultEnvironment, clock: ManualClock) -> None:
    """They do not stay in memory."""
    await env.vault.ready(7, POLICY)
    assert env.vault.health().cached_keys == 2
    clock.advance(HOUR_MS * 5 // 4)
    assert env.vault.health().cached_keys == 0


async def test_the_number_of_keys_in_memory_is_bounded(clock: ManualClock) -> None:
    """The oldest are removed, and their records can still be decrypted."""
    env = VaultEnvironment(clock, VaultSettings(cached_keys_max=4))
    blobs = {tenant: (await env.vault.ready(tenant, POLICY)).encrypt("q", ID, "body", b"hi") for tenant in range(1, 6)}
    assert env.vault.health().cached_keys == 4
    for tenant, blob in blobs.items():
        assert await decrypted(env.vault, blob, tenant) == b"hi"
        assert (await env.vault.ready(tenant, POLICY)).encrypt("q", ID, "body", b"hi")
    assert env.vault.health().cached_keys == 4
    await env.vault.close()
