"""Polling: messages of one queue leased to who may have them, in plain where they are sealed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from hashlib import sha256
from typing import TYPE_CHECKING

from tenantq.domain import limits
from tenantq.domain.message import Delivery, check_text
from tenantq.engine.shard import check_poll
from tenantq.errors import NotFound, SealBroken, TenantqError
from tenantq.gates.consumers import CONSUMER_CHARS_MAX
from tenantq.service.call import Call
from tenantq.service.finding import Finding

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from tenantq.domain.access import Principal
    from tenantq.engine.queue_state import TenantState
    from tenantq.service.entered import Entered

log = logging.getLogger("tenantq")


class Polling(Finding):
    """The part of the service that leases messages of one queue."""

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
        check_consumer(consumer)
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
            async with self._else_put_back(got, entered):
                await self.gates.confirm(call, entered, "poll", queue)
            if entered.state.id in self.shard.data_keys:
                got = await self._opened(entered, got)
            self.gates.charge(entered, queue, "read", len(got) - 1, sum(len(one.body) for one in got))
        return got

    async def _opened(self, entered: Entered, got: list[Delivery]) -> list[Delivery]:
        """Return leased messages of one tenant in plain. Where the keys cannot be had, all are released, without an attempt used.

        One that is broken is given back as failed, so that it ends among the dead letters and holds nobody up.
        """
        async with self._else_put_back(got, entered):
            with self._noting_keys(entered, "poll", got[0].queue):
                opened = await self._vault().open_deliveries(self.shard.tenant_state(got[0].tenant).id, got)
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

    @contextlib.asynccontextmanager
    async def _else_put_back(self, got: Sequence[Delivery], entered: Entered) -> AsyncIterator[None]:
        """Release what was leased if the caller may not have it, or has gone away."""
        try:
            yield
        except TenantqError:
            await self._put_back(got, entered)
            raise
        except asyncio.CancelledError:
            self.gates.in_background(self._put_back(got, entered))
            raise

    async def _put_back(self, got: Sequence[Delivery], entered: Entered) -> None:
        """Release what was leased for a caller who may not have it any more."""
        for (tenant, queue), receipts in _by_place(got).items():
            with contextlib.suppress(NotFound):  # the queue went meanwhile, and they with it
                await self.shard.release(tenant, queue, receipts, entered.caller)

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

    @contextlib.contextmanager
    def _noting_keys(self, entered: Entered, act: str, queue: str) -> Iterator[None]:
        """Have the journal tell of a call that failed for want of a key."""
        with self._noting(Call(user_agent=entered.caller.user_agent), entered.caller, entered.tenant, act, queue):
            yield


def _by_place(got: Sequence[Delivery]) -> dict[tuple[str, str], list[str]]:
    """Return receipts by tenant and queue."""
    places: dict[tuple[str, str], list[str]] = {}
    for one in got:
        places.setdefault((one.tenant, one.queue), []).append(one.receipt)
    return places


def check_consumer(consumer: str | None) -> None:
    """Raise Invalid unless a poll may name its consumer like this."""
    if consumer is not None:
        check_text("consumer", consumer, limits.CONSUMER_CHARS_MAX)


def _within(max: int, left: int) -> int:
    """Return how many messages a poll may ask for that has paid for one, with so many operations left beyond that."""
    return min(max, left + 1) if left > 0 else 1
