"""The gates in a row: authenticate, authorize, admit. Whoever is refused leaves a trace in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Self

import msgspec

from tenantq.access import KeyUse
from tenantq.errors import Conflict, Forbidden, Invalid, Limited, NotFound, TenantqError, Unauthenticated, Unavailable
from tenantq.gates.authenticate import Authenticator
from tenantq.gates.authorize import Authorizer
from tenantq.gates.consumers import Consumers
from tenantq.gates.key_maker import KeyMaker
from tenantq.gates.rate_limit import RateLimits
from tenantq.gates.refusals import CountedRefusal, Refusal, Refusals
from tenantq.gates.signals import Alert, Signals, SignalSettings, check_signals
from tenantq.gates.signature import ALGORITHM, Signatures
from tenantq.gates.slots import Slots
from tenantq.journal.record import Entry
from tenantq.message import Caller, check_int
from tenantq.names import DEFAULT_TENANT, PROBE_TENANTS
from tenantq.rates import Concurrency
from tenantq.service.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from tenantq.access import Grant, Principal
    from tenantq.clock import Clock, Timer
    from tenantq.engine.queue_state import TenantState
    from tenantq.engine.shard import Shard
    from tenantq.gates.certificate import CertificateMap
    from tenantq.gates.json_web_token import JwtVerifier
    from tenantq.gates.slots import SlotKind, Ticket
    from tenantq.histogram import Histogram
    from tenantq.service.call import Call

RateKind = Literal["read", "write"]
_HOUSEKEEPING_MS = 1_000
_NAME_SHOWN_CHARS = 40
_PLATFORM: Final = ""  # whose places are no tenant's
_NOTE_USE_EVERY = 60  # rounds of housekeeping between two writes of when keys were used

MOVES_CONTENTS: Final = frozenset(("add", "poll", "import"))
"""What a tenant may not do on a shard whose region it does not allow."""


class GateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bounds of the gates that are the server's, not a tenant's."""

    server_requests: int = 10_000  # in flight at one time
    connection_requests: int = 256  # in flight on one connection
    waiting_per_tenant: int = 1_000  # requests of a tenant that may wait for a place
    slot_wait_ms: int = 5_000  # how long they may
    consumer_idle_ms: int = 60_000  # who has not polled for this long is no consumer any more
    refusal_rows_per_second: int = 20  # refused calls of a tenant that are journaled one by one; the rest with a count
    anonymous_default: bool = False  # callers without a credential may use the tenant 'default'
    signals: SignalSettings = SignalSettings()


_RANGES: Final[dict[str, tuple[int, int]]] = {
    "server_requests": (1, 1_000_000),
    "connection_requests": (1, 1_000_000),
    "waiting_per_tenant": (0, 1_000_000),
    "slot_wait_ms": (0, 600_000),
    "consumer_idle_ms": (1_000, 86_400_000),
    "refusal_rows_per_second": (1, 1_000_000),
}


def check_gates(settings: GateSettings) -> GateSettings:
    """Return ``settings`` if each is in its range, else raise Invalid naming the field, the value and the range."""
    for field, (low, high) in _RANGES.items():
        check_int(f"gates.{field}", getattr(settings, field), low, high)
    check_signals(settings.signals, "gates.signals")
    return settings


class Entered:
    """A call that passed the gates. Leave it when the call is done; ``with entered:`` does so in any case."""

    __slots__ = ("_clock", "_since_us", "_took", "caller", "principal", "state", "tenant", "ticket")

    def __init__(
        self,
        principal: Principal,
        state: TenantState,
        caller: Caller,
        ticket: Ticket,
        clock: Clock,
        took: Histogram | None,
        since_us: int,
    ) -> None:
        self.principal = principal
        self.state = state  # of the tenant
        self.tenant = state.name
        self.caller = caller
        self.ticket = ticket
        self._clock = clock
        self._took = took  # where to count how long it took; None: it is not measured, or was
        self._since_us = since_us

    def park(self) -> None:
        """Let others have its place: from here on it only waits, and what it waits is not counted."""
        self._count()
        self.ticket.park()

    def _count(self) -> None:
        took, self._took = self._took, None
        if took is not None:
            took.count(self._clock.monotonic_us() - self._since_us)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._count()
        self.ticket.release()


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
        self.note_entries: Callable[[list[Entry]], Coroutine[Any, Any, None]] = shard.note_entries
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
        self.refusals = Refusals(clock, self._write_refusals, rows_per_second=settings.refusal_rows_per_second)
        self.looks = Refusals(clock, self._write_refusals, rows_per_second=settings.refusal_rows_per_second)
        self.signals = Signals(clock, settings.signals, self.raise_alert)
        self.signals.import_places({f"key:{id}": use.places for id, use in shard.access.uses().items()})
        self.tally = Tally()
        self._fleet_debts: dict[
            tuple[str, str], None
        ] = {}  # tenants and queues that fleets have to leave alone for now
        self.misplaced: frozenset[str] = frozenset()  # tenants that did not allow this shard's region when it started
        self._turns = 0
        self._timer: Timer | None = clock.call_later(_HOUSEKEEPING_MS, self._keep_house)

    async def close(self) -> None:
        """Journal what was held back, and stop the housekeeping."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.refusals.flush()
        self.looks.flush()
        await self._note_uses()

    # ---- the way in ----

    async def identify(self, call: Call, action: str) -> Principal:
        """Return who calls, or raise and note the refusal."""
        principal = self.authenticator.cached(call.bearer, call.certificate)
        if principal is None:
            try:
                principal = await self.authenticator.authenticate(call.bearer, call.certificate)
            except TenantqError as error:
                self.refuse(call, None, None, action, None, error)
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
            if self.misplaced and action in MOVES_CONTENTS:
                self.check_placed(name)
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
                self.refuse(call, principal, name, action, queue, error)
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
            self.refuse(call, entered.principal, entered.tenant, action, queue, error)
            raise

    def check(self, call: Call, principal: Principal, tenant: str, action: str, queue: str | None) -> None:
        """Raise Forbidden, and note it, unless the principal may do this; Conflict, if nobody may where the tenant is."""
        try:
            self.authorizer.check(principal, tenant, action, queue)
            if action in MOVES_CONTENTS:
                self.check_placed(tenant)
        except TenantqError as error:
            self.refuse(call, principal, tenant, action, queue, error)
            raise

    def mind_regions(self) -> None:
        """Refuse from now on what moves contents of tenants that do not allow the region of this shard."""
        self.misplaced = frozenset(self._shard.tenants_served())
        self.misplaced = frozenset(self.misplaced_now())

    def misplaced_now(self) -> list[str]:
        """Return the tenants that do not allow the region of this shard. None joins them while it runs: such a change is refused."""
        return [name for name in self.misplaced if self._is_misplaced(name)]

    def _is_misplaced(self, tenant: str) -> bool:
        state = self._shard.tenants_served().get(tenant)
        regions = state.config.regions if state is not None else ()
        return bool(regions) and self._shard.settings.region not in regions

    def check_placed(self, tenant: str) -> None:
        """Raise Conflict for a tenant that must not be where it is: the region of its shard was changed."""
        if tenant in self.misplaced and self._is_misplaced(tenant):
            raise Conflict(
                f"the tenant does not allow the region of its shard, which is {self._shard.settings.region or 'none'}: "
                "change its regions, or move it to another server with tenantq migrate",
                tenant=tenant,
            )

    def check_early(self, call: Call, tenant: str, action: str, queue: str | None) -> None:
        """Raise Conflict, and note it, where that can be told before a body is read, to somebody who may know it already."""
        principal = self.authenticator.cached(call.bearer, call.certificate)
        if principal is not None and self.authorizer.allowed(principal, tenant, action, queue):
            try:
                self.check_placed(tenant)
            except Conflict as error:
                self.refuse(call, principal, tenant, action, queue, error)
                raise

    def check_may_grant(self, call: Call, entered: Entered, action: str, grant: Grant) -> None:
        """Raise Forbidden, and note it, if the grant holds more than its giver has."""
        try:
            self.authorizer.check_may_grant(entered.principal, entered.tenant, grant)
        except TenantqError as error:
            self.refuse(call, entered.principal, entered.tenant, action, None, error)
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
            self.refuse(call, principal, own_tenant(principal), "poll", None, error)
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
            self.refuse(call, principal, about or None, action, None, error)
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

    # ---- those who are refused ----

    def refuse(
        self,
        call: Call,
        principal: Principal | None,
        tenant: str | None,
        action: str,
        queue: str | None,
        error: TenantqError,
    ) -> None:
        """Count, journal and watch a call that was refused before the engine."""
        who = principal.id if principal is not None else "unknown"
        home = principal.tenant if principal is not None else None
        tenant = tenant if type(tenant) is str else None
        known = tenant if tenant is not None and tenant in self._shard.tenants_served() else home or ""
        self.refusals.note(
            Refusal(
                tenant=known,
                queue=queue or "",
                action=action,
                principal=who,
                remote=call.remote,
                request_id=call.request_id,
                user_agent=call.user_agent,
                outcome=_outcome(error),
                error_code=error.code,
                details=_whose(principal, tenant),
            )
        )
        self.tally.turn_away(action, error.code)
        if known and isinstance(error, Limited):
            self.tally.throttled[known] += 1
        if isinstance(error, Unauthenticated | Forbidden) and home not in PROBE_TENANTS:  # whose business that is
            self.signals.denied(who, known)
            if principal is not None and tenant is not None and tenant != home:
                self.signals.crossed(who, home or "", tenant)

    def note_look(self, call: Call, entered: Entered, action: str, queue: str, details: str) -> None:
        """Journal that somebody was shown contents without leasing them; what was leased is journaled by the engine."""
        self.looks.note(
            Refusal(
                tenant=entered.tenant,
                queue=queue,
                action=action,
                principal=entered.caller.principal,
                remote=call.remote,
                request_id=call.request_id,
                user_agent=call.user_agent,
                outcome="ok",
                error_code="",
                details=details,
            )
        )

    def note_failure(
        self, call: Call, caller: Caller, tenant: str, act: str, queue: str | None, error: TenantqError
    ) -> None:
        """Count and journal an act of somebody who was let in, that failed before it reached the engine."""
        self.refusals.note(
            Refusal(
                tenant=tenant,
                queue=queue or "",
                action=act,
                principal=caller.principal,
                remote=caller.remote,
                request_id=caller.request_id,
                user_agent=call.user_agent,
                outcome=_outcome(error),
                error_code=error.code,
            )
        )
        self.tally.turn_away(act, error.code)

    def forget_tenant(self, tenant: str) -> None:
        """Drop what is kept of a tenant that was deleted; one of the same name starts anew."""
        self.rates.forget(tenant)
        self.consumers.forget(tenant)
        self.tally.throttled.pop(tenant, None)

    def _write_refusals(self, refusals: list[CountedRefusal]) -> None:
        entries = [
            Entry(
                one.action, one.tenant, one.queue, one.principal, one.remote, one.request_id, outcome=one.outcome,
                error_code=one.error_code, details=one.details, count=one.count, user_agent=one.user_agent,
            )
            for one in refusals
        ]  # fmt: skip
        self.in_background(self.note_entries(entries))

    def raise_alert(self, alert: Alert) -> None:
        """Count and journal something that a person should look at."""
        self.tally.alerts[alert.kind] += 1
        details = f"{alert.severity}: {alert.details}"
        entry = Entry("alert", alert.tenant, "", alert.principal, outcome=alert.kind, details=details)
        self.in_background(self.note_entries([entry]))

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


def _whose(principal: Principal | None, tenant: str | None) -> str:
    """Return what the journal notes of a call that was not about the caller's own tenant."""
    if principal is None or tenant is None or principal.tenant == tenant:
        return ""
    home = principal.tenant if principal.tenant is not None else "the platform"
    return f"a credential of {home} asked for tenant {tenant[:_NAME_SHOWN_CHARS]!r}"


def _outcome(error: TenantqError) -> Literal["denied", "throttled", "refused"]:
    if isinstance(error, Unauthenticated | Forbidden):
        return "denied"
    if isinstance(error, Limited | Unavailable):
        return "throttled"
    return "refused"
