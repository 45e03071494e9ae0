"""Fleet polls on a server with several shards: each shard leases its share, and what the caller does not get is released."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final

import msgspec

from tenantq.cluster.directory import Directory
from tenantq.cluster.link import PendingReply
from tenantq.cluster.peer_calls import PeerCalls
from tenantq.domain.message import Delivery
from tenantq.engine.polls import check_poll
from tenantq.errors import TenantqError, Unavailable
from tenantq.runtime.clock import Clock
from tenantq.service.call import Call
from tenantq.service.fleet_poll import check_tenants
from tenantq.service.service import Service

log = logging.getLogger("tenantq.shards")

NOW_MS: Final = 500
"""How long a shard may take to lease what it has now. After that the poll continues without waiting for it."""

_POLL: Final = "fleet_shares.poll"
_NOT_NOW: Final = frozenset((HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE))

Shares = dict[int, list[str] | None]
"""The tenants that each shard is polled for; None for all of the shard's."""

Outcome = list[Delivery] | TenantqError | None
"""What a shard leased, or its error; None if the shard has no tenant that the caller may poll."""


class FleetPollOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a fleet poll."""

    queue: str
    tenants: list[str] | None
    max: int
    wait_ms: int
    lease_ms: int | None
    consumer: str | None


class FleetShares:
    """What the shards of a server ask each other for fleet polls."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def poll(self, call: Call, options: FleetPollOptions, wait_ms: int) -> list[Delivery] | None:
        """Lease this shard's share of a poll; None, without a note, if the caller may poll no tenant of this shard."""
        admission = self._service.admission
        if options.tenants is None:
            principal = await admission.authenticator.authenticate(call.bearer, call.certificate)
            allowed = admission.authorizer.tenants_for(principal, "poll", options.queue)
            if allowed is not None and not any(name in self._service.shard.state.catalog.tenants for name in allowed):
                return None
        return await self._service.fleet.poll(
            call,
            options.queue,
            tenants=options.tenants,
            max=options.max,
            wait_ms=wait_ms,
            lease_ms=options.lease_ms,
            consumer=options.consumer,
        )

    async def poll_now(
        self,
        call: Call,
        queue: str,
        tenants: list[str] | None,
        max: int,
        lease_ms: int | None,
        consumer: str | None,
    ) -> list[Delivery] | None:
        """Lease what this shard has now; None, without a note, if the caller may poll no tenant of this shard."""
        options = FleetPollOptions(
            queue=queue, tenants=tenants, max=max, wait_ms=0, lease_ms=lease_ms, consumer=consumer
        )
        return await self.poll(call, options, 0)

    async def may_poll(self, call: Call, queue: str) -> bool:
        """Return whether the caller may poll the queue in a tenant of this shard. Nothing is noted."""
        admission = self._service.admission
        principal = await admission.authenticator.authenticate(call.bearer, call.certificate)
        allowed = admission.authorizer.tenants_for(principal, "poll", queue)
        return allowed is None or any(name in self._service.shard.state.catalog.tenants for name in allowed)

    async def refused_tenants(self, call: Call, queue: str, tenants: list[str]) -> list[str]:
        """Return which of these tenants of this shard the caller may not poll. Nothing is noted: a refused share is."""
        admission = self._service.admission
        principal = await admission.authenticator.authenticate(call.bearer, call.certificate)
        misplaced = admission.residency.misplaced_now()
        return [
            name
            for name in tenants
            if name in misplaced or not admission.authorizer.allowed(principal, name, "poll", queue)
        ]


class ClusterFleetPolls:
    """The fleet facet of a server with several shards. Each poll asks another shard first."""

    def __init__(
        self,
        service: Service,
        shares: FleetShares,
        calls: PeerCalls,
        directory: Directory,
        clock: Clock,
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.service = service
        self.shares = shares
        self.calls = calls
        self.directory = directory
        self.clock = clock
        self.background = background
        self._turn = directory.number

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
        started_ms = self.clock.monotonic_ms()
        await self.service.admission.identify(call, "poll")
        check_poll(queue, max, wait_ms, lease_ms)
        check_tenants(tenants)
        self._turn += 1
        options = FleetPollOptions(
            queue=queue, tenants=tenants, max=max, wait_ms=wait_ms, lease_ms=lease_ms, consumer=consumer
        )
        polling = ClusterFleetPoll(self, call, options, self._turn, started_ms + wait_ms)
        try:
            return await polling.run()
        finally:
            polling.release_rest()


class ClusterFleetPoll:
    """One poll: first each shard is asked in turn without waiting, then all wait, and the first that delivers ends the poll."""

    def __init__(
        self, polls: ClusterFleetPolls, call: Call, options: FleetPollOptions, turn: int, until_ms: int
    ) -> None:
        self._polls = polls
        self._calls = polls.calls
        self._call = call
        self._options = options
        self._turn = turn
        self._until_ms = until_ms
        self._asked: dict[int, PendingReply | asyncio.Task[Outcome]] = {}  # no outcome yet, or not looked at
        self._late: set[int] = set()  # of these, the shards that were asked for what they have now
        self._delivered: list[tuple[int, list[Delivery]]] = []  # leased, and not returned to the caller

    async def run(self) -> list[Delivery]:
        """Return what was leased, nothing after the wait, or raise why the caller may have nothing."""
        shares = self._shares()
        if self._options.tenants is not None and len(shares) > 1:
            await self._check_allowed(self._options.tenants, shares)
        not_now: TenantqError | None = None
        waiting: list[int] = []
        has_nothing = False
        for shard in self._in_turn(shares):
            if self._delivered:
                break
            outcome = await self._ask_now(shard, shares[shard])
            if shard in self._late or isinstance(outcome, list):
                waiting += [] if shard in self._late else [shard]
                has_nothing = has_nothing or isinstance(outcome, list)
            elif outcome is not None:
                not_now = outcome
                if outcome.status != HTTPStatus.SERVICE_UNAVAILABLE:
                    waiting.append(shard)
        if self._delivered:
            return self._take_delivered()
        if not waiting and not self._asked:  # no shard has anything for this caller: this one refuses and notes it
            if not_now is not None:
                raise not_now
            return await self._poll_here()
        if self._left_ms() <= 0:
            if not_now is not None and not has_nothing and not self._asked:
                raise not_now
            return []
        for shard in waiting:
            self._begin_waiting(shard, shares[shard])
        return await self._wait(shares)

    async def _poll_here(self) -> list[Delivery]:
        options = self._options
        return await self._polls.service.fleet.poll(
            self._call,
            options.queue,
            tenants=options.tenants,
            max=options.max,
            wait_ms=max(0, self._left_ms()),
            lease_ms=options.lease_ms,
            consumer=options.consumer,
        )

    def release_rest(self) -> None:
        """Stop all shards that still wait, and release, in the background, everything that did not reach the caller."""
        asked, self._asked = self._asked, {}
        delivered, self._delivered = self._delivered, []
        for shard, one in asked.items():
            if isinstance(one, asyncio.Task):
                one.cancel()
                self._polls.background(self._release_task(shard, one))
            else:
                self._calls.abandon(shard, self._calls.method(_POLL), one)
        for shard, deliveries in delivered:
            self._polls.background(self._calls.release(shard, deliveries))

    async def _release_task(self, shard: int, task: asyncio.Task[Outcome]) -> None:
        await asyncio.wait([task])
        if not task.cancelled() and isinstance(deliveries := task.result(), list):
            await self._calls.release(shard, deliveries)

    def _shares(self) -> Shares:
        """Return the shards to ask and their tenants. This shard gets unknown names, and refuses them."""
        directory = self._polls.directory
        if self._options.tenants is None:
            return dict.fromkeys(range(len(directory.topology.shards)))
        shares: dict[int, list[str]] = {}
        for name in self._options.tenants:
            shard = directory.find(name)
            if shard is None:
                directory.check_whole()
                shard = directory.number
            shares.setdefault(shard, []).append(name)
        return {**shares}

    def _in_turn(self, shares: Shares) -> list[int]:
        count = len(self._polls.directory.topology.shards)
        return sorted(shares, key=lambda shard: (shard - self._turn) % count)

    def _left_ms(self) -> int:
        return self._until_ms - self._polls.clock.monotonic_ms() if self._options.wait_ms else 0

    async def _check_allowed(self, tenants: list[str], shares: Shares) -> None:
        """Raise what the shard of the first refused tenant says, before any shard leases anything."""
        found = await asyncio.gather(*(self._refused_on(shard, names or []) for shard, names in shares.items()))
        refused = {name for names in found for name in names}
        first = next((name for name in tenants if name in refused), None)
        if first is None:
            return
        shard = next(shard for shard, names in shares.items() if first in (names or ()))
        outcome = await self._ask_now(shard, [first])
        if shard in self._late:
            raise Unavailable(f"shard {shard} takes long to answer. Try again later.")
        if isinstance(outcome, TenantqError):
            raise outcome

    async def _refused_on(self, shard: int, tenants: list[str]) -> list[str]:
        """Return the tenants of a shard that the caller may not poll; none of a shard that does not run, which leases nothing."""
        queue = self._options.queue
        if shard == self._calls.number:
            return await self._polls.shares.refused_tenants(self._call, queue, tenants)
        try:
            async with asyncio.timeout(NOW_MS / 1_000):
                found: list[str] = await self._calls.call(
                    shard, "fleet_shares.refused_tenants", self._call, queue, tenants
                )
                return found
        except (Unavailable, TimeoutError):
            return []

    def _begin(self, shard: int, tenants: list[str] | None, wait_ms: int) -> None:
        options = msgspec.structs.replace(self._options, tenants=tenants)
        if shard == self._calls.number:
            polling = self._polls.shares.poll(self._call, options, wait_ms)
            self._asked[shard] = asyncio.get_running_loop().create_task(_outcome(polling))
        else:
            self._asked[shard] = self._calls.begin(shard, _POLL, self._call, options, wait_ms)

    async def _ask_now(self, shard: int, tenants: list[str] | None) -> Outcome:
        """Return what a shard leases at once. Raise its refusal. A shard without an answer is late."""
        try:
            self._begin(shard, tenants, 0)
        except Unavailable as error:
            return error
        done, _ = await asyncio.wait([_future(self._asked[shard])], timeout=NOW_MS / 1_000)
        if not done:
            self._late.add(shard)
            return None
        return self._outcome_of(shard)

    def _outcome_of(self, shard: int) -> Outcome:
        """Return the outcome of a shard that has answered, and note its deliveries. Raise its refusal."""
        one = self._asked.pop(shard)
        outcome: Outcome
        if isinstance(one, asyncio.Task):
            outcome = one.result()
        else:
            try:
                outcome = self._calls.method(_POLL).result(one.reply.result(), one)
            except TenantqError as error:
                outcome = error
        if isinstance(outcome, TenantqError) and outcome.status not in _NOT_NOW:
            raise outcome
        if isinstance(outcome, list) and outcome:
            self._delivered.append((shard, outcome))
        return outcome

    def _begin_waiting(self, shard: int, tenants: list[str] | None) -> None:
        left_ms = self._left_ms()
        if left_ms > 0:
            try:
                self._begin(shard, tenants, left_ms)
            except Unavailable as error:
                log.debug("a fleet waits without shard %d: %s", shard, error)

    async def _wait(self, shares: Shares) -> list[Delivery]:
        """Wait until a shard delivers or refuses, or the wait is over. A shard that does not answer cannot extend it."""
        not_now: TenantqError | None = None
        has_waited = False
        while self._asked and not self._delivered:
            shard_of = {_future(one): shard for shard, one in self._asked.items()}
            wait_s = (max(0, self._left_ms()) + NOW_MS) / 1_000
            done, _ = await asyncio.wait(shard_of, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return []
            for shard in [shard_of[future] for future in done]:
                outcome = self._outcome_of(shard)
                if isinstance(outcome, TenantqError):
                    not_now = outcome
                elif shard in self._late and outcome is not None and not self._delivered:
                    self._begin_waiting(shard, shares[shard])
                else:
                    has_waited = True
                self._late.discard(shard)
        if not self._delivered and not has_waited and not_now is not None:
            raise not_now
        return self._take_delivered()

    def _take_delivered(self) -> list[Delivery]:
        """Return at most as many messages as the caller asked for. The rest stays to be released."""
        taken: list[Delivery] = []
        rest: list[tuple[int, list[Delivery]]] = []
        for shard, deliveries in self._delivered:
            count = max(0, self._options.max - len(taken))
            taken += deliveries[:count]
            if deliveries[count:]:
                rest.append((shard, deliveries[count:]))
        self._delivered = rest
        return taken


async def _outcome(polling: Coroutine[Any, Any, list[Delivery] | None]) -> Outcome:
    try:
        return await polling
    except TenantqError as error:
        return error


def _future(one: PendingReply | asyncio.Task[Outcome]) -> asyncio.Future[Any]:
    return one if isinstance(one, asyncio.Task) else one.reply
