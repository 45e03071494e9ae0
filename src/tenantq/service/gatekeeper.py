"""The gates in a row: authenticate, authorize, admit. Whoever is refused leaves a trace in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from tenantq.domain.access import KeyUse
from tenantq.domain.message import Caller
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.domain.rates import Concurrency
from tenantq.errors import Conflict, Invalid, NotFound, TenantqError
from tenantq.gates.authenticate import Authenticator
from tenantq.gates.authorize import Authorizer
from tenantq.gates.consumers import Consumers
from tenantq.gates.key_maker import KeyMaker
from tenantq.gates.rate_limit import RateLimits
from tenantq.gates.signature import ALGORITHM, Signatures
from tenantq.gates.slots import Slots
from tenantq.service.audit_notes import AuditNotes
from tenantq.service.entered import Entered
from tenantq.service.residency import MOVES_CONTENTS, Residency
from tenantq.service.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tenantq.domain.access import Grant, Principal
    from tenantq.engine.shard import Shard
    from tenantq.gates.certificate import CertificateMap
    from tenantq.gates.json_web_token import JwtVerifier
    from tenantq.gates.slots import SlotKind
    from tenantq.runtime.clock import Clock, Timer
    from tenantq.service.call import Call
    from tenantq.service.gate_settings import GateSettings

RateKind = Literal["read", "write"]
_HOUSEKEEPING_MS = 1_000
_PLATFORM: Final = ""  # whose places are no tenant's
_NOTE_USE_EVERY = 60  # rounds of housekeeping between two writes of when keys were used


class Gatekeeper:
    """Applies the gates, in one order, for every transport."""

    def __init__(
        self,
        shard: Shard,
        clock: Clock,
        settings: GateSettings,
        background: Callable[[Coroutine[Any, Any, None]], None],
        *,
        jwt: JwtVerifier | None = None,
        certificates: CertificateMap | None = None,
        keys: KeyMaker | None = None,
    ) -> None:
        self._shard = shard
        self._clock = clock
        self.in_background = background
        self.authenticator = Authenticator(
            shard.access, clock, jwt, certificates, anonymous_default=settings.anonymous_default
        )
        self.keys = keys if keys is not None else KeyMaker.passing()
        self.signatures = Signatures(shard.access, self.keys, clock)
        self.authorizer = Authorizer(shard.access, clock)
        self.rates = RateLimits(clock)
        self.slots = Slots(
            clock,
            server_requests=settings.server_requests,
            connection_requests=settings.connection_requests,
            waiting_per_tenant=settings.waiting_per_tenant,
            wait_ms=settings.slot_wait_ms,
        )
        self.consumers = Consumers(clock, idle_ms=settings.consumer_idle_ms)
        self.residency = Residency(shard)
        self.tally = Tally()
        self.traces = AuditNotes(shard, clock, settings, background, self.tally)
        self.signals = self.traces.signals
        self._fleet_debts: dict[
            tuple[str, str], None
        ] = {}  # tenants and queues that fleets have to leave alone for now
        self._turns = 0
        self._timer: Timer | None = clock.call_later(_HOUSEKEEPING_MS, self._keep_house)

    async def close(self) -> None:
        """Journal what was held back, and stop the housekeeping."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.traces.flush()
        await self._note_uses()

    # ---- the way in ----

    async def identify(self, call: Call, action: str) -> Principal:
        """Return who calls, or raise and note the refusal."""
        principal = self.authenticator.cached(call.bearer, call.certificate)
        if principal is None:
            try:
                principal = await self.authenticator.authenticate(call.bearer, call.certificate)
            except TenantqError as error:
                self.traces.refuse(call, None, None, action, None, error)
                raise
        self._watch(principal, call)
        return principal

    def unproved_bearer(self, bearer: str | None) -> str | None:
        """Return the token that a signed request would prove to hold; any other bearer as it is. Whether it does, ``sign_in`` finds out."""
        scheme, _, key_id = (bearer or "").partition(" ")
        return self.keys.token_of(key_id) if scheme == ALGORITHM and key_id else bearer

    def _watch(self, principal: Principal, call: Call) -> None:
        if principal.id.startswith("key:"):
            self.signals.key_used(principal.id, principal.tenant or "", call.remote)

    async def enter(
        self,
        call: Call,
        tenant: str | None,
        action: str,
        queue: str | None = None,
        *,
        slot: SlotKind | None = None,
        rate: RateKind | None = None,
        ops: int = 1,
        size: int = 0,
        wait_ms: int = 0,
    ) -> Entered:
        """Let a call in, or raise why not. ``tenant`` None: the credential's own."""
        since_us = self._clock.monotonic_us()
        principal = self.authenticator.cached(call.bearer, call.certificate)
        if principal is None:
            principal = await self.identify(call, action)
        else:
            self._watch(principal, call)
        name = tenant if tenant is not None else own_tenant(principal)
        paid = None
        waited = False
        try:
            _check_is_text(name)
            self.authorizer.check(principal, name, action, queue)
            state = self._shard.tenant_state(name)
            if self.residency.misplaced and action in MOVES_CONTENTS:
                self.residency.check(name)
            if rate is not None:
                found = state.queues.get(queue) if queue is not None else None
                queue_limits = found.config.limits if found is not None else None
                bill = (name, state.config.limits, queue, queue_limits, rate, ops, size)
                if wait_ms:
                    waited = self.rates.wait_ms(*bill[:5]) > 0
                    await self.rates.admit_within(*bill, wait_ms=wait_ms)  # without a place: it only waits
                    paid = bill
            ticket = self.slots.try_take(name, queue, slot, state.config.concurrency, call.connection)
            if ticket is None:
                waited = True
                ticket = await self.slots.take(name, queue, slot, state.config.concurrency, call.connection)
            caller = Caller(principal.id, call.remote, call.request_id, call.user_agent)
            if waited:
                gone_us = self._clock.monotonic_us() - since_us
                self.tally.waited.count(gone_us)
                since_us += gone_us
            entered = Entered(principal, state, caller, ticket, self._clock, self.tally.took[action], since_us)
            try:
                if rate is not None and paid is None:
                    self.rates.admit(*bill)
                    paid = bill
                if waited:
                    await self._judge_again(call, entered, action, queue)
            except BaseException:
                ticket.release()
                raise
        except BaseException as error:
            if paid is not None:
                self.rates.give_back(*paid)
            if isinstance(error, TenantqError):
                self.traces.refuse(call, principal, name, action, queue, error)
            raise
        self.tally.let_in(action)
        return entered

    async def _judge_again(self, call: Call, entered: Entered, action: str, queue: str | None) -> None:
        """Raise what a call that had to wait is refused for by now: its credential, its grants or its tenant may have gone."""
        if entered.state.gone:
            raise NotFound("no such tenant", tenant=entered.tenant)
        entered.principal = await self.authenticator.authenticate(call.bearer, call.certificate)
        self.authorizer.check(entered.principal, entered.tenant, action, queue)

    async def confirm(self, call: Call, entered: Entered, action: str, queue: str | None) -> None:
        """Raise, and note it, if a call that waited may not have its answer any more."""
        try:
            await self._judge_again(call, entered, action, queue)
        except TenantqError as error:
            self.traces.refuse(call, entered.principal, entered.tenant, action, queue, error)
            raise

    def check(self, call: Call, principal: Principal, tenant: str, action: str, queue: str | None) -> None:
        """Raise Forbidden, and note it, unless the principal may do this; Conflict, if nobody may where the tenant is."""
        try:
            self.authorizer.check(principal, tenant, action, queue)
            if action in MOVES_CONTENTS:
                self.residency.check(tenant)
        except TenantqError as error:
            self.traces.refuse(call, principal, tenant, action, queue, error)
            raise

    async def judge(self, call: Call, tenant: str | None, action: str, queue: str | None) -> None:
        """Raise why a call would be refused for who makes it, and note that; it is not let in yet.

        For transports, before they do much with what a call brings, or tell what is wrong with it. ``tenant`` None: the credential's
        own; empty: the platform.
        """
        principal = await self.identify(call, action)
        self.check(call, principal, tenant if tenant is not None else own_tenant(principal), action, queue)

    def check_early(self, call: Call, tenant: str, action: str, queue: str | None) -> None:
        """Raise Conflict, and note it, where that can be told before a body is read, to somebody who may know it already."""
        principal = self.authenticator.cached(call.bearer, call.certificate)
        if principal is not None and self.authorizer.allowed(principal, tenant, action, queue):
            try:
                self.residency.check(tenant)
            except Conflict as error:
                self.traces.refuse(call, principal, tenant, action, queue, error)
                raise

    def check_may_grant(self, call: Call, entered: Entered, action: str, grant: Grant) -> None:
        """Raise Forbidden, and note it, if the grant holds more than its giver has."""
        try:
            self.authorizer.check_may_grant(entered.principal, entered.tenant, grant)
        except TenantqError as error:
            self.traces.refuse(call, entered.principal, entered.tenant, action, None, error)
            raise

    async def enter_fleet(self, call: Call, principal: Principal) -> Entered:
        """Let in a poll over many tenants. It is in flight on behalf of the credential's own tenant, or of the platform."""
        name = principal.tenant
        is_here = name is not None and (
            self.authenticator.elsewhere is None or self.authenticator.elsewhere.is_here(name)
        )
        try:
            state = self._shard.tenant_state(name if is_here and name is not None else DEFAULT_TENANT)
            limits = (
                state.config.concurrency if is_here else Concurrency()
            )  # of another shard's tenant nothing is known here
            ticket = await self.slots.take(name or _PLATFORM, None, None, limits, call.connection)
        except TenantqError as error:
            self.traces.refuse(call, principal, own_tenant(principal), "poll", None, error)
            raise
        self.tally.let_in("poll")
        caller = Caller(principal.id, call.remote, call.request_id, call.user_agent)
        return Entered(principal, state, caller, ticket, self._clock, None, 0)

    async def enter_platform(self, call: Call, action: str, about: str = "", *, grant: Grant | None = None) -> Caller:
        """Let an act of the platform in: one about all tenants, or about a tenant itself; or one that gives a grant away."""
        principal = await self.identify(call, action)
        try:
            _check_is_text(about)
            self.authorizer.check(principal, about, action)
            if grant is not None:
                self.authorizer.check_may_grant(principal, about, grant)
        except TenantqError as error:
            self.traces.refuse(call, principal, about or None, action, None, error)
            raise
        self.tally.let_in(action)
        return Caller(principal.id, call.remote, call.request_id, call.user_agent)

    async def enter_known(self, call: Call, action: str) -> Principal:
        """Let in whoever has a valid credential: for what is no tenant's and no secret among those."""
        principal = await self.identify(call, action)
        self.tally.let_in(action)
        return principal

    def charge(self, entered: Entered, queue: str, kind: RateKind, ops: int, size: int) -> None:
        """Charge what a call turned out to use beyond what it paid on entering."""
        found = entered.state.queues.get(queue)
        limits = found.config.limits if found is not None else None
        self.rates.charge(entered.tenant, entered.state.config.limits, queue, limits, kind, ops, size)

    def left(self, entered: Entered, queue: str, kind: RateKind) -> int | None:
        """Return how many more operations the rate limits would let through now; None: any number."""
        found = entered.state.queues.get(queue)
        limits = found.config.limits if found is not None else None
        return self.rates.left(entered.tenant, entered.state.config.limits, queue, limits, kind)

    def charge_fleet(self, tenant: str, queue: str, size: int) -> None:
        """Charge a tenant for a message that a fleet took of it."""
        state = self._shard.tenants_served().get(tenant)
        if state is not None:
            found = state.queues.get(queue)
            limits = found.config.limits if found is not None else None
            self.rates.charge(tenant, state.config.limits, queue, limits, "read", 1, size)
            if self.rates.wait_ms(tenant, state.config.limits, queue, limits, "read"):
                self._fleet_debts[tenant, queue] = None

    def short_for_fleets(self, queue: str) -> dict[str, int]:
        """Return the tenants of which fleets took as much of a queue as their rate allows, and how long each needs, in ms."""
        short: dict[str, int] = {}
        for tenant, name in list(self._fleet_debts):
            state = self._shard.tenants_served().get(tenant)
            found = state.queues.get(name) if state is not None else None
            wait = 0
            if state is not None and found is not None:
                wait = self.rates.wait_ms(tenant, state.config.limits, name, found.config.limits, "read")
            if not wait:
                del self._fleet_debts[tenant, name]
            elif name == queue:
                short[tenant] = wait
        return short

    def give_back(self, entered: Entered, queue: str, kind: RateKind, ops: int, size: int) -> None:
        """Give back what was paid for work that the engine refused."""
        found = entered.state.queues.get(queue)
        limits = found.config.limits if found is not None else None
        self.rates.give_back(entered.tenant, entered.state.config.limits, queue, limits, kind, ops, size)

    def forget_tenant(self, tenant: str) -> None:
        """Drop what is kept of a tenant that was deleted; one of the same name starts anew."""
        self.rates.forget(tenant)
        self.consumers.forget(tenant)
        self.tally.throttled.pop(tenant, None)

    # ---- housekeeping ----

    def _keep_house(self) -> None:
        self._timer = self._clock.call_later(_HOUSEKEEPING_MS, self._keep_house)
        self.slots.reconcile()
        self.rates.collect()
        self.consumers.collect()
        self._turns += 1
        if self._turns % _NOTE_USE_EVERY == 0:
            self.in_background(self._note_uses())

    async def _note_uses(self) -> None:
        used = self.authenticator.last_used
        uses = {key_id: KeyUse(at, self.signals.places(f"key:{key_id}")) for key_id, at in used.items()}
        used.clear()
        await self._shard.note_key_use(uses)


def own_tenant(principal: Principal) -> str:
    """Return the tenant that a call without one means: the credential's, or the default one for the platform's."""
    return principal.tenant if principal.tenant is not None else DEFAULT_TENANT


def _check_is_text(name: object) -> None:
    if type(name) is not str:
        raise Invalid(f"tenant: a name is text, not {type(name).__name__}")
