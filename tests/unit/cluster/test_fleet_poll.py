"""A fleet poll over several shards that ends early: everything that was leased for it is released."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from tenantq.cluster.fleet_poll import ClusterFleetPoll, ClusterFleetPolls, FleetPollOptions
from tenantq.domain.message import Delivery
from tenantq.service.call import Call

if TYPE_CHECKING:
    from collections.abc import Coroutine

OPTIONS = FleetPollOptions(queue="mail", tenants=None, max=1, wait_ms=0, lease_ms=None, consumer=None)


class Shards:
    """Stands in for the calls to other shards, and notes what is released where."""

    number = 0

    def __init__(self) -> None:
        self.released: list[tuple[int, list[str]]] = []
        self.abandoned: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.polls = SimpleNamespace(calls=self, background=self._begin)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def release(self, owner: int, deliveries: list[Delivery]) -> None:
        self.released.append((owner, [one.receipt for one in deliveries]))

    def method(self, _: str) -> None:
        return None

    def abandon(self, owner: int, _: object, __: object) -> None:
        self.abandoned.append(owner)


def _leased(tenant: str) -> list[Delivery]:
    return [Delivery(bytes(16), f"of {tenant}", b"x", 1, 1, {}, None, 1, 2, tenant, "mail")]


def _poll(shards: Shards) -> ClusterFleetPoll:
    return ClusterFleetPoll(cast("ClusterFleetPolls", shards.polls), Call(), OPTIONS, 0, 0)


async def test_what_was_leased_for_a_caller_that_has_gone_is_released() -> None:
    """What had come, what this shard leases while it is stopped, and what other shards lease meanwhile."""
    shards = Shards()
    poll = _poll(shards)
    poll._delivered.append((1, _leased("mine")))

    async def late() -> list[Delivery]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return _leased("theirs")
        raise AssertionError

    local = asyncio.get_running_loop().create_task(late())
    await asyncio.sleep(0)
    poll._asked.update(cast("Any", {0: local, 2: object()}))
    poll.release_rest()
    await asyncio.gather(*shards.tasks)
    assert shards.abandoned == [2]
    assert sorted(shards.released) == [(0, ["of theirs"]), (1, ["of mine"])]
    poll.release_rest()
    assert len(shards.tasks) == 2


async def test_a_caller_gets_at_most_what_it_asked_for() -> None:
    """Messages beyond that are released where they were leased."""
    shards = Shards()
    poll = _poll(shards)
    poll._delivered += [(0, _leased("one")), (2, _leased("two"))]
    assert [one.tenant for one in poll._take_delivered()] == ["one"]
    poll.release_rest()
    await asyncio.gather(*shards.tasks)
    assert shards.released == [(2, ["of two"])]
