"""A round stays small however large a call is: large batches, polls and moves are spread over several rounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tenantq.domain import limits
from tenantq.engine.operation import PART_BYTES, PART_ITEMS
from tests.administration import put_queue, put_tenant
from tests.contract.test_scale import rounds_of
from tests.shards import Q, T, freeze, message, settled

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    import pytest

    from tenantq.engine.round import Round
    from tenantq.engine.shard import Shard
    from tests.conftest import OpenShard

_MIB = 1 << 20
_UNKNOWN = ["ab" * 24] * 1_000


async def test_a_batch_of_a_thousand_shares_its_rounds_with_other_tenants(shard: Shard) -> None:
    """Adds, acks, nacks, extends and removes alike: no round does all of one, and another tenant's call comes between."""
    await put_tenant(shard, "quiet")
    await put_queue(shard, "quiet", Q)
    await put_queue(shard, T, Q)
    await shard.add("quiet", Q, [message()])
    for name, call in (
        ("add", lambda: shard.add(T, Q, [message()] * 1_000)),
        ("ack", lambda: shard.ack(T, Q, _UNKNOWN)),
        ("nack", lambda: shard.nack(T, Q, _UNKNOWN)),
        ("extend", lambda: shard.extend(T, Q, _UNKNOWN, lease_ms=1_000)),
        ("release", lambda: shard.release(T, Q, _UNKNOWN)),
        ("remove", lambda: shard.remove(T, Q, [bytes(16)] * 1_000)),
    ):
        await settled(shard)
        start = shard.journal.span[1]
        large: Awaitable[list[object]] = asyncio.ensure_future(call())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await shard.add("quiet", Q, [message()])
        assert len(await large) == 1_000
        records = rounds_of(shard, start)
        of_large = [place for place, one in enumerate(records) if any(entry.tenant == T for entry in one.entries)]
        of_quiet = [place for place, one in enumerate(records) if any(entry.tenant == "quiet" for entry in one.entries)]
        assert len(of_large) >= 1_000 // PART_ITEMS, name
        assert of_quiet[0] < of_large[2], name


async def test_a_crash_between_the_parts_of_a_batch_with_a_key_loses_and_repeats_nothing(
    open_shard: OpenShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same batch again adds the messages that are missing, and no other."""
    shard = await open_shard(open_store=None)
    await put_tenant(shard, "quiet")
    await shard.add("quiet", Q, [message()])  # so that rounds are shared, and small
    write, copies = shard.loop._write, list[str]()

    def copied(round: Round) -> None:
        write(round)
        if any(entry.op == "add" for entry in round.effects.entries) and len(copies) < 3:
            shard.state.store.sync()
            copies.append(f"crashed-{len(copies)}")
            freeze(tmp_path / "data", tmp_path / copies[-1])

    monkeypatch.setattr(shard.loop, "_write", copied)
    batch = [message(str(n)) for n in range(1_000)]
    added = await shard.add(T, Q, batch, batch_key="once")
    assert not any(one.duplicate for one in added)
    assert [one.duplicate for one in await shard.add(T, Q, batch, batch_key="once")] == [True] * 1_000
    for number, name in enumerate(copies, 1):
        crashed = await open_shard(name, open_store=None)
        again = await crashed.add(T, Q, batch, batch_key="once")
        assert sum(one.duplicate for one in again) == number * PART_ITEMS
        assert [one.raw_id for one in again[: number * PART_ITEMS]] == [
            one.raw_id for one in added[: number * PART_ITEMS]
        ]
        assert crashed.reads.stats(T, Q).ready == 1_000


async def test_a_poll_takes_no_more_bytes_than_a_reply_may_have(shard: Shard) -> None:
    """Small messages in front of large ones hide nothing. What does not fit stays ready."""
    await shard.add(T, Q, [message()] * 500)
    for _ in range(2):
        await shard.add(T, Q, [message(bytes(_MIB))] * 15)
    got = await shard.poll(T, Q, max=1_000)
    assert 500 < len(got) < 530
    assert sum(len(one.body) for one in got) < limits.REPLY_BYTES_MAX + _MIB
    assert shard.reads.stats(T, Q).ready == 530 - len(got)
    seen = {one.raw_id for one in got}
    while got := await shard.poll(T, Q, max=1_000):
        assert sum(len(one.body) for one in got) < limits.REPLY_BYTES_MAX + _MIB
        seen.update(one.raw_id for one in got)
    assert len(seen) == 530


async def test_a_poll_of_a_thousand_small_messages_still_gets_a_thousand(shard: Shard) -> None:
    """It continues over several rounds, beside other tenants too."""
    await put_tenant(shard, "quiet")
    for _ in range(2):
        await shard.add(T, Q, [message()] * 1_000)
        await shard.add("quiet", Q, [message()])
    start = shard.journal.span[1]
    got = await shard.poll(T, Q, max=1_000)
    assert len({one.raw_id for one in got}) == 1_000
    assert max(sum(len(entry.ids) // 16 for entry in one.entries) for one in rounds_of(shard, start)) <= PART_ITEMS


async def test_dead_letters_move_and_come_back_a_few_megabytes_a_round(shard: Shard) -> None:
    """However many large messages fail together."""
    await put_queue(shard, T, Q, max_attempts=1)
    receipts: list[str] = []
    await shard.add(T, Q, [message(bytes(_MIB))] * 12)
    while got := await shard.poll(T, Q, max=100):
        receipts += [one.receipt for one in got]
    start = shard.journal.span[1]
    assert all(one.ok for one in await shard.nack(T, Q, receipts))
    assert _moved_max(shard, start, "dead_letter") < PART_BYTES + _MIB
    start = shard.journal.span[1]
    task = await shard.redrive(T, Q)
    await task.ended.wait()
    assert task.moved == 12
    await settled(shard)
    assert _moved_max(shard, start, "redrive") < PART_BYTES + _MIB
    assert shard.reads.stats(T, Q).ready == 12


def _moved_max(shard: Shard, start: int, op: str) -> int:
    """Return the most bytes that one round moved."""

    def size(one: object) -> int:
        return sum(one) if isinstance(one, list) else int(one)  # type: ignore[call-overload]

    return max(
        sum(size(entry.size) for entry in one.entries if entry.op == op and entry.ids)
        for one in rounds_of(shard, start)
    )


async def test_rounds_write_about_a_megabyte_of_bodies(shard: Shard) -> None:
    """A tenant that is alone gets larger rounds, but none that writes for milliseconds."""
    start = shard.journal.span[1]
    await asyncio.gather(*[shard.add(T, Q, [message(bytes(_MIB // 4))] * 8) for _ in range(4)])
    assert shard.reads.stats(T, Q).bytes == 8 * _MIB
    assert _moved_max(shard, start, "add") <= 2 * _MIB


async def test_a_peek_reads_no_more_than_a_slice_at_a_time(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small message in front says nothing about the size of the others."""
    await shard.add(T, Q, [message(b"small")])
    await shard.add(T, Q, [message(bytes(_MIB))] * 12)
    read, sizes = type(shard.state.store).get_many, list[int]()

    def counted(store: object, family: object, keys: list[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = read(store, family, keys)  # type: ignore[arg-type]
        sizes.append(sum(len(one) for one in found if one is not None))
        return found

    monkeypatch.setattr(type(shard.state.store), "get_many", counted)
    page = await shard.reads.peek(T, Q, limit=1_000)
    assert len(page.messages) == 5
    assert max(sizes) < 2 * _MIB
