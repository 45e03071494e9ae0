"""Fleet polls: lease messages of one queue name in every tenant that the caller may poll."""

from __future__ import annotations

from tenantq.domain import limits
from tenantq.domain.access import Principal
from tenantq.domain.message import Delivery, check_poll
from tenantq.domain.names import check_queue_name
from tenantq.engine.polls import Poll
from tenantq.engine.queue_state import TenantState, is_home
from tenantq.engine.shard import Shard
from tenantq.errors import Invalid, TenantqError
from tenantq.runtime.clock import Clock
from tenantq.service.admission import Admission, charge_of
from tenantq.service.admitted_call import AdmittedCall
from tenantq.service.call import Call
from tenantq.service.deliveries import Deliveries
from tenantq.service.encryption import MessageEncryption
from tenantq.service.messages import check_consumer


class FleetPolls:
    """Polls for workers that serve many tenants."""

    def __init__(
        self, shard: Shard, admission: Admission, clock: Clock, deliveries: Deliveries, encryption: MessageEncryption
    ) -> None:
        self._shard, self._admission, self._clock = shard, admission, clock
        self._deliveries, self._encryption = deliveries, encryption
        self._debts: dict[tuple[str, str], None] = {}  # tenants and queues whose rate limit fleets have used up

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
        """Lease messages of one queue name in every tenant the caller may poll, or in those named."""
        check_queue_name(queue)
        check_poll(max, wait_ms, lease_ms)
        check_consumer(consumer)
        check_tenants(tenants)
        started_ms = self._clock.monotonic_ms()
        principal = await self._admission.identify(call, "poll")
        allowed = self._allowed_tenants(call, principal, queue, tenants)
        with await self._admission.admit_fleet(call, principal) as admitted:
            admitted.park()
            allowed = self._admit_consumer(call, admitted, queue, allowed, consumer, named=tenants is not None)
            while True:
                left_ms = wait_ms - (self._clock.monotonic_ms() - started_ms) if wait_ms else 0
                excluded = self._excluded_tenants(call, queue, left_ms)
                served = allowed
                if excluded:
                    everyone = allowed if allowed is not None else self._shard.state.catalog.tenants
                    served = [name for name in everyone if name not in excluded]
                state, left_ms = self._shard.state, _least(left_ms, *excluded.values())
                ids = frozenset(state.catalog.tenant(name).id for name in served) if served is not None else None
                poll = Poll(
                    state.platform, admitted.caller, queue,
                    max=max, wait_ms=left_ms, lease_ms=lease_ms, is_fleet=True, allowed=ids,
                )  # fmt: skip
                got = await self._shard.submit(poll)
                failure = None
                if any(one.encrypted for one in got):
                    got, failure = await self._open(admitted, got)
                if admitted.span is not None:
                    admitted.span.link(got)
                self._admission.charge_principal(admitted, "read", len(got), sum(len(one.body) for one in got))
                for one in got:
                    self._charge(one.tenant, queue, len(one.body))
                for name in {one.tenant for one in got}:
                    self._admission.note_worker(call, admitted.principal, name, queue, consumer, wait_ms)
                if got and wait_ms:
                    return await self._keep_allowed(call, admitted, queue, tenants, got)
                over = self._clock.monotonic_ms() - started_ms >= wait_ms
                if failure is not None and not got:
                    if over:
                        raise failure
                    continue
                if got or not excluded or over:
                    return got

    def _allowed_tenants(
        self, call: Call, principal: Principal, queue: str, tenants: list[str] | None
    ) -> list[str] | None:
        """Return the tenants to poll, None for all. Raises Forbidden if one of those named is not allowed."""
        if tenants is not None:
            for name in tenants:
                self._admission.authorize_principal(call, principal, name, "poll", queue)
            return tenants
        allowed = self._admission.authorizer.tenants_for(principal, "poll", queue)
        if allowed is not None:
            known = self._shard.state.catalog.tenants
            allowed = [name for name in allowed if name in known]
            if not allowed:
                self._admission.authorize_principal(call, principal, principal.tenant or "", "poll", queue)
        return allowed

    def _admit_consumer(
        self,
        call: Call,
        admitted: AdmittedCall,
        queue: str,
        allowed: list[str] | None,
        consumer: str | None,
        *,
        named: bool,
    ) -> list[str] | None:
        """Return the tenants whose quota admits one more consumer; raise if the caller named one that does not.

        A fleet over all tenants belongs to the platform and counts as no tenant's consumer.
        """
        if allowed is None:
            return None
        served, admitting = self._shard.state.catalog.tenants, []
        refusal: TenantqError | None = None
        for name in allowed:
            state = served.get(name)
            if state is not None and state.config.quotas.consumers_per_queue is not None:
                try:
                    self._admission.admit_consumer(call, admitted.principal, state, queue, consumer, 0)
                except TenantqError as error:
                    refusal = error
                    continue
            admitting.append(name)
        if refusal is not None and (named or not admitting):
            self._admission.notes.note_refusal(call, admitted.principal, refusal.tenant, "poll", queue, refusal)
            raise refusal
        return admitting

    def _excluded_tenants(self, call: Call, queue: str, left_ms: int) -> dict[str, int]:
        """Return the tenants to leave out for now, and for how many milliseconds.

        Their rate limit is used up, their keys are not available, or they do not allow the region of the shard or of the server
        that was called.
        """
        excluded: dict[str, int] = {}
        for tenant, name in list(self._debts):
            state = self._shard.state.catalog.tenants.get(tenant)
            wait_ms = self._wait_ms(state, name) if state is not None else 0
            if not wait_ms:
                del self._debts[tenant, name]
            elif name == queue:
                excluded[tenant] = wait_ms
        excluded.update(self._encryption.excluded())
        excluded.update(dict.fromkeys(self._admission.residency.excluded(call.entry_region), left_ms))
        return excluded

    def _charge(self, tenant: str, queue: str, size: int) -> None:
        """Charge a tenant for a message that a fleet leased."""
        state = self._shard.state.catalog.tenants.get(tenant)
        if state is not None:
            home_rates = self._admission.home_rates
            self._admission.rates.charge(charge_of(state, queue, "read", 1, size))
            if home_rates is not None and not is_home(state):
                home_rates.charge(state, "read", 1, size)
                self._debts[tenant, queue] = None  # checked by the next poll
            if self._wait_ms(state, queue):
                self._debts[tenant, queue] = None

    def _wait_ms(self, state: TenantState, queue: str) -> int:
        """Return how long the limits of a tenant and its queue admit nothing."""
        here = self._admission.rates.wait_ms(charge_of(state, queue, "read", 1, 0))
        home_rates = self._admission.home_rates
        return max(here, home_rates.wait_ms(state, "read")) if home_rates is not None and not is_home(state) else here

    async def _keep_allowed(
        self, call: Call, admitted: AdmittedCall, queue: str, tenants: list[str] | None, got: list[Delivery]
    ) -> list[Delivery]:
        """Return the messages that the caller may still have after waiting, and release the others."""
        with self._deliveries.released_on_failure(got, admitted):
            admitted.principal = await self._admission.identify(call, "poll")
            allowed = self._allowed_tenants(call, admitted.principal, queue, tenants)
        if allowed is None:
            return got
        self._deliveries.release([one for one in got if one.tenant not in allowed], admitted)
        return [one for one in got if one.tenant in allowed]

    async def _open(self, admitted: AdmittedCall, got: list[Delivery]) -> tuple[list[Delivery], TenantqError | None]:
        """Return the messages that can be decrypted, and the last error of the others. Tenants that failed are left out for a while."""
        failure: TenantqError | None = None
        by_tenant: dict[str, list[Delivery]] = {}
        for one in got:
            if one.encrypted:
                by_tenant.setdefault(one.tenant, []).append(one)
        decrypted: dict[str, Delivery] = {}
        for tenant, encrypted in by_tenant.items():
            try:
                decrypted.update({one.receipt: one for one in await self._deliveries.decrypt(admitted, encrypted)})
            except TenantqError as error:
                failure = error
                self._encryption.exclude_briefly(tenant)
        delivered = (decrypted.get(one.receipt) if one.encrypted else one for one in got)
        return [one for one in delivered if one is not None], failure


def check_tenants(tenants: object) -> None:
    """Raise Invalid unless a fleet poll may name these tenants."""
    if tenants is None:
        return
    if not isinstance(tenants, list | tuple) or not 1 <= len(tenants) <= limits.FLEET_TENANTS_MAX:
        raise wrong_tenants()
    if not all(type(name) is str for name in tenants):
        raise Invalid("tenants: names must be text")


def wrong_tenants() -> Invalid:
    """Return the error for a fleet poll that names no tenant, or too many."""
    return Invalid(f"tenants: must be a list of 1 to {limits.FLEET_TENANTS_MAX} names. Omit it for all tenants.")


def _least(*waits_ms: int) -> int:
    return max(0, min(waits_ms))
