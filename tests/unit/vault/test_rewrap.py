"""Another key wraps the data keys; messages stay as they are."""

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
from tests.unit.vault.doubles import ID, OTHER, POLICY, REF, House, opened, settle

if TYPE_CHECKING:
    from tenantq.runtime.clock import ManualClock


async def test_rewrapping_to_another_provider_touches_no_message(house: House) -> None:
    """Afterwards the old key management is not needed any more; records and digests are the same."""
    sealer = await house.vault.ready(7, POLICY)
    blobs = []
    for _ in range(3):
        blobs.append(sealer.encrypt("q", ID, "body", b"hello"))
        await house.vault.rotate(7)
    digest = sealer.digest(b"x")
    assert await house.vault.rewrap(7, OTHER) == 5
    assert {key.key for key in house.book.keys[7].values()} == {OTHER}
    house.kms.error = KeyDisabled()
    again = house.restarted()
    for blob in blobs:
        assert await opened(again, blob) == b"hello"
    assert (await again.ready(7, KeyPolicy(OTHER))).digest(b"x") == digest
    await again.close()


async def test_rewrapping_with_the_same_key_wraps_everything_anew(house: House) -> None:
    """As after the key management has rotated the key itself."""
    await house.vault.ready(7, POLICY)
    before = {number: key.wrapped for number, key in house.book.keys[7].items()}
    assert await house.vault.rewrap(7, REF) == 2
    after = house.book.keys[7]
    assert all(after[number].wrapped != wrapped for number, wrapped in before.items())
    assert all(after[number].created_at for number in before)


async def test_rewrapping_under_load_keeps_reservations_and_new_keys(clock: ManualClock) -> None:
    """Uses reserved and keys made meanwhile are neither lost nor left out."""
    house = House(clock, VaultSettings(uses_max=400, uses_reserved=20))
    sealed: list[bytes] = []
    done = False

    async def produce() -> None:
        while not done:
            sealed.append((await house.vault.ready(7, KeyPolicy(OTHER))).encrypt("q", ID, "body", b"hello"))
            await asyncio.sleep(0)

    await house.vault.ready(7, POLICY)
    workers = [asyncio.create_task(produce()) for _ in range(3)]
    for _ in range(3):
        await settle()
        await house.vault.rewrap(7, OTHER)
    done = True
    await asyncio.gather(*workers)
    assert {key.key for key in house.book.keys[7].values()} == {OTHER}
    used: dict[int, int] = {}
    again = house.restarted()
    for blob in sealed:
        assert await opened(again, blob) == b"hello"
        used[key_number(blob)] = used.get(key_number(blob), 0) + 1
    assert all(count <= house.book.keys[7][number].uses <= 400 for number, count in used.items())
    await again.close()
    await house.vault.close()


async def test_a_key_made_while_others_are_wrapped_anew_is_not_left_out(house: House) -> None:
    """Also when it was still wrapped by the old key."""
    await house.vault.ready(7, POLICY)
    house.other.gate = asyncio.Event()
    rewrapping = asyncio.create_task(house.vault.rewrap(7, OTHER))
    await settle()
    assert await house.vault.rotate(7) == 2
    assert house.book.keys[7][2].key == REF
    house.other.gate.set()
    assert await rewrapping == 3
    assert {key.key for key in house.book.keys[7].values()} == {OTHER}


async def test_a_rewrap_that_breaks_off_can_be_repeated(house: House) -> None:
    """Until then some keys are with the old key and some with the new one, and all open."""
    sealer = await house.vault.ready(7, POLICY)
    blob = sealer.encrypt("q", ID, "body", b"hello")
    await house.vault.rotate(7)
    wrap = house.other.wrap

    async def fail_on_the_second(key: str, plaintext: bytes, context: dict[str, str]) -> bytes:
        if context["number"] == "1":
            raise KmsUnavailable("out of order")
        return await wrap(key, plaintext, context)

    house.other.wrap = fail_on_the_second  # type: ignore[method-assign, assignment]  # an outage in the middle
    with pytest.raises(KmsUnavailable):
        await house.vault.rewrap(7, OTHER)
    assert {key.key for key in house.book.keys[7].values()} == {REF, OTHER}
    assert await opened(house.restarted(), blob) == b"hello"
    house.other.wrap = wrap  # type: ignore[method-assign]
    assert await house.vault.rewrap(7, OTHER) == 3
    assert {key.key for key in house.book.keys[7].values()} == {OTHER}


async def test_rewrapping_to_what_is_not_there_changes_nothing(house: House) -> None:
    """A provider that is not configured, a name that is none, a key that does not work."""
    await house.vault.ready(7, POLICY)
    before = dict(house.book.keys[7])
    with pytest.raises(KmsError, match="gcp-kms"):
        await house.vault.rewrap(7, KeyRef("gcp-kms", "x"))
    with pytest.raises(Invalid):
        await house.vault.rewrap(7, KeyRef("local", ""))
    house.other.error = KeyDisabled()
    with pytest.raises(KeyDisabled):
        await house.vault.rewrap(7, OTHER)
    assert house.book.keys[7] == before
