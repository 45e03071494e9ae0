"""After its keys are destroyed, nothing of a tenant can be decrypted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.errors import (
    Erased,
    LegalHold,
    StoreFailed,
)
from tests.unit.vault.doubles import ID, POLICY, REF, VaultEnvironment, decrypted, settle

if TYPE_CHECKING:
    from collections.abc import Callable


async def test_57_after_shredding_nothing_of_the_tenant_decrypts(env: VaultEnvironment) -> None:
    """At once, also with a cipher obtained before. Other tenants are not affected."""
    cipher = await env.vault.ready(7, POLICY)
    blob = cipher.encrypt("q", ID, "body", b"hello")
    other = (await env.vault.ready(8, POLICY)).encrypt("q", ID, "body", b"hello")
    await env.vault.rotate(7)
    assert await env.vault.shred(7) == 3
    assert 7 not in env.book.keys
    calls: list[Callable[[], bytes]] = [
        lambda: cipher.decrypt("q", ID, "body", blob),
        lambda: cipher.encrypt("q", ID, "body", b"x"),
        lambda: cipher.digest(b"x"),
    ]
    for call in calls:
        with pytest.raises(Erased):
            call()
    for later in (cipher.load([blob]), env.vault.ready(7, POLICY), env.vault.rotate(7), env.vault.rewrap(7, REF)):
        with pytest.raises(Erased):
            await later
    assert env.vault.cipher(7, POLICY) is None
    with pytest.raises(Erased):
        await decrypted(env.restarted(), blob)
    assert await decrypted(env.vault, other, 8) == b"hello"


async def test_shredding_takes_effect_before_the_store_answers(env: VaultEnvironment) -> None:
    """Nothing decrypts while the book is still writing."""
    cipher = await env.vault.ready(7, POLICY)
    blob = cipher.encrypt("q", ID, "body", b"hello")
    env.book.hold_writes = asyncio.Event()
    shredding = asyncio.create_task(env.vault.shred(7))
    await settle()
    assert not shredding.done()
    with pytest.raises(Erased):
        cipher.decrypt("q", ID, "body", blob)
    env.book.hold_writes.set()
    assert await shredding == 2


@pytest.mark.parametrize("held_up", ["key management", "store"])
async def test_a_concurrent_rotation_leaves_no_key_after_shredding(env: VaultEnvironment, held_up: str) -> None:
    """At any point of the rotation."""
    await env.vault.ready(7, POLICY)
    gate = asyncio.Event()
    if held_up == "store":
        env.book.hold_writes = gate
    else:
        env.kms.gate = gate
    rotation = asyncio.create_task(env.vault.rotate(7))
    await settle()
    shredding = asyncio.create_task(env.vault.shred(7))
    await settle()
    gate.set()
    await shredding
    with pytest.raises(Erased):
        await rotation
    assert 7 not in env.book.keys
    assert env.vault.health().cached_keys == 0


async def test_a_concurrent_unwrap_restores_no_key_after_shredding(env: VaultEnvironment) -> None:
    """A key that arrives late is discarded."""
    blob = (await env.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"hello")
    again = env.restarted()
    env.kms.gate = asyncio.Event()
    opening = asyncio.create_task(decrypted(again, blob))
    await settle()
    await again.shred(7)
    env.kms.gate.set()
    with pytest.raises(Erased):
        await opening
    assert again.health().cached_keys == 0


async def test_shredding_that_fails_in_the_store_can_be_repeated(env: VaultEnvironment) -> None:
    """Until it has succeeded nothing decrypts either."""
    cipher = await env.vault.ready(7, POLICY)
    env.book.fail = StoreFailed()
    with pytest.raises(StoreFailed):
        await env.vault.shred(7)
    with pytest.raises(Erased):
        cipher.digest(b"x")
    env.book.fail = None
    assert await env.vault.shred(7) == 2
    assert await env.vault.shred(7) == 0


async def test_refused_shredding_leaves_everything_readable(env: VaultEnvironment) -> None:
    """For example by a legal hold set in between: nothing was destroyed."""
    cipher = await env.vault.ready(7, POLICY)
    blob = cipher.encrypt("q", ID, "body", b"hello")
    env.book.fail = LegalHold()
    with pytest.raises(LegalHold):
        await env.vault.shred(7)
    env.book.fail = None
    assert await decrypted(env.vault, blob) == b"hello"
    assert (await env.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"more")
    assert await env.vault.shred(7) == 2
