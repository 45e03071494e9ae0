"""The work: adding, polling, settling. Each call passes the gates, then asks the engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from hashlib import sha256
from typing import TYPE_CHECKING

from tenantq import limits
from tenantq.engine.ops.settle import OK, parse_receipt
from tenantq.engine.shard import check_poll
from tenantq.errors import Conflict, Invalid, NotFound, SealBroken, TenantqError
from tenantq.gates.consumers import CONSUMER_CHARS_MAX
from tenantq.message import Delivery, NewMessage, Result, check_batch, check_text
from tenantq.names import FIFO_SUFFIX, check_queue_name
from tenantq.service.call import Call
from tenantq.service.finding import Finding
from tenantq.service.reasons import label_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tenantq.access import Principal
    from tenantq.engine.queue_state import TenantState
    from tenantq.message import Added, Outcome
    from tenantq.service.entered import Entered


log = logging.getLogger("tenantq")


class Service(Finding):
    """One object for all transports. Whatever a caller can cause is raised as a TenantqError."""

    # ---- producing ----

    async def add(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        messages: Sequence[NewMessage | TenantqError],
        key: str | None = None,
    ) -> list[Added]:
        """Add messages; one answer per message, in order. An error in place of a message keeps its place.

        The same batch again under the same ``key`` adds nothing again.
        """
        check_queue_name(queue)
        check_batch("messages", messages)
        sizes = [len(one.body) if isinstance(one, NewMessage) and type(one.body) is bytes else 0 for one in messages]
        entered = await self.gates.enter(
            call, tenant, "add", queue, slot="add", rate="write", ops=len(messages), size=sum(sizes)
        )
        with entered:
            try:
                with self._noting(call, entered.caller, entered.tenant, "add", queue):
                    self._check_journal(entered.tenant, queue)
                added = await self._add(entered, queue, messages, key)
            except TenantqError:
                self.gates.give_back(entered, queue, "write", len(messages), sum(sizes))
                raise
            refused = [size for one, size in zip(added, sizes, strict=True) if one.error is not None]
            if refused:
                self.gates.give_back(entered, queue, "write", len(refused), sum(refused))
            return added

    async def _add(
        self, entered: Entered, queue: str, messages: Sequence[NewMessage | TenantqError], key: str | None
    ) -> list[Added]:
        """Have the engine add messages: encrypted where the tenant's are."""
        state = entered.state
        digests: tuple[bytes, ...] = ()
        given = messages
        if not state.config.encryption.enabled:
            if self._sealing is not None and state.id in self.shard.data_keys:
                known = await self._sealing.recognise(state, messages, key)
                given, digests = known.messages, known.digests
            try:
                return await self.shard.add(
                    entered.tenant, queue, given, entered.caller, batch_key=key, batch_digests=digests
                )
            except Conflict:
                if not state.config.encryption.enabled:
                    raise  # otherwise it was switched on while they stood in line
        with self._noting_keys(entered, "add", queue):
            batch = await self._vault().seal_messages(state, queue, messages, key)
        return await self.shard.add(
            entered.tenant, queue, batch.messages, entered.caller, batch_key=key, batch_digests=batch.digests,
            sealed_plain=batch.plain,
        )  # fmt: skip

    @contextlib.contextmanager
    def _noting_keys(self, entered: Entered, act: str, queue: str) -> Iterator[None]:
        """Have the journal tell of a call that failed for want of a key."""
        with self._noting(Call(user_agent=entered.caller.user_agent), entered.caller, entered.tenant, act, queue):
            yield

    # ---- consuming ----

    async def poll(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        *,
        max: int = 1,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        consumer: str | None = None,
        give_back: bool = False,
        whole_groups: bool = False,
    ) -> list[Delivery]:
        """Lease up to ``max`` messages; wait for the first up to ``wait_ms``, for the rate limit too.

        With ``give_back`` each delivery is over as soon as it is made, and counts: the next poll may have the message again.
        With ``whole_groups``, several of one group where there is room.
        """
        check_poll(queue, max, wait_ms, lease_ms)
        _check_consumer(consumer)
        started_ms = self.clock.monotonic_ms()
        entered = await self.gates.enter(call, tenant, "poll", queue, slot="poll", rate="read", wait_ms=wait_ms)
        with entered:
            try:
                self._note_consumer(call, entered, queue, consumer, wait_ms)
                found = entered.state.queues.get(queue)
                left_ms = wait_ms - (self.clock.monotonic_ms() - started_ms) if wait_ms else 0
                got: list[Delivery] = []
                if left_ms <= 0 or found is None or found.ready > 0:
                    got = await self._poll_now(entered, queue, max, lease_ms, whole_groups=whole_groups)
                if not got and left_ms > 0:
                    entered.park()  # from here on it only waits: others may have its place
                    got = await self._poll_later(
                        call, entered, queue, max, left_ms, lease_ms, whole_groups=whole_groups
                    )
            except TenantqError:
                self.gates.give_back(entered, queue, "read", 1, 0)
                raise
            if got and give_back:
                receipts = [one.receipt for one in got]
                with contextlib.suppress(NotFound):  # the queue went meanwhile
                    await self.shard.nack(entered.tenant, queue, receipts, delay_ms=0, caller=entered.caller)
            return got

    async def _poll_now(
        self, entered: Entered, queue: str, max: int, lease_ms: int | None, *, whole_groups: bool
    ) -> list[Delivery]:
        """Lease what is there and within the rate limits. All that may be used is taken beforehand, the rest given back."""
        left = self.gates.left(entered, queue, "read")
        extra = 0  # beside the one that was paid on entering
        if left is not None:
            max = _within(max, left)
            extra = max - 1
            self.gates.charge(entered, queue, "read", extra, 0)
        used = 0
        try:
            got = await self.shard.poll(
                entered.tenant, queue, max=max, lease_ms=lease_ms, whole_groups=whole_groups, caller=entered.caller
            )
            if got and entered.state.id in self.shard.data_keys:
                got = await self._opened(entered, got)
            used = len(got) - 1 if got else 0
        finally:
            if extra > used:
                self.gates.give_back(entered, queue, "read", extra - used, 0)
        self.gates.charge(entered, queue, "read", 0, sum(len(one.body) for one in got))
        return got

    async def _poll_later(
        self,
        call: Call,
        entered: Entered,
        queue: str,
        max: int,
        wait_ms: int,
        lease_ms: int | None,
        *,
        whole_groups: bool,
    ) -> list[Delivery]:
        """Wait for messages; hand them out only if the caller may still have them."""
        left = self.gates.left(entered, queue, "read")
        if left is not None:
            max = _within(max, left)
        got = await self.shard.poll(
            entered.tenant, queue, max=max, wait_ms=wait_ms, lease_ms=lease_ms, whole_groups=whole_groups,
            caller=entered.caller,
        )  # fmt: skip
        if got:
            try:
                await self.gates.confirm(call, entered, "poll", queue)
            except TenantqError:
                await self._put_back(got, entered)
                raise
            if entered.state.id in self.shard.data_keys:
                got = await self._opened(entered, got)
            self.gates.charge(entered, queue, "read", len(got) - 1, sum(len(one.body) for one in got))
        return got

    async def _opened(self, entered: Entered, got: list[Delivery]) -> list[Delivery]:
        """Return leased messages of one tenant in plain. Where the keys cannot be had, all are released, without an attempt used.

        One that is broken is given back as failed, so that it ends among the dead letters and holds nobody up.
        """
        try:
            with self._noting_keys(entered, "poll", got[0].queue):
                opened = await self._vault().open_deliveries(self.shard.tenant_state(got[0].tenant).id, got)
        except TenantqError:
            await self._put_back(got, entered)
            raise
        except asyncio.CancelledError:
            self.gates.in_background(self._put_back(got, entered))
            raise
        if opened.broken:
            await self._set_aside(opened.broken, entered)
            if not opened.whole:
                first = opened.broken[0]
                raise SealBroken(tenant=first.tenant, queue=first.queue, id=first.id)
        return opened.whole

    async def _set_aside(self, broken: list[Delivery], entered: Entered) -> None:
        """Give messages back as failed that do not open: they were changed or moved in the store."""
        self._vault().broken += len(broken)
        for (tenant, queue), receipts in _by_place(broken).items():
            log.error("%d messages of %s/%s do not open: their stored bytes were changed", len(receipts), tenant, queue)
            with contextlib.suppress(NotFound):  # the queue went meanwhile, and they with it
                await self.shard.nack(tenant, queue, receipts, reason=SealBroken.code, caller=entered.caller)

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

    async def _put_back(self, got: Sequence[Delivery], entered: Entered) -> None:
        """Release what was leased for a caller who may not have it any more."""
        for (tenant, queue), receipts in _by_place(got).items():
            with contextlib.suppress(NotFound):  # the queue went meanwhile, and they with it
                await self.shard.release(tenant, queue, receipts, entered.caller)

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
        _check_consumer(consumer)
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
        try:
            entered.principal = await self.gates.identify(call, "poll")
            allowed = self._fleet_tenants(call, entered.principal, queue, tenants)
        except TenantqError:
            await self._put_back(got, entered)
            raise
        if allowed is None:
            return got
        lost = [one for one in got if one.tenant not in allowed]
        await self._put_back(lost, entered)
        return [one for one in got if one.tenant in allowed]

    def _note_consumer(self, call: Call, entered: Entered, queue: str, consumer: str | None, wait_ms: int) -> None:
        try:
            self._check_in(call, entered.principal, entered.state, queue, consumer, wait_ms)
        except TenantqError as error:
            self.gates.traces.refuse(call, entered.principal, entered.tenant, "poll", queue, error)
            raise

    def _check_in(
        self, call: Call, principal: Principal, state: TenantState, queue: str, consumer: str | None, wait_ms: int
    ) -> None:
        """Count the caller among a queue's consumers, or raise that it is one too many."""
        allowed = state.config.quotas.consumers_per_queue
        who = f"{principal.id} {consumer or call.remote}"
        if len(who) > CONSUMER_CHARS_MAX:
            who = sha256(who.encode()).hexdigest()
        self.gates.consumers.note(state.name, queue, who, allowed, wait_ms=wait_ms)

    async def ack(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        receipts: Sequence[str],
        results: Sequence[Result | None] | None = None,
    ) -> list[Outcome]:
        """Finish leased messages. Settling is never held up by a rate limit: that would use up attempts."""
        with await self._enter_queue(call, tenant, "ack", queue) as entered:
            state, given = entered.state, results
            if results is not None and state.config.encryption.enabled:
                given = await self._vault().seal_results(state, queue, receipts, results)
            try:
                return await self.shard.ack(entered.tenant, queue, receipts, results=given, caller=entered.caller)
            except Conflict:
                if results is None or given is not results or not state.config.encryption.enabled:
                    raise
            given = await self._vault().seal_results(state, queue, receipts, results)  # it was switched on meanwhile
            return await self.shard.ack(entered.tenant, queue, receipts, results=given, caller=entered.caller)

    async def ack_any(self, call: Call, tenant: str | None, queue: str, receipts: Sequence[str]) -> list[Outcome]:
        """Finish messages by whichever receipt they had, also one whose lease is over: who has one leased now loses it.

        What is not there any more is finished. On a FIFO queue only the current receipt counts: LeaseLost in its place otherwise.
        """
        with await self._enter_queue(call, tenant, "ack", queue) as entered:
            owner, caller = entered.tenant, entered.caller
            outcomes = await self.shard.ack(owner, queue, receipts, caller=caller)
            lost = {
                index: parsed[0]
                for index, (outcome, receipt) in enumerate(zip(outcomes, receipts, strict=True))
                if not outcome.ok and (parsed := parse_receipt(receipt)) is not None
            }
            if lost and not queue.endswith(FIFO_SUFFIX):
                removed = await self.shard.remove(owner, queue, list(lost.values()), caller)
                for index, outcome in zip(lost, removed, strict=True):
                    outcomes[index] = OK if outcome.ok or isinstance(outcome.error, NotFound) else outcome
            else:
                for index, id in lost.items():
                    try:
                        await self.shard.get(owner, queue, id)
                    except NotFound:
                        outcomes[index] = OK
            return outcomes

    async def nack(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        receipts: Sequence[str],
        *,
        delay_ms: int | None = None,
        reason: str = "",
    ) -> list[Outcome]:
        """Give failed messages back."""
        with await self._enter_queue(call, tenant, "nack", queue) as entered:
            encryption = entered.state.config.encryption
            if encryption.enabled and not encryption.plain_reasons:
                reason = label_of(reason)
            return await self.shard.nack(
                entered.tenant, queue, receipts, delay_ms=delay_ms, reason=reason, caller=entered.caller
            )

    async def release(self, call: Call, tenant: str | None, queue: str, receipts: Sequence[str]) -> list[Outcome]:
        """Give messages back at once, without using up an attempt."""
        with await self._enter_queue(call, tenant, "release", queue) as entered:
            return await self.shard.release(entered.tenant, queue, receipts, entered.caller)

    async def extend(
        self, call: Call, tenant: str | None, queue: str, receipts: Sequence[str], *, lease_ms: int
    ) -> list[Outcome]:
        """Set leases to end ``lease_ms`` from now."""
        with await self._enter_queue(call, tenant, "extend", queue) as entered:
            return await self.shard.extend(entered.tenant, queue, receipts, lease_ms=lease_ms, caller=entered.caller)

    async def change_leases(
        self, call: Call, tenant: str | None, queue: str, receipts: Sequence[str], *, lease_ms: int, held_ms_max: int
    ) -> list[Outcome]:
        """Set leases to end ``lease_ms`` from now, 0: at once, by whichever receipt their messages had; only the right to extend is asked for.

        One that would then last longer than ``held_ms_max`` is Invalid. On a FIFO queue only the current receipt counts.
        """
        with await self._enter_queue(call, tenant, "extend", queue) as entered:
            any_receipt = not queue.endswith(FIFO_SUFFIX)
            owner, caller = entered.tenant, entered.caller
            if not lease_ms:
                return await self.shard.nack(owner, queue, receipts, delay_ms=0, any_receipt=any_receipt, caller=caller)
            return await self.shard.extend(
                owner, queue, receipts, lease_ms=lease_ms, any_receipt=any_receipt, held_ms_max=held_ms_max,
                caller=caller,
            )  # fmt: skip

    async def remove(self, call: Call, tenant: str | None, queue: str, ids: Sequence[str]) -> list[Outcome]:
        """Delete messages by id."""
        check_batch("ids", ids)
        with await self._enter_queue(call, tenant, "remove", queue, rate="write", ops=len(ids)) as entered:
            return await self.shard.remove(entered.tenant, queue, ids, entered.caller)


def _by_place(got: Sequence[Delivery]) -> dict[tuple[str, str], list[str]]:
    """Return receipts by tenant and queue."""
    places: dict[tuple[str, str], list[str]] = {}
    for one in got:
        places.setdefault((one.tenant, one.queue), []).append(one.receipt)
    return places


def _check_consumer(consumer: str | None) -> None:
    if consumer is not None:
        check_text("consumer", consumer, limits.CONSUMER_CHARS_MAX)


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


def _within(max: int, left: int) -> int:
    """Return how many messages a poll may ask for that has paid for one, with so many operations left beyond that."""
    return min(max, left + 1) if left > 0 else 1


def _least(*waits_ms: int) -> int:
    return max(0, min(waits_ms))
