"""Checkpoints: the journal is signed after some records or time, and signatures are trimmed with their records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.validation import validated
from tenantq.errors import Invalid
from tenantq.journal.checkpoint import AuditSettings, Checkpointer, unpack
from tests.shards import Q, T, journal_rows, message, pass_time, wait_until_idle

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tenantq.journal.signing import SigningKey
    from tenantq.runtime.clock import ManualClock
    from tests.verbs import Shard


def started(shard: Shard, key: SigningKey, clock: ManualClock, **settings: Any) -> Checkpointer:
    """Return a checkpointer that has started."""
    tasks = set[asyncio.Task[None]]()

    def background(work: Coroutine[Any, Any, None]) -> None:
        tasks.add(asyncio.get_running_loop().create_task(work))

    checkpointer = Checkpointer(shard.journal, key, clock, AuditSettings(**settings), background)
    checkpointer.start()
    return checkpointer


async def test_checkpoint_after_a_number_of_records(shard: Shard, key: SigningKey, clock: ManualClock) -> None:
    """The next one follows after as many new records."""
    checkpointer = started(shard, key, clock, checkpoint_records=10)
    for number in range(25):
        await shard.add(T, Q, [message(f"{number}")])
        await pass_time(shard, clock, 1_000)
    rows = await journal_rows(shard, op="checkpoint")
    assert len(rows) == 2
    assert [row.seq for row in rows] == [seq for seq, _ in shard.journal.checkpoints(0)]
    for seq, value in shard.journal.checkpoints(0):
        assert unpack(value).wrong(seq, shard.journal.link(seq), key.public) == ""
        assert unpack(value).wrong(seq, bytes(32), key.public)
    await checkpointer.close()


async def test_checkpoint_after_some_time_if_there_are_new_records(
    shard: Shard, key: SigningKey, clock: ManualClock
) -> None:
    """An idle journal is signed once, at its end."""
    checkpointer = started(shard, key, clock, checkpoint_ms=60_000)
    await shard.add(T, Q, [message()])
    await pass_time(shard, clock, 59_000)
    assert await journal_rows(shard, op="checkpoint") == []
    for _ in range(5):
        await pass_time(shard, clock, 60_000)
    (row,) = await journal_rows(shard, op="checkpoint")
    assert row.seq == shard.journal.span[1] == shard.journal.last_checkpoint()
    await checkpointer.close()
    assert shard.journal.span[1] == row.seq


async def test_checking_whether_to_sign_does_not_read_the_store(
    shard: Shard, key: SigningKey, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read at the start and after a signature, so a slow store blocks nothing."""
    asked: list[int] = []
    real = shard.journal.last_checkpoint

    def last_checkpoint() -> int:
        asked.append(real())
        return asked[-1]

    monkeypatch.setattr(shard.journal, "last_checkpoint", last_checkpoint)
    checkpointer = started(shard, key, clock, checkpoint_records=10)
    for number in range(15):
        await shard.add(T, Q, [message(f"{number}")])
        await pass_time(shard, clock, 1_000)
    (row,) = await journal_rows(shard, op="checkpoint")
    assert asked == [0, row.seq]
    await checkpointer.close()


async def test_closing_signs_unsigned_records(shard: Shard, key: SigningKey, clock: ManualClock) -> None:
    """It signs once."""
    checkpointer = started(shard, key, clock)
    await shard.add(T, Q, [message()])
    await checkpointer.close()
    await checkpointer.close()
    assert shard.journal.last_checkpoint() == shard.journal.span[1]
    assert len(await journal_rows(shard, op="checkpoint")) == 1


async def test_checkpoints_are_trimmed_with_their_records(shard: Shard, key: SigningKey) -> None:
    """Those of kept records stay."""
    for _ in range(3):
        await shard.add(T, Q, [message()])
        await shard.journal.sign(key)
    signed = [seq for seq, _ in shard.journal.checkpoints(0)]
    await shard.journal.trim(signed[1])
    await wait_until_idle(shard)
    assert [seq for seq, _ in shard.journal.checkpoints(0)] == signed[2:]


@pytest.mark.parametrize("wrong", [{"checkpoint_records": 0}, {"checkpoint_ms": 999}, {"checkpoint_ms": 1 << 50}])
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, int]) -> None:
    """The error names the section."""
    with pytest.raises(Invalid, match=f"audit.{next(iter(wrong))}"):
        validated(AuditSettings(**wrong), "audit.")
