"""Fleet polls over many shards: only shards with messages of the queue are asked, each for its weighted share."""

import asyncio
import contextlib
from collections import OrderedDict
from http import HTTPStatus
from typing import Any, Final, Protocol

from tenantq.cluster.fleet_poll import FleetPollOptions
from tenantq.cluster.host import ShardHost
from tenantq.cluster.shard_calls import ShardCalls
from tenantq.cluster.shard_routing import ShardRouting
from tenantq.cluster.tenant_directory import TenantDirectory
from tenantq.domain.message import Delivery
from tenantq.engine.polls import check_poll
from tenantq.errors import ShardDown, TenantqError
from tenantq.gates.authenticate import REMOTE_TRUST_MS, Authenticator
from tenantq.runtime.clock import Clock
from tenantq.service.call import Call
from tenantq.service.fleet_poll import check_tenants

RECHECK_MS: Final = 1_000
"""How often a waiting poll asks again, for tenants whose rate limit has recovered."""

NOW_MS: Final = 500
"""How long a shard may take to lease what it has. After that the poll continues without it."""

REMEMBERED_MAX: Final = 10_000
"""Queue names whose shares, and callers whose rights, are remembered."""

_NOT_NOW: Final = frozenset((HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE))


class WeightedShares:
    """Divides polls of a queue over the shards that have work, in proportion to the weights of the tenants with work."""

    def __init__(self) -> None:
        self._owed: OrderedDict[str, dict[int, float]] = OrderedDict()  # by queue and shard: what rounding left

    def divide(self, queue: str, count: int, weights: dict[int, int]) -> dict[int, int]:
        """Return how many of ``count`` messages each shard may give. What a shard gets too little now it gets later."""
        total = sum(weights.values())
        owed = self._owed.pop(queue, {})
        exact = {shard: count * weight / total + owed.get(shard, 0.0) for shard, weight in weights.items()}
        shares = {shard: max(0, int(share)) for shard, share in exact.items()}
        by_rest = sorted(exact, key=lambda shard: shares[shard] - exact[shard])
        left = count - sum(shares.values())
        for shard in by_rest[: max(0, left)]:
            shares[shard] += 1
        for shard in reversed(by_rest):  # what was owed may exceed the count
            if left < 0 and shares[shard]:
                taken = min(-left, shares[shard])
                shares[shard] -= taken
                left += taken
        self._owed[queue] = {shard: max(-1.0, min(1.0, exact[shard] - shares[shard])) for shard in exact}
        while len(self._owed) > REMEMBERED_MAX:
            self._owed.popitem(last=False)
        return {shard: share for shard, share in shares.items() if share}


class FleetWaits:
    """The fleet polls that wait for messages, by queue name."""

    def __init__(self, main: asyncio.AbstractEventLoop) -> None:
        self._main = main
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def signal(self, queue: str) -> None:
        """Wake the polls of a queue name. Safe from any thread, and cheap if nobody waits."""
        if queue in self._waiting:
            self._main.call_soon_threadsafe(self._wake, queue)

    def _wake(self, queue: str) -> None:
        for event in self._waiting.get(queue, ()):
            event.set()

    def enter(self, queue: str) -> asyncio.Event:
        """Return an event that is set whenever messages may have arrived, until ``leave``."""
        event = asyncio.Event()
        self._waiting.setdefault(queue, set()).add(event)
        return event

    def leave(self, queue: str, event: asyncio.Event) -> None:
        """Stop waiting."""
        waiting = self._waiting[queue]
        waiting.discard(event)
        if not waiting:
            del self._waiting[queue]


def fleet_weights(host: ShardHost, queue: str) -> dict[int, int]:
    """Return the shards of this process with messages of a queue, and the weight of the tenants that have some.

    A shard that was never asked for this queue may have some.
    """
    weights: dict[int, int] = {}
    for thread in host.threads():
        lane = thread.hosted.shard.state.lanes.get(queue)
        if lane is None or lane.weight:
            weights[thread.number] = lane.weight if lane is not None else 1
    return weights


class OtherFleets(Protocol):
    """Asks the other members of the cluster which of their shards have messages."""

    def members(self) -> list[str]:
        """Return the ids of the other members that can be asked."""

    async def fleet_weights(self, member: str, queue: str) -> dict[int, int]:
        """Return the shards of a member with messages of a queue."""

    async def fleet_work(self, member: str, queue: str, wait_ms: int) -> bool:
        """Wait until more messages of a queue arrive at a member; return whether some have."""


class HostFleetPolls:
    """The fleet facet of a process with many shards."""

    def __init__(
        self,
        calls: ShardCalls,
        routing: ShardRouting,
        directory: TenantDirectory,
        waits: FleetWaits,
        others: OtherFleets,
        authenticator: Authenticator,
        clock: Clock,
    ) -> None:
        self._authenticator = authenticator
        self._calls = calls
        self._others = others
        self._routing = routing
        self._directory = directory
        self._waits = waits
        self._clock = clock
        self._shares = WeightedShares()
        self._allowed: OrderedDict[tuple[str | None, str], int] = OrderedDict()  # by credential and queue: until when

    async def poll(
        self,
        call: Call,
        queue: str,
        *,
        tenants: list[str] | None = None,
        max: int = 1,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        consumer: str | None = None,
    ) -> list[Delivery]:
        """Lease messages of one queue name in every tenant the caller may poll, or in those named, on all shards."""
        started_ms = self._clock.monotonic_ms()
        check_poll(queue, max, wait_ms, lease_ms)
        check_tenants(tenants)
        options = FleetPollOptions(
            queue=queue, tenants=tenants, max=max, wait_ms=wait_ms, lease_ms=lease_ms, consumer=consumer
        )
        await self._identify(call, queue)
        if tenants is None:
            await self._check_rights(call, queue)
        named = await self._named(call, queue, tenants)
        event = self._waits.enter(queue)
        until_ms = started_ms + wait_ms
        watching = [
            asyncio.ensure_future(self._watch(member, queue, until_ms, event))
            for member in (self._others.members() if wait_ms else ())
        ]
        try:
            while True:
                event.clear()
                is_last = self._clock.monotonic_ms() >= until_ms
                got = await self._ask(call, options, named, is_last=is_last)
                left_ms = until_ms - self._clock.monotonic_ms()
                if got or left_ms <= 0:
                    return got
                await _wait(event, min(left_ms, RECHECK_MS))
        finally:
            self._waits.leave(queue, event)
            for one in watching:
                one.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _watch(self, member: str, queue: str, until_ms: int, event: asyncio.Event) -> None:
        """Set ``event`` whenever messages arrive at another member."""
        while (left_ms := until_ms - self._clock.monotonic_ms()) > 0:
            if await self._others.fleet_work(member, queue, left_ms):
                event.set()
            else:
                await asyncio.sleep(RECHECK_MS / 1_000)

    # ---- rights ----

    async def _identify(self, call: Call, queue: str) -> None:
        """Raise, and have it noted, if the credential is not valid."""
        try:
            await self._authenticator.authenticate(call.bearer, call.certificate)
        except TenantqError:
            await self._calls.call(self._directory.number, "fleet.poll", call, queue)  # it refuses

    async def _check_rights(self, call: Call, queue: str) -> None:
        """Raise, and have it noted, unless the caller may poll the queue in some tenant."""
        who = (call.bearer, queue)
        now_ms = self._clock.monotonic_ms()
        if call.bearer is not None and self._allowed.get(who, 0) > now_ms:
            return
        own = await self._routing.find_owner(call, None)
        if not await self._calls.call(own, "fleet_shares.may_poll", call, queue):
            others = [shard for shard in range(self._calls.count) if shard != own]
            asking = (self._calls.call(shard, "fleet_shares.may_poll", call, queue) for shard in others)
            found = await asyncio.gather(*asking, return_exceptions=True)
            if not any(one is True for one in found):
                await self._calls.call(own, "fleet.poll", call, queue)  # it refuses
                return
        if call.bearer is not None:
            self._allowed[who] = now_ms + REMOTE_TRUST_MS
            while len(self._allowed) > REMEMBERED_MAX:
                self._allowed.popitem(last=False)

    async def _named(self, call: Call, queue: str, tenants: list[str] | None) -> dict[int, list[str]] | None:
        """Return the named tenants by shard; None if all tenants are meant. Raises if one of them may not be polled."""
        if tenants is None:
            return None
        named: dict[int, list[str]] = {}
        for name in tenants:
            shard = self._directory.find(name)
            if shard is None:
                await self._directory.refresh()
                shard = self._directory.find(name)
            if shard is None:
                shard = await self._routing.find_owner(call, None)
            named.setdefault(shard, []).append(name)
        if len(named) > 1:
            checks = [
                self._calls.call(shard, "fleet_shares.refused_tenants", call, queue, names)
                for shard, names in named.items()
            ]
            refused = {name for names in await asyncio.gather(*checks) for name in names}
            first = next((name for name in tenants if name in refused), None)
            if first is not None:
                shard = next(shard for shard, names in named.items() if first in names)
                await self._calls.call(shard, "fleet.poll", call, queue, tenants=[first])  # it refuses
        return named

    # ---- messages ----

    async def _ask(
        self, call: Call, options: FleetPollOptions, named: dict[int, list[str]] | None, *, is_last: bool
    ) -> list[Delivery]:
        """Return what shards with messages lease now. Raises a refusal; ``is_last``: also that nobody could be asked."""
        got: list[Delivery] = []
        failure: TenantqError | None = None
        weights = await self._weights(options.queue, named)
        while weights and len(got) < options.max:
            shares = self._shares.divide(options.queue, options.max - len(got), weights)
            asked = [
                self._ask_one(call, options, shard, share, named[shard] if named is not None else None)
                for shard, share in shares.items()
            ]
            for (shard, share), outcome in zip(shares.items(), await asyncio.gather(*asked), strict=True):
                if isinstance(outcome, TenantqError):
                    failure = outcome
                elif outcome is not None:
                    got += outcome
                if not isinstance(outcome, list) or len(outcome) < share:
                    weights.pop(shard)  # it has no more now
        if failure is not None and not got and (is_last or failure.status not in _NOT_NOW):
            raise failure
        return got

    async def _weights(self, queue: str, named: dict[int, list[str]] | None) -> dict[int, int]:
        """Return the shards that have messages of the queue, or may have, with the weight of the tenants that do."""
        weights = fleet_weights(self._calls.host, queue)
        asked = (self._others.fleet_weights(member, queue) for member in self._others.members())
        for theirs in await asyncio.gather(*asked):
            weights |= theirs
        return weights if named is None else {shard: weights.get(shard, 1) for shard in named}

    async def _ask_one(
        self, call: Call, options: FleetPollOptions, shard: int, count: int, tenants: list[str] | None
    ) -> list[Delivery] | TenantqError | None:
        asking: asyncio.Future[Any] = asyncio.ensure_future(
            self._calls.call(
                shard,
                "fleet_shares.poll_now",
                call,
                options.queue,
                tenants,
                count,
                options.lease_ms,
                options.consumer,
            )
        )
        try:
            async with asyncio.timeout(NOW_MS / 1_000):
                found: list[Delivery] | None = await asking
                return found
        except TimeoutError:
            return ShardDown(f"shard {shard} has not answered in time. Try again later.")
        except TenantqError as error:
            return error


async def _wait(event: asyncio.Event, wait_ms: int) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_ms / 1_000):
            await event.wait()
