"""Imported idempotency keys are untrusted: their content cannot affect anything beyond their queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.domain import limits
from tenantq.errors import Conflict, Forbidden, TooLarge
from tenantq.wire.exports import ExportedKey
from tests.contract.export_import.archive import lines, written
from tests.shards import message

if TYPE_CHECKING:
    from tenantq.service.call import Call
    from tests.contract.gates.harness import ServiceHarness


async def known_keys(harness: ServiceHarness) -> tuple[Call, ExportedKey, ExportedKey]:
    """Return acme's administrator, and the keys of a message and of a batch as exported."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    await harness.add(owner, "single", "once", key="k")
    await harness.service.messages.add(owner, None, "batch", [message("a"), message("b")], key="k")
    found = [await written(await harness.service.exports.export(owner, None, queue)) for queue in ("single", "batch")]
    single, batch = (ExportedKey(**lines(files, "idempotency")[0]) for files in found)
    await harness.service.queues.put(owner, None, "there", {})
    return owner, single, batch


async def import_keys(harness: ServiceHarness, call: Call, *keys: ExportedKey) -> None:
    """Import only keys."""
    await harness.service.exports.import_part(
        call, None, "there", export="1" * 32, part=1, messages=[], results=[], idempotency=list(keys)
    )


async def test_key_with_another_number_of_messages_is_a_conflict(
    harness: ServiceHarness,
) -> None:
    """This holds even if the body hash is right, and the shard keeps working."""
    owner, single, batch = await known_keys(harness)
    await import_keys(
        harness,
        owner,
        msgspec.structs.replace(single, ids=single.ids * 2),
        msgspec.structs.replace(batch, ids=batch.ids[:32]),
    )
    (refused,) = await harness.add(owner, "there", "once", key="k")
    assert isinstance(refused.error, Conflict)
    with pytest.raises(Conflict):
        await harness.service.messages.add(owner, None, "there", [message("a"), message("b")], key="k")
    await harness.tenant("other")
    (added,) = await harness.add(await harness.key("other"), "work", "of somebody else")
    assert added.error is None


async def test_imported_key_expiry_is_capped(harness: ServiceHarness) -> None:
    """It lasts no longer than the longest window a queue may have."""
    owner, single, _ = await known_keys(harness)
    await import_keys(harness, owner, msgspec.structs.replace(single, expires_at=limits.TIME_MS_MAX))
    (again,) = await harness.add(owner, "there", "once", key="k")
    assert again.duplicate
    (kept,) = lines(await written(await harness.service.exports.export(owner, None, "there")), "idempotency")
    assert harness.clock.wall_ms() < kept["expires_at"] <= harness.clock.wall_ms() + limits.TTL_MS_MAX


async def test_ids_per_import_part_are_limited(harness: ServiceHarness) -> None:
    """They use no quota, so there may be only few."""
    owner, single, _ = await known_keys(harness)
    ids = single.ids * limits.BATCH_MESSAGES_MAX
    count = limits.EXPORTED_IDS_BYTES_MAX // (16 * limits.BATCH_MESSAGES_MAX) + 1
    many = [ExportedKey(hash=f"{at:032x}", ids=ids, expires_at=single.expires_at) for at in range(count)]
    with pytest.raises(TooLarge):
        await import_keys(harness, owner, *many)


async def test_export_right_for_some_queues_does_not_allow_a_full_export(harness: ServiceHarness) -> None:
    """They can be exported one by one, and the denied attempt is in the audit trail."""
    await known_keys(harness)
    some = await harness.key("acme", "tenant-admin", queues=("sing*",))
    await written(await harness.service.exports.export(some, None, "single"))
    end = await harness.journal_end()
    for queue in (None, "batch"):
        with pytest.raises(Forbidden):
            await harness.service.exports.export(some, None, queue)
    denied = [(row.op, row.outcome, row.count) for row in await harness.rows(end) if row.op == "export"]
    assert sum(count for _, outcome, count in denied if outcome == "denied") == 2
