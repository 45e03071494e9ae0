"""Backups of a server with several shards hold moves of tenants, and always allow them again."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tenantq.cluster import peers
from tenantq.cluster.peers import PeerFacts
from tenantq.errors import Conflict, StoreFailed
from tenantq.runtime.backoff import Backoff
from tests.unit.client.doubles import until

if TYPE_CHECKING:
    from collections.abc import Iterable


class Holds:
    """The holds of a directory that fails as often as told."""

    def __init__(self) -> None:
        self.held = set[int]()
        self.written = 0
        self.failures = 0
        self.may_hold = threading.Event()
        self.may_hold.set()

    def hold_moves(self, holder: int) -> None:
        """Hold moves."""
        self.may_hold.wait()
        if holder in self.held:
            raise Conflict("another backup is running.")
        self.held.add(holder)
        self.written += 1

    def release_moves(self, holder: int) -> None:
        """Fail, or allow moves again."""
        if self.failures:
            self.failures -= 1
            raise StoreFailed("the disk is full")
        self.held.discard(holder)


async def _nothing_moves(shards: Iterable[int], _: str) -> dict[int, bool]:
    return dict.fromkeys(shards, False)


def _facts(holds: Holds) -> PeerFacts:
    calls = SimpleNamespace(count=2, query_each=_nothing_moves)
    return PeerFacts(cast("Any", None), cast("Any", SimpleNamespace(number=1)), cast("Any", calls), cast("Any", holds))


async def test_moves_are_allowed_again_after_failures(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The backup succeeds nevertheless. A refused one leaves the hold of the other."""
    monkeypatch.setattr(peers, "RELEASE_BACKOFF", Backoff(1, 1))
    holds = Holds()
    facts = _facts(holds)
    async with facts.moves_on_hold():
        assert holds.held == {1}
        with pytest.raises(Conflict, match="another backup"):
            async with facts.moves_on_hold():
                pass
        assert holds.held == {1}
        holds.failures = 3
    await until(lambda: not holds.held)
    assert caplog.text.count("the disk is full") == 1


async def test_a_cancelled_backup_leaves_no_hold() -> None:
    """Also if the hold is written after the cancellation."""
    holds = Holds()
    holds.may_hold.clear()

    async def back_up() -> None:
        async with _facts(holds).moves_on_hold():
            pass

    backup = asyncio.ensure_future(back_up())
    await asyncio.sleep(0)
    backup.cancel()
    await asyncio.sleep(0)
    holds.may_hold.set()
    with pytest.raises(asyncio.CancelledError):
        await backup
    async with asyncio.timeout(10):
        await until(lambda: holds.written and not holds.held)
