"""Fleet polling: messages of one queue name leased in every tenant that the caller may poll."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.domain import limits
from tenantq.engine.shard import check_poll
from tenantq.errors import Invalid, TenantqError
from tenantq.service.polling import Polling, check_consumer

if TYPE_CHECKING:
    from tenantq.domain.access import Principal
    from tenantq.domain.message import Delivery
    from tenantq.service.call import Call
    from tenantq.service.entered import Entered


class FleetPolling(Polling):
    """The part of the service that workers of many tenants ask."""

    async def fleet_poll(
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
        """Lease messages of one queue name in every tenant the caller may poll, or in those named."""
        check_poll(queue, max, wait_ms, lease_ms)
        check_consumer(consumer)
        _check_tenants(tenants)
        started_ms = self.clock.monotonic_ms()
        principal = await self.gates.identify(call, "poll")
        allowed = self._fleet_tenants(call, principal, queue, tenants)
        with await self.gates.enter_fleet(call, principal) as entered:
            entered.park()
            allowed = self._as_consumer(call, entered, queue, allowed, consumer, named=tenants is not None)
            while True:
                left_ms = wait_ms - (self.clock.monotonic_ms() - started_ms) if wait_ms else 0
                short = self.gates.short_for_fleets(queue)
                if self._sealing is not None:
                    short.update(self._sealing.resting())
                if self.gates.residency.misplaced:
                    short.update(dict.fromkeys(self.gates.residency.misplaced_now(), left_ms))
                served = allowed
                if short:  # their rates are used up, or their keys out of reach: the others go on, and they when they may again
                    everyone = allowed if allowed is not None else self.shard.tenants_served()
                    served = [name for name in everyone if name not in short]
                got = await self.shard.fleet_poll(
                    queue,
                    tenants=served,
                    max=max,
                    wait_ms=_least(left_ms, *short.values()),
                    lease_ms=lease_ms,
                    caller=entered.caller,
                )
                failure = None
                if got and self.shard.data_keys:
                    got, failure = await self._open_fleet(entered, got)
                for one in got:
                    self.gates.charge_fleet(one.tenant, queue, len(one.body))
                if got and wait_ms:
                    return await self._still_theirs(call, entered, queue, tenants, got)
                over = self.clock.monotonic_ms() - started_ms >= wait_ms
                if failure is not None and not got:
                    if over:
                        raise failure
                    continue
                if got or not short or over:
                    return got

    def _fleet_tenants(
        self, call: Call, principal: Principal, queue: str, tenants: list[str] | None
    ) -> list[str] | None:
        """Return the tenants that a fleet poll is about, None for all; raise Forbidden if one of those named is not allowed."""
        if tenants is not None:
            for name in tenants:
                self.gates.check(call, principal, name, "poll", queue)
            return tenants
        allowed = self.gates.authorizer.tenants_for(principal, "poll", queue)
        if allowed is not None:
            known = self.shard.tenants_served()
            allowed = [name for name in allowed if name in known]
            if not allowed:
                self.gates.check(call, principal, principal.tenant or "", "poll", queue)
        return allowed

    def _as_consumer(
        self,
        call: Call,
        entered: Entered,
        queue: str,
        allowed: list[str] | None,
        consumer: str | None,
        *,
        named: bool,
    ) -> list[str] | None:
        """Return the tenants that let one more consumer in; where the caller named them, raise if one does not.

        A fleet over all tenants is the platform's own and counts as nobody's consumer.
        """
        if allowed is None:
            return None
        served, let_in = self.shard.tenants_served(), []
        refusal: TenantqError | None = None
        for name in allowed:
            state = served.get(name)
            if state is not None and state.config.quotas.consumers_per_queue is not None:
                try:
                    self._check_in(call, entered.principal, state, queue, consumer, 0)
                except TenantqError as error:
                    refusal = error
                    continue
            let_in.append(name)
        if refusal is not None and (named or not let_in):
            self.gates.traces.refuse(call, entered.principal, refusal.tenant, "poll", queue, refusal)
            raise refusal
        return let_in

    async def _still_theirs(
        self, call: Call, entered: Entered, queue: str, tenants: list[str] | None, got: list[Delivery]
    ) -> list[Delivery]:
        """Return what a fleet that waited may still have of what was leased for it, and put the rest back."""
        async with self._else_put_back(got, entered):
            entered.principal = await self.gates.identify(call, "poll")
            allowed = self._fleet_tenants(call, entered.principal, queue, tenants)
        if allowed is None:
            return got
        lost = [one for one in got if one.tenant not in allowed]
        await self._put_back(lost, entered)
        return [one for one in got if one.tenant in allowed]

    async def _open_fleet(self, entered: Entered, got: list[Delivery]) -> tuple[list[Delivery], TenantqError | None]:
        """Return what a fleet can have in plain, and what stood against the rest. Tenants whose keys cannot be had are left alone."""
        failure: TenantqError | None = None
        theirs: dict[str, list[Delivery]] = {}
        for one in got:
            if one.sealed:
                theirs.setdefault(one.tenant, []).append(one)
        opened: dict[str, Delivery] = {}
        for tenant, ones in theirs.items():
            try:
                opened.update({one.receipt: one for one in await self._opened(entered, ones)})
            except TenantqError as error:
                failure = error
                self._vault().rest(tenant)
        return [
            one if not one.sealed else opened[one.receipt] for one in got if not one.sealed or one.receipt in opened
        ], failure


def _check_tenants(tenants: object) -> None:
    if tenants is None:
        return
    if not isinstance(tenants, list | tuple) or not 1 <= len(tenants) <= limits.FLEET_TENANTS_MAX:
        raise wrong_tenants()
    if not all(type(name) is str for name in tenants):
        raise Invalid("tenants: a name is text")


def wrong_tenants() -> Invalid:
    """Return what is told of a fleet poll that names no tenant, or too many."""
    return Invalid(f"tenants: must be a list of 1 to {limits.FLEET_TENANTS_MAX} names; leave it out to mean all")


def _least(*waits_ms: int) -> int:
    return max(0, min(waits_ms))
