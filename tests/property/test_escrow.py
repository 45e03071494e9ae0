"""Quotas over several shards: rights are never lost or doubled, whatever is lost, repeated or crashes."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenantq.cluster.escrow import Escrow
from tenantq.cluster.rights_audit import RightsAudit
from tenantq.cluster.shared_settings import SharedSettings
from tenantq.domain.message import SYSTEM, NewMessage
from tenantq.engine.ops.lifecycle import DeleteQueue, PutTenant
from tenantq.engine.ops.rights import LeavePart, ResetTransfers
from tenantq.engine.ops.settle import Ack
from tenantq.engine.ops.spread import ApplyShared, PrepareHome, PreparePart, SharedState, SwitchPart, shared_state
from tenantq.engine.ops.suspension import SuspendTenant
from tenantq.engine.part_state import PartAccount, RightsTransfer
from tenantq.engine.polls import Poll
from tenantq.engine.queue_groups import account_of
from tenantq.engine.queue_state import TenantState
from tenantq.engine.settings import ShardSettings
from tenantq.engine.shard import Shard
from tenantq.engine.usage import COUNTED
from tenantq.errors import Conflict, ShardDown, Unavailable
from tenantq.runtime.clock import ManualClock

PARTS = (0, 1, 2)
TENANT = "acme"
HOUR_MS = 3_600_000


class LossyCalls:
    """Calls between the parts, of which some fail before or after they are executed, or are executed twice."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self._number = world, number

    async def query(self, owner: int, path: str, *arguments: Any, timeout_ms: int) -> Any:
        """Call the escrow of another shard."""
        del timeout_ms
        name = path.partition(".")[2]
        method = getattr(self._world.escrows[owner], name, None) or getattr(PartOf(self._world, owner), name)
        fault = self._world.faults.pop(0) if self._world.faults else "none"
        if fault == "request lost":
            raise ShardDown("the request was lost")
        found = await method(*arguments)
        if fault == "twice":
            found = await method(*arguments)
        if fault == "reply lost":
            raise ShardDown("the reply was lost")
        return found


async def _no_own_tenant(_: object) -> str:
    raise AssertionError  # no call comes from outside


class PartOf:
    """What home asks a part about besides its escrow."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self._shard = world, world.shards[number]
        self._tenant = world.tenant(number)

    async def leave(self, name: str, confirmed: int, from_home: RightsTransfer) -> RightsTransfer:
        """Have the part leave."""
        return await self._shard.submit(LeavePart(self._shard.state.platform, SYSTEM, name, confirmed, from_home))

    async def account(self, _: int) -> PartAccount:
        """Return what the part has recorded."""
        return account_of(self._shard.state.catalog, self._tenant)

    async def apply(self, shared: SharedState) -> None:
        """Take over the settings of the home."""
        await self._shard.submit(ApplyShared(self._shard.state.platform, SYSTEM, shared))

    async def reset_transfers(self, id: int, number: int) -> None:
        """Start new numbers of transfers."""
        await self._shard.submit(ResetTransfers(self._shard.state.platform, SYSTEM, id, number))


class World:
    """Three shards with a part of one tenant each."""

    def __init__(self, directory: Path, limits: dict[str, int | None]) -> None:
        self._directory = directory
        self.clocks = [ManualClock() for _ in PARTS]
        self.shards: list[Shard] = []
        self.escrows: list[Escrow] = []
        self.faults: list[str] = []
        self.limits = limits
        self.added = 0

    def _shard(self, number: int) -> Shard:
        options = ShardSettings(durability="os")
        clock = self.clocks[number]
        return Shard(
            self._directory / str(number), settings=options, clock=clock, name=str(number), first_tenant_id=100
        )

    async def open(self) -> None:
        """Open the shards, and spread the tenant over them."""
        for number in PARTS:
            shard = self._shard(number)
            await shard.open()
            self.shards.append(shard)
            self.escrows.append(self._escrow(number))
        home = self.shards[0]
        platform = home.state.platform
        await home.submit(PutTenant(platform, SYSTEM, TENANT, {"quotas": self.limits}))
        await home.submit(PrepareHome(platform, SYSTEM, TENANT, 0, PARTS))
        for number in PARTS[1:]:
            shared = shared_state(home.state, home.tenant(TENANT))
            await self.shards[number].submit(
                PreparePart(self.shards[number].state.platform, SYSTEM, shared, number, 0, (0,), PARTS, number)
            )
        for shard in self.shards:
            await shard.submit(SwitchPart(shard.state.platform, SYSTEM, TENANT, PARTS))

    def _escrow(self, number: int) -> Escrow:
        shard = self.shards[number]
        shard.state.catalog.placed_here = lambda _tenant, _queue: True
        calls: Any = LossyCalls(self, number)
        return Escrow(number, shard, calls, lambda _: PARTS)

    async def close(self) -> None:
        """Close the shards."""
        for shard in self.shards:
            await shard.close()

    def tenant(self, number: int) -> TenantState:
        """Return the part of a shard."""
        return self.shards[number].tenant(TENANT)

    async def crash(self, number: int) -> None:
        """Forget what a shard has in memory."""
        await self.shards[number].close()
        await self._reopen(number)

    async def _reopen(self, number: int) -> None:
        self.shards[number] = self._shard(number)
        await self.shards[number].open()
        self.escrows[number] = self._escrow(number)

    async def save(self, number: int) -> None:
        """Copy what a shard has stored, as an asynchronous replica does."""
        await self.shards[number].close()
        shutil.rmtree(self._directory / f"{number}-replica", ignore_errors=True)
        shutil.copytree(self._directory / str(number), self._directory / f"{number}-replica")
        await self._reopen(number)

    async def lose(self, number: int) -> None:
        """Have a shard lose its commits since the last copy. The next owner has home compare the rights of all parts."""
        replica = self._directory / f"{number}-replica"
        if not replica.exists():
            return
        await self.shards[number].close()
        shutil.rmtree(self._directory / str(number))
        shutil.copytree(replica, self._directory / str(number))
        await self._reopen(number)
        self.limits = {"backlog": self.tenant(0).config.quotas.backlog}
        self.faults.clear()
        await self.audit()

    async def audit(self, known: tuple[int, ...] = PARTS) -> None:
        """Have home compare the rights of all parts, until it has an answer. The directory knows parts on ``known``."""
        calls: Any = LossyCalls(self, 0)
        home, escrow = self.shards[0], self.escrows[0]
        settings = SharedSettings(0, home, calls, escrow, lambda _: PARTS, lambda: [TENANT], _no_own_tenant)
        audit = RightsAudit(0, home, calls, escrow, lambda _: known, settings)
        while True:
            with contextlib.suppress(Unavailable):
                return await audit.restore(self.tenant(0))

    async def add(self, number: int, count: int) -> int:
        """Add messages on a shard; return how many were added."""
        tenant, messages = self.tenant(number), [NewMessage(body=b"x") for _ in range(count)]
        need = {"messages_per_hour": count, "backlog": count}
        try:
            async with self.escrows[number].reserve(tenant, need) as kept:
                results = await self.shards[number].add(TENANT, f"q{number}", messages, reservation=kept)
        except (Unavailable, ShardDown):
            return 0
        added = sum(one.error is None for one in results)
        self.added += added
        return added

    async def change(self, limits: dict[str, int | None]) -> None:
        """Change the quotas: parts learn them, and return what they do not use."""
        home = self.shards[0]
        await home.submit(PutTenant(home.state.platform, SYSTEM, TENANT, {"quotas": limits}))
        self.limits = limits
        await self._send_settings(self.tenant(0))
        self.faults.clear()
        await self.escrows[0].settle(self.tenant(0))

    async def _send_settings(self, tenant: TenantState) -> None:
        for shard in self.shards[1:]:
            shared = shared_state(self.shards[0].state, tenant)
            await shard.submit(ApplyShared(shard.state.platform, SYSTEM, shared))

    def used(self, name: str) -> int:
        """Return how much of a quota all parts use."""
        return sum(self.tenant(one).usage.used(self.shards[one].state.wall_ms())[name] for one in PARTS)

    def check(self) -> None:
        """Fail unless rights in the hands of parts and on their way are the quotas."""
        parts = [self.tenant(one).part for one in PARTS]
        for name in COUNTED:
            total = 0
            for part in parts:
                assert part is not None
                total += part.rights[name]
                for receiver, sent in part.sent.items():
                    other = parts[receiver]
                    assert other is not None
                    if sent.number > other.received.get(part.shard, 0):
                        total += sent.amounts.get(name, 0)
            assert total == (self.limits.get(name) or 0), name
        assert len({self.tenant(one).config.quotas for one in PARTS}) == 1


number = st.sampled_from(PARTS)
steps = st.one_of(
    st.tuples(st.just("add"), number, st.integers(1, 40)),
    st.tuples(st.just("add at once"), st.integers(1, 20)),
    st.tuples(st.just("crash"), number),
    st.tuples(st.just("audit")),
    st.tuples(st.just("save"), number),
    st.tuples(st.just("lose"), number),
    st.tuples(st.just("fault"), st.sampled_from(("request lost", "reply lost", "twice"))),
    st.tuples(st.just("limit"), st.one_of(st.none(), st.integers(0, 150))),
    st.tuples(st.just("remove"), number),
    st.tuples(st.just("hour"), number),
)


async def _run(world: World, actions: list[tuple[Any, ...]]) -> None:
    await world.open()
    for action, *arguments in actions:
        before, limit = world.used("backlog"), world.limits.get("backlog")
        if action == "add":
            await world.add(*arguments)
        elif action == "add at once":
            await asyncio.gather(*(world.add(one, arguments[0]) for one in PARTS for _ in range(3)))
        elif action == "crash":
            await world.crash(arguments[0])
        elif action == "audit":
            rights = [world.tenant(one).part.rights for one in PARTS]  # type: ignore[union-attr]  # it is spread
            await world.audit()
            assert rights == [world.tenant(one).part.rights for one in PARTS]  # type: ignore[union-attr]  # as above
        elif action == "save":
            await world.save(arguments[0])
        elif action == "lose":
            await world.lose(arguments[0])
        elif action == "fault":
            world.faults.append(arguments[0])
        elif action == "limit":
            await world.change({**world.limits, "backlog": arguments[0]})
        elif action == "remove":
            await _remove_one(world, arguments[0])
        elif action == "hour":
            world.clocks[arguments[0]].jump_wall(HOUR_MS)
        world.check()
        if action.startswith("add") and limit is not None:
            assert world.used("backlog") <= max(before, limit)
    world.faults.clear()
    await _fill(world)
    await world.close()


async def _remove_one(world: World, at: int) -> None:
    shard, tenant, queue = world.shards[at], world.tenant(at), f"q{at}"
    if queue in tenant.queues:
        for one in await shard.loop.submit(Poll(tenant, SYSTEM, queue, max=1)):
            await shard.submit(Ack(tenant, SYSTEM, queue, [one.receipt]))


async def _fill(world: World) -> None:
    """No capacity is lost: any part can use all that is free, and nothing more."""
    limit = world.limits.get("backlog")
    if limit is None:
        return
    free = limit - world.used("backlog")
    if free > 0:
        assert await world.add(2, free) == free
    for one in PARTS:
        assert await world.add(one, 1) == 0
    world.check()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 120), st.lists(steps, max_size=14))
def test_rights_and_transfers_are_always_the_quota(limit: int, actions: list[tuple[Any, ...]]) -> None:
    """In any order of adds, crashes, lost and repeated messages and new limits; and all capacity stays usable."""
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_run(World(Path(directory), {"backlog": limit}), actions))


async def test_an_hour_is_not_exceeded_while_the_clocks_of_shards_differ(tmp_path: Path) -> None:
    """Rights that were used in an hour are not used again in it on a shard whose clock is behind."""
    world = World(tmp_path, {"messages_per_hour": 30})
    await world.open()
    try:
        assert await world.add(1, 30) == 30
        assert await world.add(2, 1) == 0
        hour = world.shards[2].state.wall_ms() // HOUR_MS
        world.clocks[1].jump_wall(HOUR_MS)
        assert await world.add(2, 10) == 10  # they count in the hour that shard 1 is in
        assert world.tenant(2).usage.hour.number == hour + 1
        assert await world.add(1, 30) == 20
        world.check()
    finally:
        await world.close()


async def test_parts_that_the_directory_has_lost_keep_their_rights(tmp_path: Path) -> None:
    """Home does not give itself the full quota again."""
    world = World(tmp_path, {"backlog": 10})
    await world.open()
    try:
        assert await world.add(1, 6) == 6
        await world.audit(known=(0,))
        world.check()
    finally:
        await world.close()


@pytest.mark.parametrize("lost", ["request lost", "reply lost"])
async def test_a_lost_grant_arrives_with_the_next_question(tmp_path: Path, lost: str) -> None:
    """Rights on their way are neither lost nor granted again."""
    world = World(tmp_path, {"backlog": 10})
    await world.open()
    try:
        world.faults.append(lost)
        assert await world.add(1, 10) == 0
        world.check()
        sent = world.tenant(0).part
        assert sent is not None
        assert (sent.sent.get(1, RightsTransfer()).number == 1) == (lost == "reply lost")
        assert await world.add(1, 10) == 10
        assert await world.add(2, 1) == 0
        world.check()
    finally:
        await world.close()


async def test_a_reduced_quota_holds_while_messages_are_removed(tmp_path: Path) -> None:
    """A part whose use falls does not use what became free before all parts together are below the quota."""
    world = World(tmp_path, {"backlog": 30})
    await world.open()
    try:
        assert await world.add(1, 20) == 20
        assert await world.add(2, 10) == 10
        await world.change({"backlog": 12})
        await _remove_one(world, 1)
        assert await world.add(1, 1) == 0
        await world.crash(1)
        assert await world.add(1, 1) == 0
        for _ in range(18):
            await _remove_one(world, 1)
        assert world.used("backlog") == 11
        assert await world.add(1, 2) == 1
        world.check()
        await world.change({"backlog": 15})
        assert await world.add(2, 10) == 3
        world.check()
    finally:
        await world.close()


async def test_a_reduced_quota_holds_in_the_next_hour(tmp_path: Path) -> None:
    """Rights that were used when the quota was reduced are not used again in the next hour."""
    world = World(tmp_path, {"messages_per_hour": 30})
    await world.open()
    try:
        assert await world.add(1, 30) == 30
        await world.change({"messages_per_hour": 12})
        for clock in world.clocks:
            clock.jump_wall(HOUR_MS)
        assert await world.add(1, 30) + await world.add(2, 30) == 12
        world.check()
    finally:
        await world.close()


@pytest.mark.parametrize("asks", [1, 0], ids=["to the part", "from the part"])
async def test_a_part_that_leaves_takes_no_rights_with_it(tmp_path: Path, asks: int) -> None:
    """A transfer whose reply was lost arrives before its sender or receiver is forgotten, and none follows."""
    world = World(tmp_path, {"backlog": 10})
    await world.open()
    try:
        if not asks:
            assert await world.add(1, 10) == 10
            for _ in range(10):
                await _remove_one(world, 1)
        world.faults.append("reply lost")
        assert await world.add(asks, 10) == 0
        world.check()
        if not asks:
            await world.shards[1].submit(DeleteQueue(world.tenant(1), SYSTEM, "q1", "of this test"))
            while world.tenant(1).queues:  # noqa: ASYNC110  # the sweeper deletes it
                await asyncio.sleep(0.01)
        await world.escrows[0].take_back(world.tenant(0), 1)
        assert await world.add(1, 10) == 0
        home = world.tenant(0).part
        assert home is not None
        assert home.rights["backlog"] == 10
    finally:
        await world.close()


async def test_a_late_preparation_does_not_bring_old_settings_back(tmp_path: Path) -> None:
    """A part that knows that its tenant is suspended stays so, whatever was sent before arrives."""
    world = World(tmp_path, {})
    await world.open()
    try:
        home, part = world.shards[0], world.shards[1]
        platform = part.state.platform
        before = shared_state(home.state, world.tenant(0))
        await home.submit(SuspendTenant(home.state.platform, SYSTEM, TENANT, "not paid"))
        await part.submit(ApplyShared(platform, SYSTEM, shared_state(home.state, world.tenant(0))))
        assert world.tenant(1).status == "suspended"
        with pytest.raises(Conflict, match="newer settings"):
            await part.submit(PreparePart(platform, SYSTEM, before, 1, 0, PARTS, (0, 1), 1))
        await world.crash(1)
        assert world.tenant(1).status == "suspended"
        prepared = world.tenant(1).part
        assert prepared is not None
        assert prepared.next_shards == ()
    finally:
        await world.close()


async def test_a_part_that_is_down_does_not_stop_the_others(tmp_path: Path) -> None:
    """What other parts have is enough, although one does not answer."""
    world = World(tmp_path, {"backlog": 30})
    await world.open()
    try:
        assert await world.add(1, 30) == 30
        for _ in range(30):
            await _remove_one(world, 1)
        world.faults += ["none", "request lost"]  # of the questions to the part that has all, and to the other one
        assert await world.add(0, 20) == 20
        world.check()
    finally:
        await world.close()
