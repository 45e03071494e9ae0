"""The work: adding, polling, settling, looking. Each call passes the gates, then asks the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenantq import limits
from tenantq.errors import Invalid, NotFound, TenantqError
from tenantq.message import Delivery, Facts, NewMessage, Page, Result
from tenantq.names import check_queue_name
from tenantq.service.control import Control

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from typing import TypeVar

    from tenantq.journal.record import Row
    from tenantq.message import Added, Outcome
    from tenantq.service.call import Call
    from tenantq.service.gatekeeper import Entered

    _T = TypeVar("_T")


class Service(Control):
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
        sizes = [len(one.body) if isinstance(one, NewMessage) else 0 for one in messages]
        entered = await self.gates.enter(
            call, tenant, "add", queue, slot="add", rate="write", ops=len(messages), size=sum(sizes)
        )
        with entered:
            try:
                added = await self.shard.add(entered.tenant, queue, messages, entered.caller, batch_key=key)
            except TenantqError:
                self.gates.give_back(entered, queue, "write", len(messages), sum(sizes))
                raise
            refused = [size for one, size in zip(added, sizes, strict=True) if one.error is not None]
            if refused:
                self.gates.give_back(entered, queue, "write", len(refused), sum(refused))
            return added

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
    ) -> list[Delivery]:
        """Lease up to ``max`` messages; wait for the first up to ``wait_ms``, for the rate limit too."""
        check_queue_name(queue)
        _check_consumer(consumer)
        patience_ms = wait_ms if type(wait_ms) is int and 0 < wait_ms <= limits.WAIT_MS_MAX else 0
        started_ms = self.clock.monotonic_ms()
        entered = await self.gates.enter(call, tenant, "poll", queue, slot="poll", rate="read", wait_ms=patience_ms)
        with entered:
            self._note_consumer(call, entered, queue, consumer, patience_ms)
            if patience_ms:
                wait_ms = _left_ms(patience_ms, self.clock.monotonic_ms() - started_ms)
                found = entered.state.queues.get(queue)
                if found is not None and found.ready == 0:
                    entered.ticket.park()  # it only waits: others may have its place meanwhile
            got = await self.shard.poll(
                entered.tenant, queue, max=max, wait_ms=wait_ms, lease_ms=lease_ms, caller=entered.caller
            )
            self.gates.charge(entered, queue, "read", len(got) - 1 if got else 0, sum(len(one.body) for one in got))
            return got

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
        check_queue_name(queue)
        _check_consumer(consumer)
        principal = await self.gates.identify(call, "poll")
        allowed = self.gates.authorizer.tenants_for(principal, "poll", queue)
        if tenants is not None:
            for name in tenants:
                self.gates.check(call, principal, name, "poll", queue)
            allowed = tenants
        elif allowed is not None:
            known = self.shard.tenants()
            allowed = [name for name in allowed if name in known]
            if not allowed:
                self.gates.check(call, principal, principal.tenant or "", "poll", queue)
        with await self.gates.enter_fleet(call, principal) as entered:
            entered.ticket.park()
            got = await self.shard.fleet_poll(
                queue, tenants=allowed, max=max, wait_ms=wait_ms, lease_ms=lease_ms, caller=entered.caller
            )
            for one in got:
                self.gates.charge_tenant(one.tenant, queue, "read", 1, len(one.body))
            return got

    def _note_consumer(self, call: Call, entered: Entered, queue: str, consumer: str | None, wait_ms: int) -> None:
        allowed = entered.state.config.quotas.consumers_per_queue
        who = f"{entered.principal.id} {consumer or call.remote}"
        try:
            self.gates.consumers.note(entered.tenant, queue, who, allowed, wait_ms=wait_ms)
        except TenantqError as error:
            self.gates.refuse(call, entered.principal, entered.tenant, "poll", queue, error)
            raise

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
            return await self.shard.ack(entered.tenant, queue, receipts, results=results, caller=entered.caller)

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

    async def remove(self, call: Call, tenant: str | None, queue: str, ids: Sequence[str]) -> list[Outcome]:
        """Delete messages by id."""
        with await self._enter_queue(call, tenant, "remove", queue, rate="write", ops=len(ids)) as entered:
            return await self.shard.remove(entered.tenant, queue, ids, entered.caller)

    # ---- looking ----

    async def peek(
        self, call: Call, tenant: str | None, queue: str, *, limit: int = 10, cursor: str | None = None
    ) -> Page:
        """Return waiting messages without leasing them; without bodies for who may not read them."""
        with await self._enter_queue(call, tenant, "peek", queue, rate="read") as entered:
            page = await self._found(
                call, entered, "peek", queue, self.shard.peek(entered.tenant, queue, limit=limit, cursor=cursor)
            )
            if self._may_read(entered, queue):
                return page
            return Page([_hidden(one) for one in page.messages], page.cursor)

    async def get(self, call: Call, tenant: str | None, queue: str, id: str) -> Facts:
        """Return everything known of a message; without its body for who may not read it."""
        with await self._enter_queue(call, tenant, "get", queue, rate="read") as entered:
            facts = await self._found(call, entered, "get", queue, self.shard.get(entered.tenant, queue, id))
            return facts if self._may_read(entered, queue) else _hidden(facts)

    async def result(
        self, call: Call, tenant: str | None, queue: str, id: str, *, wait_ms: int = 0
    ) -> tuple[Result, bool]:
        """Return a message's result, and whether its value was taken out."""
        with await self._enter_queue(call, tenant, "result", queue, rate="read") as entered:
            if wait_ms:
                entered.ticket.park()
            asked = self.shard.result(entered.tenant, queue, id, wait_ms=wait_ms)
            found = await self._found(call, entered, "result", queue, asked)
            if self._may_read(entered, queue) or found.value is None:
                return found, False
            return msgspec.structs.replace(found, value=None), True

    async def trace(self, call: Call, tenant: str | None, queue: str, id: str) -> list[Row]:
        """Return the journal's rows about one message."""
        with await self._enter_queue(call, tenant, "trace", queue, rate="read") as entered:
            return await self._found(call, entered, "trace", queue, self.shard.trace(entered.tenant, queue, id))

    async def _found(self, call: Call, entered: Entered, action: str, queue: str, asked: Awaitable[_T]) -> _T:
        """Return what was asked for; a look at what is not there leaves a trace, as it may be another tenant's."""
        try:
            return await asked
        except NotFound as error:
            self.gates.refuse(call, entered.principal, entered.tenant, action, queue, error)
            raise

    def _may_read(self, entered: Entered, queue: str) -> bool:
        return self.gates.authorizer.allowed(entered.principal, entered.tenant, "read_body", queue)


def _hidden(facts: Facts) -> Facts:
    return msgspec.structs.replace(facts, body=b"", attributes={}, group=None, hidden=True)


def _check_consumer(consumer: str | None) -> None:
    if consumer is not None and (type(consumer) is not str or not 1 <= len(consumer) <= limits.CONSUMER_CHARS_MAX):
        raise Invalid(f"consumer: must be text of 1 to {limits.CONSUMER_CHARS_MAX} characters")


def _left_ms(wait_ms: int, spent_ms: int) -> int:
    return wait_ms - spent_ms if wait_ms > spent_ms else 0
