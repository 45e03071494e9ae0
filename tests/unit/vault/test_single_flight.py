"""Concurrent callers share one request to the key management system."""

from __future__ import annotations

import asyncio

from tenantq.errors import (
    KmsUnavailable,
)
from tests.unit.vault.doubles import ID, POLICY, VaultEnvironment, decrypted, settle


async def test_concurrent_callers_unwrap_once(env: VaultEnvironment) -> None:
    """All get the cipher, and each key is requested once."""
    blob = (await env.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"hello")
    again = env.restarted()
    env.kms.unwraps.clear()
    env.kms.gate = asyncio.Event()
    getting_ready = [asyncio.create_task(again.ready(7, POLICY)) for _ in range(100)]
    opening = [asyncio.create_task(decrypted(again, blob)) for _ in range(100)]
    await settle()
    assert sorted(env.kms.unwraps) == ["0", "1"]
    env.kms.gate.set()
    assert await asyncio.gather(*opening) == [b"hello"] * 100
    await asyncio.gather(*getting_ready)
    assert sorted(env.kms.unwraps) == ["0", "1"]


async def test_concurrent_first_callers_create_one_key(env: VaultEnvironment) -> None:
    """And share it."""
    ciphers = await asyncio.gather(*(env.vault.ready(7, POLICY) for _ in range(50)))
    assert len({id(cipher) for cipher in ciphers}) == 1
    assert env.kms.wraps == ["0", "1"]


async def test_a_cancelled_caller_does_not_cancel_the_request_for_others(env: VaultEnvironment) -> None:
    """The call to the key management system continues."""
    env.kms.gate = asyncio.Event()
    one, two = (asyncio.create_task(env.vault.ready(7, POLICY)) for _ in range(2))
    await settle()
    one.cancel()
    await settle()
    env.kms.gate.set()
    assert (await two).digest(b"x")
    assert one.cancelled()


async def test_every_caller_gets_its_own_error_object(env: VaultEnvironment) -> None:
    """Equal in type, text and retry time."""
    env.kms.error = KmsUnavailable("out of order")
    env.kms.error.retry_after_ms = 77
    found = await asyncio.gather(*(env.vault.ready(7, POLICY) for _ in range(5)), return_exceptions=True)
    assert [(type(error), str(error)) for error in found] == [(KmsUnavailable, "out of order")] * 5
    assert all(isinstance(error, KmsUnavailable) and error.retry_after_ms == 77 for error in found)
    assert len({id(error) for error in found}) == 5


async def test_two_processes_that_start_together_agree_on_one_key(env: VaultEnvironment) -> None:
    """The second to store uses the first one's key."""
    vaults = [env.vault, env.restarted(), env.restarted()]
    ciphers = await asyncio.gather(*(vault.ready(7, POLICY) for vault in vaults))
    assert sorted(env.book.keys[7]) == [0, 1]
    blobs = [cipher.encrypt("q", ID, "body", b"hello") for cipher in ciphers]
    assert [await decrypted(vaults[0], blob) for blob in blobs] == [b"hello"] * 3
    assert len({cipher.digest(b"x") for cipher in ciphers}) == 1
    for vault in vaults[1:]:
        await vault.close()
