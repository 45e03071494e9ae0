"""Encrypted messages whose data keys are gone: a typed error instead of ciphertext, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.errors import Erased
from tests.contract.encryption.house import PLAINTEXT, EncryptedHouse
from tests.shards import settled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    OpenHouse = Callable[[], Awaitable[EncryptedHouse]]


@pytest.mark.parametrize("enabled", [True, False])
async def test_reads_raise_erased_and_keep_the_message(open_house: OpenHouse, *, enabled: bool) -> None:
    """A restored backup has the rows of an erased tenant, but not its data keys. Ciphertext is never a body."""
    house = await open_house()
    owner = await house.encrypted()
    (added,) = await house.add(owner, "work", PLAINTEXT)
    await house.tenant("acme", encryption={"enabled": enabled})
    await house.shard.erasure.drop_data_keys(house.shard.tenant("acme").id)
    await house.close()
    await house.shard.close()
    house = await open_house()
    assert house.service.status.readiness()["keys"] == "ok"
    for _ in range(3):
        with pytest.raises(Erased):
            await house.take(owner, "work")
        await settled(house.shard)
    with pytest.raises(Erased):
        await house.service.message_reads.peek(owner, None, "work")
    with pytest.raises(Erased):
        await house.service.message_reads.get(owner, None, "work", added.id)
    with pytest.raises(Erased):
        await house.service.fleet.poll(house.admin, "work", tenants=["acme"])
    await settled(house.shard)
    facts = await house.shard.reads.get("acme", "work", added.id)
    assert (facts.state, facts.attempts) == ("ready", 0)
    assert house.service.status.readiness()["keys"] == "1 tenant without data keys"
    assert "tenantq_tenants_without_data_keys 1.0" in (await house.service.status.metrics(house.admin)).decode()
