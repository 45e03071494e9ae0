"""Rewrapping data keys with another key leaves messages unchanged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.errors import (
    Invalid,
    KeyDisabled,
    KmsError,
    KmsUnavailable,
)
from tenantq.kms.interface import KeyRef
from tenantq.vault.envelope import key_number
from tenantq.vault.settings import KeyPolicy, VaultSettings
from tests.unit.vault.doubles import ID, OTHER, POLICY, REF, VaultEnvironment, decrypted, settle

if TYPE_CHECKING:
    from tenantq.runtime.clock import ManualClock


async def test_rewrapping_to_another_provider_changes_no_message(env: VaultEnvironment) -> None:
    """The old provider is no longer needed, and records and digests stay the same."""
    cipher = await env.vault.ready(7, POLICY)
    blobs = []
    for _ in range(3):
        blobs.append(cipher.encrypt("q", ID, "body", b"hello"))
        await env.vault.rotate(7)
    digest = cipher.digest(b"x")
    assert await env.vault.rewrap(7, OTHER) == 5
    assert {key.key for key in env.book.keys[7].values()} == {OTHER}
    env.kms.error = KeyDisabled()
    again = env.restarted()
    for blob in blobs:
        assert await decrypted(again, blob) == b"hello"
    assert (await again.ready(7, KeyPolicy(OTHER))).digest(b"x") == digest
    await again.close()


async def test_rewrapping_with_the_same_key_rewraps_everything(env: VaultEnvironment) -> None:
    """As needed after the provider has rotated the key."""
    await env.vault.ready(7, POLICY)
    before = {number: key.wrapped for number, key in env.book.keys[7].items()}
    assert await env.vault.rewrap(7, REF) == 2
    after = env.book.keys[7]
    assert all(after[number].wrapped != wrapped for number, wrapped in before.items())
    assert all(after[number].created_at for number in before)


async def test_rewrapping_under_load_keeps_reservations_and_new_keys(clock: ManualClock) -> None:
    """Uses reserved and keys created meanwhile are neither lost nor left out."""
    env = VaultEnvironment(clock, VaultSettings(uses_max=400, uses_reserved=20))
    records: list[bytes] = []
    done = False

    async def produce() -> None:
        while not done:
            records.append((await env.vault.ready(7, KeyPolicy(OTHER))).encrypt("q", ID, "body", b"hello"))
            await asyncio.sleep(0)

    await env.vault.ready(7, POLICY)
    workers = [asyncio.create_task(produce()) for _ in range(3)]
    for _ in range(3):
        await settle()
        await env.vault.rewrap(7, OTHER)
    done = True
    await asyncio.gather(*workers)
    assert {key.key for key in env.book.keys[7].values()} == {OTHER}
    used: dict[int, int] = {}
    again = env.restarted()
    for blob in records:
        assert await decrypted(again, blob) == b"hello"
        used[key_number(blob)] = used.get(key_number(blob), 0) + 1
    assert all(count <= env.book.keys[7][number].uses <= 400 for number, count in used.items())
    await again.close()
    await env.vault.close()


async def test_a_key_created_during_a_rewrap_is_rewrapped_too(env: VaultEnvironment) -> None:
    """Also if it was still wrapped by the old key."""
    await env.vault.ready(7, POLICY)
    env.other.gate = asyncio.Event()
    rewrapping = asyncio.create_task(env.vault.rewrap(7, OTHER))
    await settle()
    assert await env.vault.rotate(7) == 2
    assert env.book.keys[7][2].key == REF
    env.other.gate.set()
    assert await rewrapping == 3
    assert {key.key for key in env.book.keys[7].values()} == {OTHER}


async def test_an_interrupted_rewrap_can_be_repeated(env: VaultEnvironment) -> None:
    """Until then some keys are wrapped by the old key and some by the new one, and all work."""
    cipher = await env.vault.ready(7, POLICY)
    blob = cipher.encrypt("q", ID, "body", b"hello")
    await env.vault.rotate(7)
    wrap = env.other.wrap

    async def fail_on_the_second(key: str, plaintext: bytes, context: dict[str, str]) -> bytes:
        if context["number"] == "1":
            raise KmsUnavailable("out of order")
        return await wrap(key, plaintext, context)

    env.other.wrap = fail_on_the_second  # type: ignore[method-assign, assignment]  # an outage in the middle
    with pytest.raises(KmsUnavailable):
        await env.vault.rewrap(7, OTHER)
    assert {key.key for key in env.book.keys[7].values()} == {REF, OTHER}
    assert await decrypted(env.restarted(), blob) == b"hello"
    env.other.wrap = wrap  # type: ignore[method-assign]
    assert await env.vault.rewrap(7, OTHER) == 3
    assert {key.key for key in env.book.keys[7].values()} == {OTHER}


async def test_rewrapping_to_an_unusable_key_changes_nothing(env: VaultEnvironment) -> None:
    """A provider that is not configured, an invalid name, or a key that does not work."""
    await env.vault.ready(7, POLICY)
    before = dict(env.book.keys[7])
    with pytest.raises(KmsError, match="gcp-kms"):
        await env.vault.rewrap(7, KeyRef("gcp-kms", "x"))
    with pytest.raises(Invalid):
        await env.vault.rewrap(7, KeyRef("local", ""))
    env.other.error = KeyDisabled()
    with pytest.raises(KeyDisabled):
        await env.vault.rewrap(7, OTHER)
    assert env.book.keys[7] == before
