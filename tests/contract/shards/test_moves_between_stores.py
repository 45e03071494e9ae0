"""Moves between two shards in this process, step by step: what is durable when, and what a lost directory row does."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

import pytest

from tenantq.cluster.tenant_arrivals import TenantArrivals
from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.cluster.tenant_moves import TenantMoves
from tenantq.domain.cluster_view import Cluster, TenantPlacement
from tenantq.domain.message import SYSTEM
from tenantq.engine.ops.move import BeginArrival, FenceTenant
from tenantq.engine.settings import ShardSettings
from tenantq.errors import Unavailable
from tenantq.runtime.clock import SystemClock
from tenantq.store.placement_file import PlacementFile
from tests.administration import put_queue, put_tenant
from tests.shards import message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from tenantq.cluster.shard_calls import CallsFromShard
    from tenantq.engine.shard import Shard
    from tests.conftest import OpenShard

NAME = "acme"


class Pair:
    """Two shards and their directory. Shard 0 has a tenant with messages."""

    def __init__(self, shards: Sequence[Shard], stored: PlacementFile) -> None:
        self.shards, self.stored = shards, stored
        self.asked: list[str] = []
        self.before: Callable[[str, tuple[Any, ...]], None] = lambda *_: None
        self.after: Callable[[str, tuple[Any, ...]], None] = lambda *_: None
        self.then: Callable[[], Awaitable[object]] | None = None  # what happens after the tenant was activated
        cluster = Cluster(id="", format="1", shards=len(shards))
        self.views = [TenantPlacements(stored, cluster) for _ in shards]
        calls = cast("CallsFromShard", self)
        self.arrivals = [TenantArrivals(shard) for shard in shards]
        self.moves = [TenantMoves(*one, calls) for one in zip(range(len(shards)), shards, self.views, strict=True)]

    async def query(self, shard: int, path: str, *arguments: Any, timeout_ms: int = 0) -> Any:
        """Ask a shard, as ``CallsFromShard`` does."""
        method = path.removeprefix("arrivals.")
        self.asked.append(method)
        self.before(method, arguments)
        reply = getattr(self.arrivals[shard], method)(*arguments)
        found = await reply if hasattr(reply, "__await__") else reply
        try:
            self.after(method, arguments)
        finally:
            if method == "activate" and self.then is not None:
                then, self.then = self.then, None
                await then()
        return found

    async def query_all(self, path: str, *arguments: Any, **options: Any) -> dict[int, Any]:
        """Ask the target: in these tests, only the source asks all others."""
        return {1: await self.query(1, path, *arguments, **options)}

    def lose_row(self) -> None:
        """Have the directory lose the tenant's row."""
        self.stored.remove_tenant(NAME)

    async def look(self, shard: int) -> None:
        """Have a shard do all that it finds to do."""
        moves = self.moves[shard]
        await self.views[shard].refresh()
        moves.look()
        while tasks := list(moves._tasks.values()):
            for task in tasks:
                await task

    def places(self) -> list[bool]:
        """Return which shards serve the tenant."""
        return [NAME in shard.state.catalog.tenants for shard in self.shards]


@pytest.fixture
async def pair(open_shard: OpenShard, tmp_path: Path) -> AsyncIterator[Pair]:
    """Return two shards with durability "os", whose timer syncs only after a minute."""
    settings = ShardSettings(durability="os", sync_every_ms=60_000, region="eu")
    shards = [
        await open_shard(f"shard-{number}", settings=settings, clock=SystemClock(), first_tenant_id=1 + (number << 26))
        for number in range(2)
    ]
    with contextlib.closing(PlacementFile(tmp_path, create=True)) as stored:
        await put_tenant(shards[0], NAME, regions=["eu"])
        await put_queue(shards[0], NAME, "work")
        await shards[0].add(NAME, "work", [message() for _ in range(3)])
        stored.place_tenant(NAME, TenantPlacement(shard=0, moving_to=1))
        yield Pair(shards, stored)


async def test_with_durability_os_a_move_waits_for_real_syncs(pair: Pair) -> None:
    """The source deletes its rows after the target's are durable: a power failure loses no tenant."""
    synced: list[tuple[str, bool]] = []

    def note(method: str, arguments: tuple[Any, ...], shard: int) -> None:
        if method == "activate" or (method == "receive" and arguments[4]):
            journal = pair.shards[shard].state.journal
            synced.append((f"{method} {shard}", journal.synced_seq == journal.seq))

    pair.before = lambda method, arguments: note(method, arguments, 0)
    pair.after = lambda method, arguments: note(method, arguments, 1)
    await pair.look(0)
    assert pair.places() == [False, True]
    assert synced == [("receive 0", True), ("receive 1", True), ("activate 0", True), ("activate 1", True)]
    assert pair.shards[1].reads.stats(NAME, "work").ready == 3


@pytest.mark.parametrize("order", [(0, 1), (1, 0, 1)])
async def test_a_lost_directory_row_destroys_no_copy(pair: Pair, order: tuple[int, ...]) -> None:
    """A fenced tenant whose row is lost is served by its source again, whichever shard looks first."""
    source, target = pair.shards
    tenant = source.tenant(NAME)
    await target.submit(BeginArrival(target.state.platform, SYSTEM, tenant.id, NAME, 0))
    await source.submit(FenceTenant(tenant, SYSTEM, 1))
    pair.lose_row()
    for shard in order:
        await pair.look(shard)
    assert pair.places() == [True, False]
    assert source.reads.stats(NAME, "work").ready == 3
    row = pair.stored.placements()[1][NAME]
    assert (row.shard, row.regions) == (0, ("eu",))  # bodies of calls elsewhere stay unread
    assert not target.state.catalog.arriving


@pytest.mark.parametrize("deleted", [True, False])
async def test_a_fenced_tenant_without_a_row_may_live_or_have_been_deleted_elsewhere(
    pair: Pair, *, deleted: bool
) -> None:
    """Its source deletes what it has, and only a lost row is written again."""

    def lose(method: str, _: tuple[Any, ...]) -> None:
        if method == "activate" and pair.asked.count(method) == 1:
            pair.lose_row()
            raise Unavailable("the reply is lost")

    pair.after = lose
    if deleted:
        delete = pair.shards[1].erasure.delete_tenant
        pair.then = lambda: delete(NAME, reason="a test says so")
    await pair.look(0)
    assert pair.places() == [False, not deleted]
    assert pair.stored.placements()[1].keys() == (set() if deleted else {NAME})
    assert not pair.shards[0].state.catalog.moved[NAME].row
