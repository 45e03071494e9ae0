"""An erasure that is refused, raced or broken off: nothing is lost by half, nothing is left by half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.message import Result
from tenantq.engine.ops.import_part import ImportPart
from tenantq.errors import Conflict, KmsUnavailable, LegalHold
from tests.administration import tenants
from tests.contract.encryption.house import PLAINTEXT, EncryptedHouse
from tests.contract.gates.house import REASON
from tests.contract.moving.archive import bring_in, lines, written

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.engine.operation import Operation

    OpenHouse = Callable[[], Awaitable[EncryptedHouse]]


async def test_a_hold_that_overtakes_a_deletion_leaves_the_tenant_at_work(house: EncryptedHouse) -> None:
    """It comes between the look at it and the destruction of the keys: nothing was destroyed, so everything goes on."""
    owner = await house.encrypted()
    await house.add(owner, "work", PLAINTEXT)
    real, overtaken = house.shard.erasure.begin, 0

    async def after_the_hold(*args: Any, **options: Any) -> None:
        nonlocal overtaken
        overtaken += 1
        await house.service.legal_holds.place(house.admin, "acme", REASON)
        await real(*args, **options)

    house.shard.erasure.begin = after_the_hold  # type: ignore[method-assign]  # no other way to act at this time
    with pytest.raises(LegalHold):
        await house.service.erasures.delete_tenant(house.admin, "acme", confirm="acme", reason=REASON)
    assert overtaken == 1
    (got,) = await house.take(owner, "work")
    assert got.body.decode() == PLAINTEXT
    await house.add(owner, "work", "more")
    assert [row.outcome for row in await house.rows() if row.op == "delete_tenant"] == ["refused"]


async def test_a_deletion_that_was_killed_half_way_takes_the_own_key_with_it_when_it_is_repeated(
    open_house: OpenHouse,
) -> None:
    """Though encryption was switched off, and the data keys were destroyed in another life."""
    house = await open_house()
    owner = await house.encrypted()
    await house.add(owner, "work", PLAINTEXT)
    await house.tenant("acme", encryption={"enabled": False})
    await house.shard.erasure.drop_data_keys(house.shard.tenant("acme").id)
    await house.close()
    await house.shard.close()
    house = await open_house()
    assert "tenant-acme" in house.ring.read().document.keys
    await house.service.erasures.delete_tenant(house.admin, "acme", confirm="acme", reason=REASON)
    assert "tenant-acme" not in house.ring.read().document.keys


async def test_a_keyring_out_of_reach_does_not_keep_a_tenant_that_was_never_encrypted(house: EncryptedHouse) -> None:
    """It is deleted; one that is encrypted stays until its key can go."""
    await house.encrypted()
    await house.tenant("plain")
    house.ring.path.rename(house.ring.path.with_suffix(".away"))
    await house.service.erasures.delete_tenant(house.admin, "plain", confirm="plain", reason=REASON)
    with pytest.raises(KmsUnavailable):
        await house.service.erasures.delete_tenant(house.admin, "acme", confirm="acme", reason=REASON)
    assert "plain" not in tenants(house.shard)
    assert "acme" in tenants(house.shard)


async def test_results_of_an_import_that_was_overtaken_by_encryption_are_not_stored_in_plain(
    house: EncryptedHouse,
) -> None:
    """The part was judged before it was switched on, and reaches the store after: the engine refuses it."""
    await house.tenant("plain")
    source = await house.key("plain")
    await house.add(source, "work", "x")
    (done,) = await house.take(source, "work")
    await house.service.settlement.ack(source, None, "work", [done.receipt], [Result("completed", PLAINTEXT.encode())])
    files = await written(await house.service.exports.export(source, None))
    assert (lines(files, "messages"), len(lines(files, "results"))) == ([], 1)
    await house.tenant("acme")
    target = await house.key("acme")
    await house.service.queues.put(target, None, "work", {})
    real = house.shard.submit

    async def after_the_switch(operation: Operation[Any]) -> object:
        if isinstance(operation, ImportPart):
            await house.tenant("acme", encryption={"enabled": True})
        return await real(operation)

    house.shard.submit = after_the_switch  # type: ignore[method-assign, assignment]  # no other way to act at this time
    with pytest.raises(Conflict, match="not encrypted"):
        await bring_in(house, target, files, "acme")
    house.shard.submit = real  # type: ignore[method-assign]  # back to what it was
    await bring_in(house, target, files, "acme")
    result, _ = await house.service.message_reads.result(target, None, "work", done.id)
    assert result.value == PLAINTEXT.encode()
