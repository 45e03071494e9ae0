"""Destroyed keys: nothing of the tenant opens any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.errors import (
    Erased,
    LegalHold,
    StoreFailed,
)
from tests.unit.vault.doubles import ID, POLICY, REF, House, opened, settle

if TYPE_CHECKING:
    from collections.abc import Callable


async def test_57_after_shredding_nothing_of_the_tenant_opens(house: House) -> None:
    """At once, also with a sealer held from before; other tenants go on."""
    sealer = await house.vault.ready(7, POLICY)
    blob = sealer.encrypt("q", ID, "body", b"hello")
    other = (await house.vault.ready(8, POLICY)).encrypt("q", ID, "body", b"hello")
    await house.vault.rotate(7)
    assert await house.vault.shred(7) == 3
    assert 7 not in house.book.keys
    calls: list[Callable[[], bytes]] = [
        lambda: sealer.decrypt("q", ID, "body", blob),
        lambda: sealer.encrypt("q", ID, "body", b"x"),
        lambda: sealer.digest(b"x"),
    ]
    for call in calls:
        with pytest.raises(Erased):
            call()
    for later in (sealer.load([blob]), house.vault.ready(7, POLICY), house.vault.rotate(7), house.vault.rewrap(7, REF)):
        with pytest.raises(Erased):
            await later
    assert house.vault.cipher(7, POLICY) is None
    with pytest.raises(Erased):
        await opened(house.restarted(), blob)
    assert await opened(house.vault, other, 8) == b"hello"


async def test_shredding_acts_before_the_store_answers(house: House) -> None:
    """While the book is still writing, nothing opens."""
    sealer = await house.vault.ready(7, POLICY)
    blob = sealer.encrypt("q", ID, "body", b"hello")
    house.book.hold_writes = asyncio.Event()
    shredding = asyncio.create_task(house.vault.shred(7))
    await settle()
    assert not shredding.done()
    with pytest.raises(Erased):
        sealer.decrypt("q", ID, "body", blob)
    house.book.hold_writes.set()
    assert await shredding == 2


@pytest.mark.parametrize("held_up", ["key management", "store"])
async def test_a_rotation_under_way_leaves_no_key_behind_after_shredding(house: House, held_up: str) -> None:
    """Wherever it was when the keys were destroyed."""
    await house.vault.ready(7, POLICY)
    gate = asyncio.Event()
    if held_up == "store":
        house.book.hold_writes = gate
    else:
        house.kms.gate = gate
    rotation = asyncio.create_task(house.vault.rotate(7))
    await settle()
    shredding = asyncio.create_task(house.vault.shred(7))
    await settle()
    gate.set()
    await shredding
    with pytest.raises(Erased):
        await rotation
    assert 7 not in house.book.keys
    assert house.vault.health().cached_keys == 0


async def test_an_unwrapping_under_way_brings_nothing_back_after_shredding(house: House) -> None:
    """The key that arrives late is not kept."""
    blob = (await house.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"hello")
    again = house.restarted()
    house.kms.gate = asyncio.Event()
    opening = asyncio.create_task(opened(again, blob))
    await settle()
    await again.shred(7)
    house.kms.gate.set()
    with pytest.raises(Erased):
        await opening
    assert again.health().cached_keys == 0


async def test_shredding_that_fails_in_the_store_can_be_repeated(house: House) -> None:
    """Until it has succeeded nothing opens either."""
    sealer = await house.vault.ready(7, POLICY)
    house.book.fail = StoreFailed()
    with pytest.raises(StoreFailed):
        await house.vault.shred(7)
    with pytest.raises(Erased):
        sealer.digest(b"x")
    house.book.fail = None
    assert await house.vault.shred(7) == 2
    assert await house.vault.shred(7) == 0


async def test_shredding_that_is_refused_leaves_everything_readable(house: House) -> None:
    """As by a legal hold that came in between: nothing was destroyed, so nothing is said to be."""
    sealer = await house.vault.ready(7, POLICY)
    blob = sealer.encrypt("q", ID, "body", b"hello")
    house.book.fail = LegalHold()
    with pytest.raises(LegalHold):
        await house.vault.shred(7)
    house.book.fail = None
    assert await opened(house.vault, blob) == b"hello"
    assert (await house.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"more")
    assert await house.vault.shred(7) == 2
