"""Fleet polls over many shards: only shards with messages of the queue are asked, each for its weighted share."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from tenantq.cluster.fleet_waits import FleetWaits
from tenantq.cluster.handshake import PeerName
from tenantq.cluster.member_queries import OtherMembers
from tenantq.cluster.shard_calls import QUICK_MS, ShardCalls
from tenantq.cluster.shard_memory import ShardMemory
from tenantq.cluster.shard_routing import RoutingDirectory
from tenantq.domain.message import Delivery, check_poll
from tenantq.domain.names import check_queue_name
from tenantq.errors import ShardDown, TenantqError, Unavailable
from tenantq.gates.authenticate import REMOTE_TRUST_MS, Authenticator
from tenantq.runtime.bounded_dict import BoundedDict
from tenantq.runtime.clock import Clock
from tenantq.service.admission import own_tenant
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
        self._owed: BoundedDict[str, dict[int, float]] = BoundedDict(
            REMEMBERED_MAX
        )  # by queue and shard: left by rounding

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
        return {shard: share for shard, share in shares.items() if share}


@dataclass
class ClusterFleetPoll:
    """One poll over many shards: what it asks for, and what it got."""

    call: Call
    queue: str
    tenants: list[str] | None
    max: int
    lease_ms: int | None
    consumer: str | None
    named: dict[int, list[str]] | None = None  # the tenants by shard; None: all that the caller may poll
    leased: list[tuple[int, list[Delivery]]] = field(default_factory=list)  # by shard


class ClusterFleetPolls:
    """The fleet facet of a server with several shards."""

    def __init__(
        self,
        calls: ShardCalls,
        directory: RoutingDirectory,
        memory: ShardMemory,
        waits: FleetWaits,
        others: OtherMembers,
        authenticator: Authenticator,
        clock: Clock,
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._authenticator = authenticator
        self._calls = calls
        self._others = others
        self._directory = directory
        self._memory = memory
        self._waits = waits
        self._clock = clock
        self._background = background
        self._shares = WeightedShares()
        self._allowed: BoundedDict[tuple[str, str], int] = BoundedDict(REMEMBERED_MAX)  # credential, queue: until when

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
        until_ms = self._clock.monotonic_ms() + wait_ms
        check_queue_name(queue)
        check_poll(max, wait_ms, lease_ms)
        check_tenants(tenants)
        poll = ClusterFleetPoll(call, queue, tenants, max, lease_ms, consumer)
        refusing = await self._refusing(poll)
        if refusing is not None:  # this shard refuses the poll, and notes that
            shard, tenants = refusing
            refused: list[Delivery] = await self._calls.call(
                shard, "fleet.poll", call, queue, tenants=tenants, max=max, lease_ms=lease_ms, consumer=consumer
            )
            return refused
        try:
            await self._lease(poll, until_ms, waits=wait_ms > 0)
        except BaseException:  # the caller is gone, or may poll no more
            for shard, deliveries in poll.leased:
                self._background(self._calls.release(shard, deliveries))
            raise
        return [one for _, deliveries in poll.leased for one in deliveries]

    # ---- rights ----

    async def _by_shard(self, tenants: list[str], queue: str) -> dict[int, list[str]]:
        """Return the named tenants by the shard of their queue. Any shard can refuse unknown names."""
        named: dict[int, list[str]] = {}
        for name in tenants:
            shard = self._directory.find(name, queue)
            if shard is None:
                await self._directory.refresh()
                shard = self._directory.find(name, queue)
            if shard is None:
                self._directory.check_all_run()
                shard = self._directory.number
            named.setdefault(shard, []).append(name)
        return named

    async def _refusing(self, poll: ClusterFleetPoll) -> tuple[int, list[str] | None] | None:
        """Return a shard that refuses the poll, with the tenants to name; None if the caller may poll.

        A poll that names tenants of several shards is refused before any shard leases anything.
        """
        call = poll.call
        try:
            principal = await self._authenticator.authenticate(call.bearer, call.certificate)
        except TenantqError:
            return self._directory.number, poll.tenants
        if poll.tenants is None:
            own = self._directory.find(own_tenant(principal))
            if own is None or not self._directory.is_known(own):
                own = self._directory.number
            return None if await self._may_poll(call, poll.queue, own) else (own, None)
        named = poll.named = await self._by_shard(poll.tenants, poll.queue)
        if len(named) > 1:
            checks = [self._ask(shard, "refused_tenants", call, poll.queue, names) for shard, names in named.items()]
            refused = set[str]()
            for found in await asyncio.gather(*checks):
                if isinstance(found, list):
                    refused.update(found)
                elif found.status not in _NOT_NOW:
                    raise found
            first = next((name for name in poll.tenants if name in refused), None)
            if first is not None:
                return next(shard for shard, names in named.items() if first in names), [first]
        return None

    async def _may_poll(self, call: Call, queue: str, own: int) -> bool:
        """Return whether the caller may poll the queue in some tenant, most likely one of the shard ``own``."""
        who = (call.bearer or "", queue)
        now_ms = self._clock.monotonic_ms()
        if call.bearer is not None and self._allowed.get(who, 0) > now_ms:
            return True
        if await self._ask(own, "may_poll", call, queue) is not True:
            others = [shard for shard in range(self._calls.count) if shard != own]
            found = await asyncio.gather(*(self._ask(shard, "may_poll", call, queue) for shard in others))
            if not any(one is True for one in found):
                return False
        if call.bearer is not None:
            self._allowed[who] = now_ms + REMOTE_TRUST_MS
        return True

    # ---- messages ----

    async def _lease(self, poll: ClusterFleetPoll, until_ms: int, *, waits: bool) -> None:
        """Lease messages, at the latest until the time is over."""
        event = self._waits.enter(poll.queue)
        watching = [
            asyncio.ensure_future(self._watch(member, poll.queue, until_ms, event))
            for member in (self._others.members() if waits else ())
        ]
        try:
            while True:
                event.clear()
                is_last = self._clock.monotonic_ms() >= until_ms
                await self._lease_now(poll, is_last=is_last)
                left_ms = until_ms - self._clock.monotonic_ms()
                if poll.leased or left_ms <= 0:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_ms, RECHECK_MS) / 1_000):
                        await event.wait()
        finally:
            self._waits.leave(poll.queue, event)
            for one in watching:
                one.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _watch(self, member: PeerName, queue: str, until_ms: int, event: asyncio.Event) -> None:
        """Set ``event`` whenever messages arrive at another process."""
        while (left_ms := until_ms - self._clock.monotonic_ms()) > 0:
            if await self._query(member, "member.fleet_work", queue, left_ms, timeout_ms=QUICK_MS + left_ms):
                event.set()
            else:
                await asyncio.sleep(RECHECK_MS / 1_000)

    async def _lease_now(self, poll: ClusterFleetPoll, *, is_last: bool) -> None:
        """Lease what shards with messages have now. Raises a refusal; ``is_last``: also that nobody could be asked."""
        failure: TenantqError | None = None
        weights = await self._weights(poll)
        left = poll.max
        while weights and left:
            shares = self._shares.divide(poll.queue, left, weights)
            asked = (self._lease_share(poll, shard, share) for shard, share in shares.items())
            for (shard, share), outcome in zip(shares.items(), await asyncio.gather(*asked), strict=True):
                if isinstance(outcome, TenantqError):
                    failure = outcome
                else:
                    left -= outcome
                if outcome != share:
                    weights.pop(shard)  # it has no more now
        if failure is not None and not poll.leased and (is_last or failure.status not in _NOT_NOW):
            raise failure

    async def _weights(self, poll: ClusterFleetPoll) -> dict[int, int]:
        """Return the shards that have messages of the queue, or may have, with the weight of the tenants that do."""
        queue, members = poll.queue, self._others.members()
        weights = self._memory.fleet_weights(queue)
        asked = (self._query(one, "member.fleet_weights", queue, timeout_ms=NOW_MS) for one in members)
        for theirs in await asyncio.gather(*asked):
            weights |= theirs or {}
        return weights if poll.named is None else {shard: weights.get(shard, 1) for shard in poll.named}

    async def _lease_share(self, poll: ClusterFleetPoll, shard: int, count: int) -> int | TenantqError:
        """Lease up to ``count`` messages of a shard; return how many it had."""
        tenants = poll.named[shard] if poll.named is not None else None
        found = await self._ask(shard, "poll_now", poll.call, poll.queue, tenants, count, poll.lease_ms, poll.consumer)
        if isinstance(found, TenantqError):
            return found
        if found:
            poll.leased.append((shard, found))
        return len(found or ())

    # ---- asking ----

    async def _ask(self, shard: int, method: str, call: Call, *arguments: Any) -> Any | TenantqError:
        """Return what a shard answers at once, or its error."""
        try:
            async with asyncio.timeout(NOW_MS / 1_000):
                return await self._calls.call(shard, f"fleet_shares.{method}", call, *arguments)
        except TimeoutError:
            return ShardDown(f"shard {shard} has not answered in time. Try again later.")
        except TenantqError as error:
            return error

    async def _query(self, member: PeerName, path: str, *arguments: Any, timeout_ms: int) -> Any:
        """Return the answer of another process; None if it is out of reach."""
        try:
            return await self._others.query(member, path, *arguments, timeout_ms=timeout_ms)
        except Unavailable:
            return None
