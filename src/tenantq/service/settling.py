"""Settling: leased messages finished, given back, kept for longer; and messages removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.domain.message import check_batch
from tenantq.domain.names import FIFO_SUFFIX
from tenantq.engine.ops.settle import OK, parse_receipt
from tenantq.errors import Conflict, NotFound
from tenantq.service.fleet_polling import FleetPolling
from tenantq.service.reasons import label_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.domain.message import Outcome, Result
    from tenantq.service.call import Call


class Settling(FleetPolling):
    """The part of the service that consumers tell how it went."""

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
