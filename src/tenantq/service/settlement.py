"""Settlement: acknowledges, returns and extends leases, and removes messages by ID."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tenantq.domain import limits
from tenantq.domain.message import Outcome, Result, check_batch
from tenantq.domain.names import FIFO_SUFFIX
from tenantq.domain.validation import check_field
from tenantq.engine.ops.remove import Remove
from tenantq.engine.ops.settle import OK, Ack, Extend, Nack, Release, SettleOperation, parse_receipt
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict, LeaseLost, NotFound
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tenantq.service.encryption import MessageEncryption

WITHHELD: Final = "withheld"
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}(?=:|\Z)")


class Settlement:
    """Settles leased messages. Rate limits never delay settlement, because a delay would use up attempts."""

    def __init__(self, shard: Shard, admission: Admission, encryption: MessageEncryption) -> None:
        self._shard, self._admission, self._encryption = shard, admission, encryption

    async def ack(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        receipts: Sequence[str],
        results: Sequence[Result | None] | None = None,
    ) -> list[Outcome]:
        """Acknowledge leased messages and store their results."""
        with await self._admission.admit_queue(call, tenant, "ack", queue) as admitted:
            state, given = admitted.state, results
            if results is not None and state.config.encryption.enabled:
                given = await self._encryption.encrypt_results(state, queue, receipts, results)
            try:
                return await self._shard.submit(Ack(state, admitted.caller, queue, receipts, given))
            except Conflict:
                if results is None or given is not results or not state.config.encryption.enabled:
                    raise
            given = await self._encryption.encrypt_results(
                state, queue, receipts, results
            )  # encryption was switched on meanwhile
            return await self._shard.submit(Ack(state, admitted.caller, queue, receipts, given))

    async def ack_any(self, call: Call, tenant: str | None, queue: str, receipts: Sequence[str]) -> list[Outcome]:
        """Acknowledge messages by any receipt they ever had, even if the lease has ended or another caller holds one now.

        A message that no longer exists counts as acknowledged. On a FIFO queue only the current receipt is valid:
        other receipts get LeaseLost.
        """
        with await self._admission.admit_queue(call, tenant, "ack", queue) as admitted:
            owner, caller = admitted.state, admitted.caller
            outcomes = await self._shard.submit(Ack(owner, caller, queue, receipts))
            lost = {
                index: parsed[0]
                for index, (outcome, receipt) in enumerate(zip(outcomes, receipts, strict=True))
                if not outcome.ok and (parsed := parse_receipt(receipt)) is not None
            }
            if lost and not queue.endswith(FIFO_SUFFIX):
                removed = await self._shard.submit(Remove(owner, caller, queue, list(lost.values())))
                for index, outcome in zip(lost, removed, strict=True):
                    outcomes[index] = OK if outcome.ok or isinstance(outcome.error, NotFound) else outcome
            else:
                for index, id in lost.items():
                    try:
                        await self._shard.reads.get(owner.name, queue, id)
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
        """Return failed messages to the queue."""
        with await self._admission.admit_queue(call, tenant, "nack", queue) as admitted:
            encryption = admitted.state.config.encryption
            if encryption.enabled and not encryption.plain_reasons:
                reason = label_of(reason)
            nack = Nack(admitted.state, admitted.caller, queue, receipts, delay_ms=delay_ms, reason=reason)
            return await self._shard.submit(nack)

    async def release(self, call: Call, tenant: str | None, queue: str, receipts: Sequence[str]) -> list[Outcome]:
        """Return messages immediately, without using an attempt."""
        with await self._admission.admit_queue(call, tenant, "release", queue) as admitted:
            return await self._shard.submit(Release(admitted.state, admitted.caller, queue, receipts))

    async def extend(
        self, call: Call, tenant: str | None, queue: str, receipts: Sequence[str], *, lease_ms: int
    ) -> list[Outcome]:
        """Extend leases to end ``lease_ms`` from now."""
        with await self._admission.admit_queue(call, tenant, "extend", queue) as admitted:
            return await self._shard.submit(Extend(admitted.state, admitted.caller, queue, receipts, lease_ms=lease_ms))

    async def change_leases(
        self, call: Call, tenant: str | None, queue: str, receipts: Sequence[str], *, lease_ms: int, held_ms_max: int
    ) -> list[Outcome]:
        """Set leases to end ``lease_ms`` from now, or at once if 0, by any receipt of their messages. Needs the right to extend only.

        A lease that would last longer than ``held_ms_max`` in total is Invalid. On a FIFO queue only the current receipt is valid.
        On other queues a change after the lease has ended succeeds without effect, as long as the message exists.
        """
        with await self._admission.admit_queue(call, tenant, "extend", queue) as admitted:
            any_receipt = not queue.endswith(FIFO_SUFFIX)
            owner, caller = admitted.state, admitted.caller
            change: SettleOperation = Nack(owner, caller, queue, receipts, delay_ms=0, any_receipt=any_receipt)
            if lease_ms:
                change = Extend(
                    owner, caller, queue, receipts, lease_ms=lease_ms, any_receipt=any_receipt, held_ms_max=held_ms_max
                )  # fmt: skip
            outcomes = await self._shard.submit(change)
            for index, (outcome, receipt) in enumerate(zip(outcomes, receipts, strict=True)):
                parsed = parse_receipt(receipt)
                if any_receipt and parsed is not None and isinstance(outcome.error, LeaseLost):
                    with suppress(NotFound):
                        await self._shard.reads.get(owner.name, queue, parsed[0])
                        outcomes[index] = OK
            return outcomes

    async def remove(self, call: Call, tenant: str | None, queue: str, ids: Sequence[str]) -> list[Outcome]:
        """Delete messages by ID."""
        check_batch("ids", ids)
        with await self._admission.admit_queue(call, tenant, "remove", queue, rate="write", ops=len(ids)) as admitted:
            return await self._shard.submit(Remove(admitted.state, admitted.caller, queue, ids))


def label_of(reason: str) -> str:
    """Return what may be stored in plain text of an encrypted tenant's reason: a single word, or the word before a colon.

    Workers send an exception's name and text, and the text often quotes the body.
    """
    if type(reason) is not str or not reason:
        return reason
    check_field("reason", reason, limits.Reason)
    label = _LABEL.match(reason)
    if label is None:
        return WITHHELD
    return reason if label[0] == reason else f"{label[0]}: {WITHHELD}"
