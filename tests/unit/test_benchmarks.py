"""Benchmarks replace parts of the engine by name, which no type checker sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.secrets import no_journal
from tests.shards import Q, T, journal_rows, message

if TYPE_CHECKING:
    from tests.conftest import OpenShard


async def test_rounds_of_the_journal_benchmark_write_no_journal(open_shard: OpenShard) -> None:
    """They still add messages, and afterwards the journal is written again."""
    shard = await open_shard()
    before = len(await journal_rows(shard))
    with no_journal():
        await shard.add(T, Q, [message()])
        assert len(await journal_rows(shard)) == before
    assert len(await shard.poll(T, Q)) == 1
    assert len(await journal_rows(shard)) > before
