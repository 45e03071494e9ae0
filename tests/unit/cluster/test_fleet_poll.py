"""Fleet polls over several shards: a caller gets at most what it asked for, and messages it does not get are released."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tenantq.cluster.fleet_poll import ClusterFleetPolls
from tenantq.cluster.fleet_waits import FleetWaits
from tenantq.domain.access import Principal
from tenantq.domain.message import Delivery
from tenantq.domain.placement import Topology, TopologyShard
from tenantq.errors import Forbidden, ShardDown, Unauthenticated
from tenantq.runtime.clock import ManualClock
from tenantq.service.call import Call
from tests.unit.cluster.directories import directory_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tenantq.cluster.member_queries import OtherMembers
    from tenantq.cluster.shard_calls import ShardCalls
    from tenantq.cluster.shard_memory import ShardMemory
    from tenantq.gates.authenticate import Authenticator

CALL = Call(bearer="key")


class Shards:
    """Three shards that deliver the messages they have and record what is released."""

    count = 3

    def __init__(self, *messages: int) -> None:
        self.messages = list(messages)
        self.refused: dict[int, list[str]] = {}
        self.is_stranger = False
        self.silent = set[int]()
        self.hangs = -1
        self.is_hanging = asyncio.Event()
        self.calls: list[tuple[int, str]] = []
        self.released: list[tuple[int, int]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def call(self, shard: int, path: str, _: Call, *arguments: Any, **options: Any) -> Any:
        self.calls.append((shard, path))
        if path == "fleet_shares.may_poll":
            return True
        if path == "fleet_shares.refused_tenants":
            return self.refused.get(shard, [])
        if path == "fleet.poll":
            raise Forbidden(str(options["tenants"]))
        if shard == self.hangs:
            self.is_hanging.set()
            await asyncio.Event().wait()
        count = min(arguments[2], self.messages[shard])
        self.messages[shard] -= count
        return [Delivery(bytes(16), "receipt", b"x", 1, 1, {}, None, 1, 2, f"of-{shard}", "mail")] * count

    async def release(self, shard: int, deliveries: list[Delivery]) -> None:
        self.released.append((shard, len(deliveries)))

    def polls(self) -> ClusterFleetPolls:
        """Return the polls of the first shard, which calls the others directly."""

        async def authenticate(_: str | None, __: object) -> Principal:
            if self.is_stranger:
                raise Unauthenticated
            return Principal("key:1", None)

        def background(work: Coroutine[Any, Any, None]) -> None:
            self.tasks.append(asyncio.get_running_loop().create_task(work))

        topology = Topology(tuple(TopologyShard(str(number)) for number in range(3)))
        directory = directory_of(0, topology, {"of-1": 1, "of-2": 2}, lambda shard: shard not in self.silent)
        weights = {number: 1 for number, count in enumerate(self.messages) if count}
        return ClusterFleetPolls(
            cast("ShardCalls", self),
            directory,
            cast("ShardMemory", SimpleNamespace(fleet_weights=lambda _: dict(weights))),
            FleetWaits(asyncio.get_running_loop()),
            cast("OtherMembers", SimpleNamespace(members=list)),
            cast("Authenticator", SimpleNamespace(authenticate=authenticate)),
            ManualClock(),
            background,
        )


async def test_messages_leased_for_a_caller_that_left_are_released() -> None:
    """On the shard that leased them, while another shard was still being asked."""
    shards = Shards(2, 5, 0)
    shards.hangs = 1
    polling = asyncio.ensure_future(shards.polls().poll(CALL, "mail", max=4))
    await shards.is_hanging.wait()
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    await asyncio.gather(*shards.tasks)
    assert shards.released == [(0, 2)]


async def test_a_caller_gets_at_most_what_it_asked_for_from_all_shards() -> None:
    """Shards without messages are not asked, and others make up for those with too few."""
    shards = Shards(1, 5, 0)
    got = await shards.polls().poll(CALL, "mail", max=4)
    assert sorted(one.tenant for one in got) == ["of-0", "of-1", "of-1", "of-1"]
    assert (2, "fleet_shares.poll_now") not in shards.calls
    assert (shards.messages, shards.released) == ([0, 2, 0], [])


async def test_a_poll_that_names_a_forbidden_tenant_is_refused_before_anything_is_leased() -> None:
    """By the shard of the first tenant that the caller may not poll."""
    shards = Shards(0, 1, 1)
    shards.refused = {2: ["of-2"]}
    with pytest.raises(Forbidden, match="of-2"):
        await shards.polls().poll(CALL, "mail", tenants=["of-1", "of-2"])
    assert (shards.messages, shards.calls[-1]) == ([0, 1, 1], (2, "fleet.poll"))


async def test_a_poll_of_a_tenant_that_a_silent_shard_may_have_is_unavailable() -> None:
    """The name may be known again when the shard is back. Without a valid credential it is refused like any other."""
    shards = Shards(0, 1, 1)
    polls = shards.polls()
    shards.silent = {1}
    with pytest.raises(ShardDown):
        await polls.poll(CALL, "mail", tenants=["nobody"])
    shards.is_stranger = True
    with pytest.raises(Forbidden, match="nobody"):  # as for every name
        await polls.poll(CALL, "mail", tenants=["nobody"])
