"""Admission: authenticate, authorize, check residency, charge the rate limit, take a slot. Refused calls are noted in the journal."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from tenantq.domain.access import Grant, KeyUse, Principal
from tenantq.domain.message import SYSTEM, Caller
from tenantq.domain.names import DEFAULT_TENANT, check_queue_name
from tenantq.domain.rates import NO_LIMITS, Concurrency
from tenantq.engine.ops.access import NoteKeyUse
from tenantq.engine.ops.containment import ReleaseContainment
from tenantq.engine.queue_state import TenantState, is_home
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict, Forbidden, Invalid, NotFound, TenantMoved, TenantqError
from tenantq.gates.authenticate import Authenticator
from tenantq.gates.authorize import Authorizer
from tenantq.gates.certificate import CertificateMap
from tenantq.gates.charge import UNLIMITED, Charge, RateKind
from tenantq.gates.consumers import CONSUMER_CHARS_MAX, Consumers
from tenantq.gates.key_maker import KeyMaker
from tenantq.gates.rate_limit import RateLimits
from tenantq.gates.signature import Signatures
from tenantq.gates.slots import SlotKind, Slots
from tenantq.gates.ticket import Ticket
from tenantq.gates.worker_registry import WorkerRegistry
from tenantq.runtime.clock import Clock, Timer
from tenantq.service.admitted_call import AdmittedCall
from tenantq.service.audit_notes import AuditNotes
from tenantq.service.call import Call
from tenantq.service.gate_counters import GateCounters
from tenantq.service.gate_settings import GateSettings
from tenantq.service.home_rates import HomeRates
from tenantq.service.request_log import RequestLog
from tenantq.service.residency import CONTENT_ACTIONS, Residency

if TYPE_CHECKING:
    from tenantq.gates.json_web_token import JwtVerifier
    from tenantq.service.call_tracing import CallTracing

_CLEAN_UP_MS: Final = 1_000
_SETTLES: Final = frozenset(("ack", "nack", "release", "extend"))
_WORK: Final = _SETTLES | {"add", "poll"}
_PLATFORM: Final = ""  # owner of slots that belong to no tenant
_STORE_KEY_USES_EVERY: Final = 60  # clean-ups between two writes of when keys were last used


class Admission:
    """Applies the gates in one order for every transport."""

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
        strict_tenancy: bool = False,
        tracing: CallTracing | None = None,
    ) -> None:
        self._shard = shard
        self._tracing = tracing
        self._strict_tenancy = strict_tenancy
        self._clock = clock
        self.in_background = background
        self.authenticator = Authenticator(
            shard.state.access,
            clock,
            jwt,
            certificates,
            anonymous_default=settings.anonymous_default and not strict_tenancy,
        )
        self.keys = keys if keys is not None else KeyMaker.temporary()
        self.signatures = Signatures(self.authenticator, self.keys, clock)
        self.authorizer = Authorizer(shard.state.access, clock)
        self.rates = RateLimits(clock)
        self.home_rates: HomeRates | None = None  # of tenants whose home is another shard
        self.slots = Slots(
            clock,
            server_requests=settings.server_requests,
            connection_requests=settings.connection_requests,
            waiting_per_tenant=settings.waiting_per_tenant,
            wait_ms=settings.slot_wait_ms,
        )
        self.consumers = Consumers(clock, idle_ms=settings.consumer_idle_ms)
        self.workers = WorkerRegistry(clock, settings.consumer_idle_ms)
        self.residency = Residency(shard)
        self.counters = GateCounters()
        self._request_log = RequestLog(clock, settings.request_log, settings.request_log_per_second)
        self.notes = AuditNotes(shard, clock, settings, background, self.counters, self._request_log, tracing)
        self.signals = self.notes.signals
        self._clean_ups = 0
        self._is_releasing = False  # containments whose time is over
        self._timer: Timer | None = clock.call_later(_CLEAN_UP_MS, self._clean_up)

    async def close(self) -> None:
        """Write pending notes to the journal and stop the periodic clean-up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.write_notes()

    async def write_notes(self) -> None:
        """Write pending notes to the journal."""
        self.notes.flush()
        await self._store_key_uses()

    # ---- authenticate ----

    async def identify(self, call: Call, action: str) -> Principal:
        """Return the caller's principal; raise Unauthenticated, and note it, if the credential is not valid."""
        principal = self.authenticator.cached(call.bearer, call.certificate)
        if principal is None:
            with self.notes.noting_refusal(call, None, None, action):
                principal = await self.authenticator.authenticate(call.bearer, call.certificate)
        self._watch_key(principal, call)
        return principal

    def _watch_key(self, principal: Principal, call: Call) -> None:
        if principal.id.startswith("key:"):
            self.signals.key_used(principal.id, principal.tenant or "", call.remote)

    # ---- authorize ----

    async def authorize(self, call: Call, tenant: str | None, action: str, queue: str | None) -> None:
        """Raise, and note it, if the caller may not make this call. Nothing is charged and no slot is taken.

        Transports call it before they do expensive work for a request or describe what is wrong with it. ``tenant`` None means
        the credential's own tenant, an empty one the platform.
        """
        principal = await self.identify(call, action)
        self.authorize_principal(
            call, principal, tenant if tenant is not None else own_tenant(principal), action, queue
        )

    def authorize_principal(
        self, call: Call, principal: Principal, tenant: str, action: str, queue: str | None
    ) -> None:
        """Raise Forbidden, and note it, unless the principal may do this; Conflict if the shard's region rules it out."""
        with self.notes.noting_refusal(call, principal, tenant, action, queue):
            self._check_tenancy(principal, tenant, action)
            self.authorizer.check(principal, tenant, action, queue)
            if action in CONTENT_ACTIONS:
                self._check_residency(call, tenant)

    def _check_tenancy(self, principal: Principal, tenant: str, action: str) -> None:
        """Under strict tenancy, raise Invalid for work in the default tenant by callers who do not belong to it.

        Calls that name no tenant end up there.
        """
        self._shard.state.catalog.check_here(tenant)  # before grants, which moved with the tenant
        if self._strict_tenancy and tenant == DEFAULT_TENANT != principal.tenant and action in _WORK:
            raise Invalid(
                "tenant: missing. This server has strict_tenancy: name a tenant, or use a credential of one.",
                tenant=tenant,
            )

    def _check_residency(self, call: Call, tenant: str) -> None:
        if self.residency.misplaced:
            self.residency.check(tenant)
        if call.entry_region is not None:
            self.residency.check_entry(tenant, call.entry_region)

    def check_residency_early(self, call: Call, tenant: str | None, action: str, queue: str | None) -> None:
        """Raise Conflict, and note it, before the body is read, if the caller is known to be authorized."""
        principal = self.authenticator.cached(call.bearer, call.certificate)
        if principal is None:
            return
        name = tenant if tenant is not None else own_tenant(principal)
        if name in self.residency.misplaced and self.authorizer.allowed(principal, name, action, queue):
            try:
                self.residency.check(name)
            except Conflict as error:
                self.notes.note_refusal(call, principal, name, action, queue, error)
                raise

    def check_may_grant(self, call: Call, admitted: AdmittedCall, action: str, grant: Grant) -> None:
        """Raise Forbidden, and note it, if the grant exceeds what its giver holds."""
        with self.notes.noting_refusal(call, admitted.principal, admitted.tenant, action):
            self.authorizer.check_may_grant(admitted.principal, admitted.tenant, grant)

    # ---- admit ----

    async def admit(
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
    ) -> AdmittedCall:
        """Admit a call through all gates. Raises the error of the gate that refuses it. ``tenant`` None means the credential's own."""
        started_us = since_us = self._clock.monotonic_us()
        principal = self.authenticator.cached(call.bearer, call.certificate)
        if principal is None:
            principal = await self.identify(call, action)
        else:
            self._watch_key(principal, call)
        name = tenant if tenant is not None else own_tenant(principal)
        paid: list[Charge] = []
        ticket: Ticket | None = None
        refund_home: Callable[[], None] | None = None
        waited = False
        try:
            _check_is_text(name)
            if action not in _SETTLES and (limited := self._charge_of_principal(principal, rate or "read", ops, size)):
                await self.rates.admit_within(limited, wait_ms)  # before authorization: denied calls count
                paid.append(limited)
            self._check_tenancy(principal, name, action)
            self.authorizer.check(principal, name, action, queue)
            state = self._shard.tenant(name)
            if action in CONTENT_ACTIONS:
                self._check_residency(call, name)
            if rate is not None:
                charge = charge_of(state, queue, rate, ops, size)
                if self.home_rates is not None and not is_home(state):
                    await self.home_rates.admit(state, rate, ops, size, wait_ms)
                    refund_home = partial(self.home_rates.charge, state, rate, -ops, -size)
                if wait_ms:
                    waited = self.rates.wait_ms(charge) > 0
                    await self.rates.admit_within(charge, wait_ms)  # before a slot is taken
                    paid.append(charge)
            ticket = self.slots.try_take(name, queue, slot, state.config.concurrency, call.connection)
            if ticket is None:
                waited = True
                ticket = await self.slots.take(name, queue, slot, state.config.concurrency, call.connection)
            if waited:
                since_us = self._count_wait(since_us)
            counters = state.counters
            admitted = AdmittedCall(
                call, principal, state, ticket, self._clock, counters.calls[action], since_us, action, queue,
                self._request_log,
            )  # fmt: skip
            if rate is not None and not wait_ms:
                self.rates.admit(charge)
                paid.append(charge)
            if waited:
                await self._authorize_again(call, admitted, action, queue)
        except BaseException as error:
            self._give_back(ticket, paid, refund_home, error)
            if isinstance(error, TenantqError):
                self.notes.note_refusal(call, principal, name, action, queue, error)
            raise
        self.counters.admitted[action] += 1
        if rate is not None:
            counters.rate_allowed += 1
            counters.rate_waited += waited
        if self._tracing is not None:
            admitted.start_span(self._tracing, started_us)
        return admitted

    def _count_wait(self, since_us: int) -> int:
        """Count the wait of a call since ``since_us``; return when it ended."""
        now_us = self._clock.monotonic_us()
        self.counters.waits.count(now_us - since_us)
        return now_us

    def _give_back(
        self,
        ticket: Ticket | None,
        paid: list[Charge],
        refund_home: Callable[[], None] | None,
        error: BaseException,
    ) -> None:
        """Release and refund a call that ``error`` refuses. What a contained principal pays for a denied call stays paid."""
        if ticket is not None:
            ticket.release()
        for one in paid:
            if one.owner == "tenant" or not isinstance(error, Forbidden):
                self.rates.refund(one)
        if refund_home is not None:
            refund_home()

    async def admit_queue(
        self, call: Call, tenant: str | None, action: str, queue: str, *, rate: RateKind | None = None, ops: int = 1
    ) -> AdmittedCall:
        """Check the queue's name, then admit the call."""
        check_queue_name(queue)
        return await self.admit(call, tenant, action, queue, rate=rate, ops=ops)

    async def admit_fleet(self, call: Call, principal: Principal) -> AdmittedCall:
        """Admit a poll over many tenants. It takes a slot of the credential's own tenant, or of the platform."""
        name = principal.tenant
        is_here = name is not None and (
            self.authenticator.other_shards is None or self.authenticator.other_shards.is_here(name)
        )
        with self.notes.noting_refusal(call, principal, own_tenant(principal), "poll"):
            if limited := self._charge_of_principal(principal, "read", 1, 0):
                self.rates.admit(limited)
            state = self._shard.tenant(name if is_here and name is not None else DEFAULT_TENANT)
            # The limits of tenants on other shards are unknown here.
            limits = state.config.concurrency if is_here else Concurrency()
            ticket = await self.slots.take(name or _PLATFORM, None, None, limits, call.connection)
        self.counters.admitted["poll"] += 1
        now_us = self._clock.monotonic_us()
        admitted = AdmittedCall(
            call, principal, state, ticket, self._clock, None, now_us, "poll", None, self._request_log
        )
        if self._tracing is not None:
            admitted.start_span(self._tracing, now_us)
        return admitted

    async def admit_platform(self, call: Call, action: str, tenant: str = "", *, grant: Grant | None = None) -> Caller:
        """Admit an action of the platform, on all tenants or on ``tenant``. ``grant`` is what the action would grant."""
        principal = await self.identify(call, action)
        with self.notes.noting_refusal(call, principal, tenant or None, action):
            _check_is_text(tenant)
            self._shard.state.catalog.check_here(tenant)
            self.authorizer.check(principal, tenant, action)
            if grant is not None:
                self.authorizer.check_may_grant(principal, tenant, grant)
        self.counters.admitted[action] += 1
        return call.caller(principal.id)

    async def admit_any(self, call: Call, action: str) -> Principal:
        """Admit every valid credential, for calls that concern no tenant and no secrets."""
        principal = await self.identify(call, action)
        self.counters.admitted[action] += 1
        return principal

    def admit_consumer(
        self, call: Call, principal: Principal, state: TenantState, queue: str, consumer: str | None, wait_ms: int
    ) -> None:
        """Count the caller as a consumer of the queue. Raises QuotaExceeded beyond the quota."""
        name = f"{principal.id} {consumer or call.remote}"
        if len(name) > CONSUMER_CHARS_MAX:
            name = sha256(name.encode()).hexdigest()
        self.consumers.note(state.name, queue, name, state.config.quotas.consumers_per_queue, wait_ms=wait_ms)
        self.note_worker(call, principal, state.name, queue, consumer, wait_ms)

    def note_worker(
        self, call: Call, principal: Principal, tenant: str, queue: str, consumer: str | None, wait_ms: int
    ) -> None:
        """Note that a worker polls a queue."""
        self.workers.note(tenant, queue, principal.id, consumer, call.remote, call.user_agent, wait_ms)

    async def confirm(self, call: Call, admitted: AdmittedCall, action: str, queue: str | None) -> None:
        """Raise, and note it, if a call that waited is not authorized any more."""
        with self.notes.noting_refusal(call, admitted.principal, admitted.tenant, action, queue):
            await self._authorize_again(call, admitted, action, queue)

    async def _authorize_again(self, call: Call, admitted: AdmittedCall, action: str, queue: str | None) -> None:
        """Raise if the credential, its grants or the tenant became invalid while the call waited."""
        if admitted.state.gone and not isinstance(
            error := self._shard.state.catalog.missing(admitted.tenant), TenantMoved
        ):
            raise error  # receipts of a tenant that has moved stay valid
        admitted.principal = await self.authenticator.authenticate(call.bearer, call.certificate)
        self.authorizer.check(admitted.principal, admitted.tenant, action, queue)

    # ---- rate limits ----

    def charge(self, admitted: AdmittedCall, queue: str, kind: RateKind, ops: int, size: int) -> None:
        """Charge a call for more than it paid on admission."""
        if self.home_rates is not None and not is_home(admitted.state):
            self.home_rates.charge(admitted.state, kind, ops, size)
        self.charge_here(admitted, queue, kind, ops, size)

    def charge_here(self, admitted: AdmittedCall, queue: str, kind: RateKind, ops: int, size: int) -> None:
        """Charge the limits of this shard only. If the tenant's home is another one, they are those of the queue."""
        self.rates.charge(charge_of(admitted.state, queue, kind, ops, size))
        self.charge_principal(admitted, kind, ops, size)

    async def take_at_home(self, admitted: AdmittedCall, kind: RateKind, most: int) -> int | None:
        """Take up to ``most`` operations of a tenant whose home is another shard; return how many. None: not limited there."""
        if self.home_rates is None or is_home(admitted.state):
            return None
        return await self.home_rates.take(admitted.state, kind, most)

    def charge_principal(self, admitted: AdmittedCall, kind: RateKind, ops: int, size: int) -> None:
        """Charge a principal that containment limits."""
        if limited := self._charge_of_principal(admitted.principal, kind, ops, size):
            self.rates.charge(limited)

    def refund(self, admitted: AdmittedCall, queue: str, kind: RateKind, ops: int, size: int) -> None:
        """Refund what was paid for work that was not done."""
        if self.home_rates is not None and not is_home(admitted.state):
            self.home_rates.charge(admitted.state, kind, -ops, -size)
        self.refund_here(admitted, queue, kind, ops, size)

    def refund_here(self, admitted: AdmittedCall, queue: str, kind: RateKind, ops: int, size: int) -> None:
        """Refund what the limits of this shard were charged."""
        self.rates.refund(charge_of(admitted.state, queue, kind, ops, size))
        if limited := self._charge_of_principal(admitted.principal, kind, ops, size):
            self.rates.refund(limited)

    def remaining(self, admitted: AdmittedCall, queue: str, kind: RateKind) -> int | None:
        """Return how many more operations the rate limits would admit now; None means any number."""
        left = self.rates.remaining(charge_of(admitted.state, queue, kind, 0, 0))
        if limited := self._charge_of_principal(admitted.principal, kind, 0, 0):
            own = self.rates.remaining(limited)
            return own if left is None or own is None else min(left, own)
        return left

    def _charge_of_principal(self, principal: Principal, kind: RateKind, ops: int, size: int) -> Charge | None:
        """Return a charge against the limit that containment sets for a principal; None if it has none."""
        ops_per_sec = self._shard.state.access.limit_of(principal, self._clock)
        home = self._shard.state.catalog.tenants.get(principal.tenant or "") if ops_per_sec is not None else None
        if ops_per_sec is not None and home is not None and home.part is not None:
            ops_per_sec = max(1, ops_per_sec // len(home.part.shards))  # each part admits its share
        return None if ops_per_sec is None else Charge.of_principal(principal.id, ops_per_sec, kind, ops, size)

    def forget_tenant(self, tenant: str) -> None:
        """Drop the state of a deleted tenant, so that a new one of the same name starts fresh."""
        self.rates.forget(tenant)
        self.consumers.forget(tenant)
        self.workers.forget(tenant)

    # ---- clean-up ----

    def _clean_up(self) -> None:
        self._timer = self._clock.call_later(_CLEAN_UP_MS, self._clean_up)
        self.slots.reconcile()
        self.rates.collect()
        self.consumers.collect()
        self.workers.collect()
        if self._shard.state.access.containments and not self._is_releasing:
            self._is_releasing = True
            self.in_background(self._end_containments())
        self._clean_ups += 1
        if self._clean_ups % _STORE_KEY_USES_EVERY == 0:
            self.in_background(self._store_key_uses())

    async def _end_containments(self) -> None:
        """Release the containments whose time is over."""
        state, now = self._shard.state, self._clock.wall_ms()
        try:
            for _, one in list(state.access.containments.values()):
                owner = state.catalog.tenants.get(one.tenant)
                is_here = not one.tenant or (owner is not None and is_home(owner))  # else another shard does it
                if one.until <= now and is_here:
                    with suppress(NotFound):  # released meanwhile
                        await self._shard.submit(ReleaseContainment(state.platform, SYSTEM, one.id, "its time is over"))
        finally:
            self._is_releasing = False

    async def _store_key_uses(self) -> None:
        used = self.authenticator.last_used
        uses = {key_id: KeyUse(at, self.signals.places(f"key:{key_id}")) for key_id, at in used.items()}
        used.clear()
        if uses:
            await self._shard.submit(NoteKeyUse(self._shard.state.platform, SYSTEM, uses))


def own_tenant(principal: Principal) -> str:
    """Return the tenant that a call without one means: the credential's own, or the default tenant for the platform's."""
    return principal.tenant if principal.tenant is not None else DEFAULT_TENANT


def charge_of(state: TenantState, queue: str | None, kind: RateKind, ops: int, size: int) -> Charge:
    """Return a charge against the current limits of a tenant and its queue."""
    found = state.queues.get(queue) if queue is not None else None
    limits = found.config.limits if found is not None else NO_LIMITS
    own = state.config.limits if is_home(state) else NO_LIMITS  # elsewhere they are charged at home
    if own == NO_LIMITS == limits:
        return UNLIMITED
    return Charge.of(state.name, own, queue, limits, kind, ops, size)


def _check_is_text(name: object) -> None:
    if type(name) is not str:
        raise Invalid(f"tenant: must be text, not {type(name).__name__}")
