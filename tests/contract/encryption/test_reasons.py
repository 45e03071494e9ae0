"""Reasons of nacks stand in plain: of an encrypted tenant's only a label is kept, so that no piece of a body is among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.errors import Invalid
from tests.contract.encryption.harness import PLAINTEXT, EncryptedHarness, files_with

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.service.call import Call

QUOTED = f"ValueError: invalid literal for int() with base 10: '{PLAINTEXT}'"


async def fail(harness: EncryptedHarness, owner: Call, reason: str) -> str:
    """Have a message fail for good, and return the reason that is kept, which is the same wherever it can be read."""
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
    """In the dead letter, its history, its result and the journal; and on the disk."""
    assert await fail(harness, await harness.encrypted(), reason) == kept
    harness.shard.state.store.flush()
    assert files_with(PLAINTEXT, tmp_path) == []


async def test_whoever_wants_whole_reasons_says_so(harness: EncryptedHarness) -> None:
    """Then, and for tenants that are not encrypted, they are kept as they come."""
    assert await fail(harness, await harness.encrypted(plain_reasons=True), QUOTED) == QUOTED
    await harness.tenant("plain")
    assert await fail(harness, await harness.key("plain"), QUOTED) == QUOTED


async def test_a_reason_that_is_too_long_is_refused_all_the_same(harness: EncryptedHarness) -> None:
    """And one that is no text."""
    owner = await harness.encrypted()
    await harness.add(owner, "work", "x")
    (got,) = await harness.take(owner, "work")
    for wrong in ("x: " + "y" * 100_000, 7):
        with pytest.raises(Invalid):
            await harness.service.settlement.nack(owner, None, "work", [got.receipt], reason=wrong)  # type: ignore[arg-type]  # wrong on purpose
