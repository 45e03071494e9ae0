"""An erasure that is refused, raced or interrupted is either completed or leaves everything in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.message import Result
from tenantq.engine.ops.import_part import ImportPart
from tenantq.errors import Conflict, KmsUnavailable, LegalHold
from tests.administration import tenants
from tests.contract.encryption.harness import PLAINTEXT, EncryptedHarness
from tests.contract.export_import.archive import import_export, lines, written
from tests.contract.gates.harness import REASON

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.engine.operation import Operation

    OpenHarness = Callable[[], Awaitable[EncryptedHarness]]


async def test_hold_that_overtakes_a_deletion_keeps_the_tenant_working(harness: EncryptedHarness) -> None:
    """It arrives between the check and the destruction of the keys, so nothing was destroyed."""
    owner = await harness.encrypted()
    await harness.add(owner, "work", PLAINTEXT)
    real, overtaken = harness.shard.erasure.begin, 0

    async def after_the_hold(*args: Any, **options: Any) -> None:
        nonlocal overtaken
        overtaken += 1
        await harness.service.legal_holds.place(harness.admin, "acme", REASON)
        await real(*args, **options)

    harness.shard.erasure.begin = after_the_hold  # type: ignore[method-assign]  # no other way to act at this time
    with pytest.raises(LegalHold):
        await harness.service.erasures.delete_tenant(harness.admin, "acme", confirm="acme", reason=REASON)
    assert overtaken == 1
    (got,) = await harness.take(owner, "work")
    assert got.body.decode() == PLAINTEXT
    await harness.add(owner, "work", "more")
    assert [row.outcome for row in await harness.rows() if row.op == "delete_tenant"] == ["refused"]


async def test_repeated_deletion_removes_the_tenants_key_from_the_keyring(
    open_harness: OpenHarness,
) -> None:
    """The first attempt was killed after destroying the data keys, and encryption was turned off before."""
    harness = await open_harness()
    owner = await harness.encrypted()
    await harness.add(owner, "work", PLAINTEXT)
    await harness.tenant("acme", encryption={"enabled": False})
    await harness.shard.erasure.drop_data_keys(harness.shard.tenant("acme").id)
    await harness.close()
    await harness.shard.close()
    harness = await open_harness()
    assert "tenant-acme" in harness.ring.read().document.keys
    await harness.service.erasures.delete_tenant(harness.admin, "acme", confirm="acme", reason=REASON)
    assert "tenant-acme" not in harness.ring.read().document.keys


async def test_unreachable_keyring_does_not_block_deleting_an_unencrypted_tenant(
    harness: EncryptedHarness,
) -> None:
    """An encrypted tenant stays until its key can be removed."""
    await harness.encrypted()
    await harness.tenant("plain")
    harness.ring.path.rename(harness.ring.path.with_suffix(".away"))
    await harness.service.erasures.delete_tenant(harness.admin, "plain", confirm="plain", reason=REASON)
    with pytest.raises(KmsUnavailable):
        await harness.service.erasures.delete_tenant(harness.admin, "acme", confirm="acme", reason=REASON)
    assert "plain" not in tenants(harness.shard)
    assert "acme" in tenants(harness.shard)


async def test_import_overtaken_by_encryption_stores_no_plaintext(
    harness: EncryptedHarness,
) -> None:
    """It was checked before encryption was turned on and reaches the store after, so the engine refuses it."""
    await harness.tenant("plain")
    source = await harness.key("plain")
    await harness.add(source, "work", "x")
    (done,) = await harness.take(source, "work")
    await harness.service.settlement.ack(
        source, None, "work", [done.receipt], [Result("completed", PLAINTEXT.encode())]
    )
    files = await written(await harness.service.exports.export(source, None))
    assert (lines(files, "messages"), len(lines(files, "results"))) == ([], 1)
    await harness.tenant("acme")
    target = await harness.key("acme")
    await harness.service.queues.put(target, None, "work", {})
    real = harness.shard.submit

    async def after_the_switch(operation: Operation[Any]) -> object:
        if isinstance(operation, ImportPart):
            await harness.tenant("acme", encryption={"enabled": True})
        return await real(operation)

    harness.shard.submit = after_the_switch  # type: ignore[method-assign, assignment]  # no other way to act at this time
    with pytest.raises(Conflict, match="not encrypted"):
        await import_export(harness, target, files, "acme")
    harness.shard.submit = real  # type: ignore[method-assign]  # back to what it was
    await import_export(harness, target, files, "acme")
    result, _ = await harness.service.message_reads.result(target, None, "work", done.id)
    assert result.value == PLAINTEXT.encode()
