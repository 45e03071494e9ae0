"""Rotation of data keys, on schedule and on demand, under load."""

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
from tests.unit.vault.doubles import DAY_MS, HOUR_MS, ID, OTHER, POLICY, REF, VaultEnvironment, decrypted, settle

if TYPE_CHECKING:
    from tenantq.runtime.clock import ManualClock


async def test_57_rotation_under_load_loses_nothing(env: VaultEnvironment) -> None:
    """Keys change while producers encrypt and consumers decrypt. Everything decrypts, and the newest key encrypts."""
    records: list[bytes] = []
    done = False

    async def produce() -> None:
        while not done:
            cipher = env.vault.cipher(7, POLICY, 10) or await env.vault.ready(7, POLICY, 10)
            records.extend(cipher.encrypt("q", ID, "body", b"message %d" % n) for n in range(10))
            await asyncio.sleep(0)

    async def consume() -> None:
        seen = 0
        while not done:
            fresh = records[seen : seen + 50]
            reader = env.vault.reader(7)
            await reader.load(fresh)
            for blob in fresh:
                assert reader.decrypt("q", ID, "body", blob).startswith(b"message ")
            seen += len(fresh)
            await asyncio.sleep(0)

    workers = [asyncio.create_task(work()) for work in (produce, produce, produce, consume, consume)]
    await settle()
    for turn in range(20):
        assert await env.vault.rotate(7) == turn + 2
        await settle()
    done = True
    await asyncio.gather(*workers)
    assert {key_number(blob) for blob in records} == set(range(1, 22))
    again = env.restarted()
    for blob in records:
        assert (await decrypted(again, blob)).startswith(b"message ")
    await again.close()


async def test_a_slow_rotation_blocks_no_caller(env: VaultEnvironment) -> None:
    """The old key encrypts until the new one is stored."""
    cipher = await env.vault.ready(7, POLICY)
    env.kms.gate = asyncio.Event()
    rotation = asyncio.create_task(env.vault.rotate(7))
    await settle()
    assert key_number((await env.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"x")) == 1
    env.kms.gate.set()
    assert await rotation == 2
    assert key_number(cipher.encrypt("q", ID, "body", b"x")) == 2


async def test_a_data_key_is_rotated_when_it_is_due(env: VaultEnvironment, clock: ManualClock) -> None:
    """In the background of the first use after its time, which still gets the old key."""
    await env.vault.ready(7, POLICY)
    clock.advance(30 * DAY_MS - 1)
    cipher = await env.vault.ready(7, POLICY)
    await settle()
    assert key_number(cipher.encrypt("q", ID, "body", b"x")) == 1
    clock.advance(1)
    assert env.vault.cipher(7, POLICY) is None
    await env.vault.ready(7, POLICY)
    await settle()
    assert key_number(cipher.encrypt("q", ID, "body", b"x")) == 2
    assert sorted(env.book.keys[7]) == [0, 1, 2]


async def test_a_failed_rotation_keeps_the_old_key(env: VaultEnvironment, clock: ManualClock) -> None:
    """It is retried later, and no key is stored that could not be unwrapped again."""
    policy = KeyPolicy(REF, rotate_every_ms=HOUR_MS // 2)
    cipher = await env.vault.ready(7, policy)
    clock.advance(HOUR_MS // 2)
    env.kms.error = KmsUnavailable()
    for _ in range(3):
        assert await env.vault.ready(7, policy) is cipher
        await settle()
    assert key_number(cipher.encrypt("q", ID, "body", b"x")) == 1
    assert env.kms.wraps == ["0", "1", "2"]
    env.kms.error = None
    clock.advance(RENEWAL_DELAY_MS)
    await env.vault.ready(7, policy)
    await settle()
    assert key_number(cipher.encrypt("q", ID, "body", b"x")) == 2


async def test_a_key_that_does_not_unwrap_correctly_is_never_used(
    env: VaultEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records would be lost."""

    async def unwrap(*_: object) -> bytes:
        return bytes(32)

    monkeypatch.setattr(env.kms, "unwrap", unwrap)
    with pytest.raises(KmsError, match="unwraps to different bytes"):
        await env.vault.ready(7, POLICY)
    assert env.book.keys == {}


async def test_a_new_key_in_the_policy_wraps_the_next_data_key(env: VaultEnvironment) -> None:
    """Older data keys keep the old key until they are rewrapped."""
    cipher = await env.vault.ready(7, POLICY)
    old = cipher.encrypt("q", ID, "body", b"x")
    await env.vault.ready(7, KeyPolicy(OTHER))
    await settle()
    new = cipher.encrypt("q", ID, "body", b"x")
    assert (key_number(old), key_number(new)) == (1, 2)
    assert [key.key for _, key in sorted(env.book.keys[7].items())] == [REF, REF, OTHER]


async def test_a_rotation_by_another_process_is_found_by_the_next_renewal(
    env: VaultEnvironment, clock: ManualClock
) -> None:
    """No second key is created."""
    cipher = await env.vault.ready(7, POLICY)
    other = env.restarted()
    assert await other.rotate(7) == 2
    assert key_number(cipher.encrypt("q", ID, "body", b"x")) == 1
    clock.advance(HOUR_MS * 8 // 10)
    await env.vault.ready(7, POLICY)
    await settle()
    await env.vault.ready(7, POLICY)
    assert key_number(cipher.encrypt("q", ID, "body", b"x")) == 2
    assert sorted(env.book.keys[7]) == [0, 1, 2]
    await other.close()


async def test_a_tenant_without_keys_has_nothing_to_rotate(env: VaultEnvironment) -> None:
    """A typed error says when keys are created."""
    with pytest.raises(Invalid, match="no data keys yet"):
        await env.vault.rotate(7)
