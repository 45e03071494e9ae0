"""Nack reasons are stored in plaintext, so encrypted tenants keep only a label, without any part of a body."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.engine.redrive_task import RedriveFilter
from tenantq.errors import Invalid
from tests.contract.encryption.harness import PLAINTEXT, EncryptedHarness, files_with

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.service.call import Call

QUOTED = f"ValueError: invalid literal for int() with base 10: '{PLAINTEXT}'"


async def fail(harness: EncryptedHarness, owner: Call, reason: str) -> str:
    """Fail a message permanently, and return the stored reason, which is the same everywhere."""
    await harness.service.queues.put(owner, None, "work", {"max_attempts": 1})
    await harness.add(owner, "work", PLAINTEXT)
    (got,) = await harness.take(owner, "work")
    before = await harness.journal_end()
    await harness.service.settlement.nack(owner, None, "work", [got.receipt], reason=reason)
    letter = await harness.service.message_reads.get(owner, None, "work-dlq", got.id)
    assert letter.dead is not None
    kept = letter.dead.reason
    assert [one.reason for one in letter.history] == [kept]
    result, _ = await harness.service.message_reads.result(owner, None, "work", got.id)
    assert result.error == f"dead letter: {kept}"
    details = [row.details for row in await harness.rows(before) if row.op in {"nack", "dead_letter"}]
    assert sorted(details) == sorted([kept, f"to work-dlq: {kept}"])
    return kept


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        (QUOTED, "ValueError: withheld"),
        (f"card {PLAINTEXT} was refused", "withheld"),
        (f": {PLAINTEXT}", "withheld"),
        (f"{'x' * 65}: {PLAINTEXT}", "withheld"),
        (f"boom\n: {PLAINTEXT}", "withheld"),
        ("timeout", "timeout"),
        ("app.errors.OutOfStock", "app.errors.OutOfStock"),
    ],
)
async def test_only_a_label_of_a_reason_is_kept(
    harness: EncryptedHarness, tmp_path: Path, reason: str, kept: str
) -> None:
    """This holds for the dead letter, its history, its result, the journal, and the disk."""
    assert await fail(harness, await harness.encrypted(), reason) == kept
    harness.shard.state.store.files.flush()
    assert files_with(PLAINTEXT, tmp_path) == []


async def test_redrives_are_filtered_by_labels(harness: EncryptedHarness, tmp_path: Path) -> None:
    """A redrive is stored, so its filter cannot quote a body either."""
    owner = await harness.encrypted()
    await fail(harness, owner, QUOTED)
    for text in (QUOTED, f"card {PLAINTEXT}", "ValueError: inval"):
        with pytest.raises(Invalid, match="filter: reason: must be a label"):
            await harness.service.redrives.start(owner, None, "work", filter=RedriveFilter(reason=text))
    assert (await harness.redrive(owner, "work", RedriveFilter(reason="Timeout"))).moved == 0
    assert (await harness.redrive(owner, "work", RedriveFilter(reason="ValueError"))).moved == 1
    harness.shard.state.store.files.flush()
    assert files_with(PLAINTEXT, tmp_path) == []
    await harness.service.tenants.put(harness.admin, "acme", {"encryption": {"plain_reasons": True}})
    assert (await harness.redrive(owner, "work", RedriveFilter(reason="any text"))).moved == 0


async def test_full_reasons_are_kept_on_request(harness: EncryptedHarness) -> None:
    """A setting allows it, and unencrypted tenants always keep them."""
    assert await fail(harness, await harness.encrypted(plain_reasons=True), QUOTED) == QUOTED
    await harness.tenant("plain")
    assert await fail(harness, await harness.key("plain"), QUOTED) == QUOTED


async def test_too_long_or_invalid_reason_is_refused(harness: EncryptedHarness) -> None:
    """The limits apply although only a label is kept."""
    owner = await harness.encrypted()
    await harness.add(owner, "work", "x")
    (got,) = await harness.take(owner, "work")
    for wrong in ("x: " + "y" * 100_000, 7):
        with pytest.raises(Invalid):
            await harness.service.settlement.nack(owner, None, "work", [got.receipt], reason=wrong)  # type: ignore[arg-type]  # wrong on purpose
