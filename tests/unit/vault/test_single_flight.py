"""Many callers at a time: the key management is asked once."""

from __future__ import annotations

import asyncio

from tenantq.errors import (
    KmsUnavailable,
)
from tests.unit.vault.doubles import ID, POLICY, House, opened, settle


async def test_many_callers_at_once_unwrap_once(house: House) -> None:
    """All get the sealer; the key management is asked once for each key."""
    blob = (await house.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"hello")
    again = house.restarted()
    house.kms.unwraps.clear()
    house.kms.gate = asyncio.Event()
    getting_ready = [asyncio.create_task(again.ready(7, POLICY)) for _ in range(100)]
    opening = [asyncio.create_task(opened(again, blob)) for _ in range(100)]
    await settle()
    assert sorted(house.kms.unwraps) == ["0", "1"]
    house.kms.gate.set()
    assert await asyncio.gather(*opening) == [b"hello"] * 100
    await asyncio.gather(*getting_ready)
    assert sorted(house.kms.unwraps) == ["0", "1"]


async def test_many_first_callers_make_one_key(house: House) -> None:
    """And share it."""
    sealers = await asyncio.gather(*(house.vault.ready(7, POLICY) for _ in range(50)))
    assert len({id(sealer) for sealer in sealers}) == 1
    assert house.kms.wraps == ["0", "1"]


async def test_a_caller_who_gives_up_does_not_end_it_for_the_others(house: House) -> None:
    """The call to the key management goes on."""
    house.kms.gate = asyncio.Event()
    one, two = (asyncio.create_task(house.vault.ready(7, POLICY)) for _ in range(2))
    await settle()
    one.cancel()
    await settle()
    house.kms.gate.set()
    assert (await two).digest(b"x")
    assert one.cancelled()


async def test_a_failure_is_told_to_every_caller_as_an_error_of_its_own(house: House) -> None:
    """Equal in type, text and time to wait."""
    house.kms.error = KmsUnavailable("out of order")
    house.kms.error.retry_after_ms = 77
    found = await asyncio.gather(*(house.vault.ready(7, POLICY) for _ in range(5)), return_exceptions=True)
    assert [(type(error), str(error)) for error in found] == [(KmsUnavailable, "out of order")] * 5
    assert all(isinstance(error, KmsUnavailable) and error.retry_after_ms == 77 for error in found)
    assert len({id(error) for error in found}) == 5


async def test_two_processes_that_begin_at_once_agree_on_one_key(house: House) -> None:
    """Who stores second takes the first one's."""
    vaults = [house.vault, house.restarted(), house.restarted()]
    sealers = await asyncio.gather(*(vault.ready(7, POLICY) for vault in vaults))
    assert sorted(house.book.keys[7]) == [0, 1]
    blobs = [sealer.encrypt("q", ID, "body", b"hello") for sealer in sealers]
    assert [await opened(vaults[0], blob) for blob in blobs] == [b"hello"] * 3
    assert len({sealer.digest(b"x") for sealer in sealers}) == 1
    for vault in vaults[1:]:
        await vault.close()
