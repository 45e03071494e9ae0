"""Messages: adds them to a queue and leases them to consumers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tenantq.domain import limits
from tenantq.domain.message import AddResult, Delivery, NewMessage, check_batch, check_poll
from tenantq.domain.names import check_queue_name
from tenantq.domain.validation import check_field
from tenantq.engine.ops.add import stored_bytes
from tenantq.engine.ops.settle import Nack
from tenantq.engine.polls import Poll
from tenantq.engine.queue_state import TenantState
from tenantq.engine.reservation import Reservation
from tenantq.engine.shard import Shard
from tenantq.errors import Conflict, JournalBehind, NotFound, TenantqError
from tenantq.runtime.clock import Clock
from tenantq.service.admission import Admission
from tenantq.service.admitted_call import AdmittedCall
from tenantq.service.call import Call
from tenantq.service.deliveries import Deliveries
from tenantq.service.encryption import MessageEncryption
from tenantq.service.other_shards import OtherShards

if TYPE_CHECKING:
    from tenantq.journal.exporter import Exporter


class Messages:
    """Adds messages and polls one queue."""

    def __init__(
        self,
        shard: Shard,
        admission: Admission,
        clock: Clock,
        deliveries: Deliveries,
        encryption: MessageEncryption,
        exporter: Exporter | None,
        other_shards: OtherShards,
    ) -> None:
        self._shard, self._admission, self._clock = shard, admission, clock
        self._other_shards = other_shards
        self._deliveries, self._encryption, self._exporter = deliveries, encryption, exporter

    async def add(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        messages: Sequence[NewMessage | TenantqError],
        key: str | None = None,
    ) -> list[AddResult]:
        """Add messages and return one result per message, in order. An error in place of a message keeps its place.

        A batch that was added under the same ``key`` before is not added again.
        """
        check_queue_name(queue)
        check_batch("messages", messages)
        sizes = [len(one.body) if isinstance(one, NewMessage) and type(one.body) is bytes else 0 for one in messages]
        admission, size = self._admission, sum(sizes)
        admitted = await admission.admit(
            call, tenant, "add", queue, slot="add", rate="write", ops=len(messages), size=size
        )
        with admitted:
            if admitted.span is not None:
                admitted.span.link(messages)
            try:
                if self._exporter is not None and self._exporter.is_behind:
                    raise self._journal_behind(admitted, queue)
                if admitted.state.part is None:
                    added = await self._add(admitted, queue, messages, key, None)
                else:
                    need = _needed(admitted.state, queue, messages)
                    async with self._other_shards.reserve(admitted.state, need) as kept:
                        added = await self._add(admitted, queue, messages, key, kept)
            except TenantqError:
                admission.refund(admitted, queue, "write", len(messages), size)
                raise
            refused = [size for one, size in zip(added, sizes, strict=True) if one.error is not None]
            if refused:
                admission.refund(admitted, queue, "write", len(refused), sum(refused))
            return added

    def _journal_behind(self, admitted: AdmittedCall, queue: str) -> JournalBehind:
        """Return, and note, the error for adds while too much of the journal waits for its export."""
        assert self._exporter is not None
        text = f"{self._exporter.lag_bytes} bytes of the journal wait for their export, more than allowed. "
        text += "Adds are refused until it has caught up; polls and acks work."
        error = JournalBehind(text, tenant=admitted.tenant, queue=queue)
        self._admission.notes.note_failure(admitted.caller, admitted.tenant, "add", queue, error)
        return error

    async def _add(
        self,
        admitted: AdmittedCall,
        queue: str,
        messages: Sequence[NewMessage | TenantqError],
        key: str | None,
        kept: Reservation | None,
    ) -> list[AddResult]:
        """Add messages to the shard, encrypted if the tenant's messages are."""
        state = admitted.state
        digests: tuple[bytes, ...] = ()
        if not state.config.encryption.enabled:
            plain = messages
            if state.id in self._shard.state.data_keys.by_tenant:
                known = await self._encryption.add_digests(state, messages, key)
                plain, digests = known.messages, known.digests
            try:
                return await self._shard.add(
                    admitted.tenant, queue, plain, admitted.caller, batch_key=key, batch_digests=digests,
                    reservation=kept,
                )  # fmt: skip
            except Conflict:
                if not state.config.encryption.enabled:
                    raise
                # Encryption was switched on while the messages waited for their round.
        with self._admission.notes.noting_failure(admitted.caller, admitted.tenant, "add", queue):
            batch = await self._encryption.encrypt_messages(state, queue, messages, key)
        return await self._shard.add(
            admitted.tenant, queue, batch.messages, admitted.caller, batch_key=key, batch_digests=batch.digests,
            encrypted_plain=batch.plain, reservation=kept,
        )  # fmt: skip

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
        expire_at_once: bool = False,
        whole_groups: bool = False,
    ) -> list[Delivery]:
        """Lease up to ``max`` messages; wait up to ``wait_ms`` for the first one and for the rate limit.

        With ``expire_at_once`` each lease ends as soon as it is delivered and counts as an attempt. With ``whole_groups``
        several messages of one group are leased together.
        """
        check_queue_name(queue)
        check_poll(max, wait_ms, lease_ms)
        check_consumer(consumer)
        started_ms = self._clock.monotonic_ms()
        admission = self._admission
        admitted = await admission.admit(call, tenant, "poll", queue, slot="poll", rate="read", wait_ms=wait_ms)
        with admitted:
            try:
                self._admit_consumer(call, admitted, queue, consumer, wait_ms)
                found = admitted.state.queues.get(queue)
                left_ms = wait_ms - (self._clock.monotonic_ms() - started_ms) if wait_ms else 0
                got: list[Delivery] = []
                if left_ms <= 0 or (found is not None and found.ready > 0):
                    got = await self._poll_now(admitted, queue, max, lease_ms, whole_groups=whole_groups)
                if not got and left_ms > 0:
                    admitted.park()
                    got = await self._poll_later(
                        call, admitted, queue, max, left_ms, lease_ms, whole_groups=whole_groups
                    )
            except TenantqError:
                admission.refund(admitted, queue, "read", 1, 0)
                raise
            if got and expire_at_once:
                receipts = [one.receipt for one in got]
                with contextlib.suppress(NotFound):  # the queue was deleted meanwhile
                    await self._shard.submit(Nack(admitted.state, admitted.caller, queue, receipts, delay_ms=0))
            if admitted.span is not None:
                admitted.span.link(got)
            return got

    async def _poll_now(
        self, admitted: AdmittedCall, queue: str, max: int, lease_ms: int | None, *, whole_groups: bool
    ) -> list[Delivery]:
        """Lease ready messages within the limits of a tenant, which may have its queues on several shards."""
        if admitted.state.part is None:
            return await self._lease(admitted, queue, max, lease_ms, None, whole_groups=whole_groups)
        async with self._other_shards.reserve(admitted.state, _leases(admitted.state, queue, max)):
            shared = await self._admission.take_at_home(admitted, "read", max - 1)
            most = max if shared is None else shared + 1
            return await self._lease(admitted, queue, most, lease_ms, shared, whole_groups=whole_groups)

    async def _lease(
        self,
        admitted: AdmittedCall,
        queue: str,
        max: int,
        lease_ms: int | None,
        shared: int | None,
        *,
        whole_groups: bool,
    ) -> list[Delivery]:
        """Lease ready messages within the rate limits. The maximum is charged first, and the rest refunded.

        ``shared`` operations were charged at the tenant's home.
        """
        admission = self._admission
        left = admission.remaining(admitted, queue, "read")
        extra = 0  # beyond the one that was paid on admission
        if left is not None:
            max = _within_rate(max, left)
            extra = max - 1
            admission.charge_here(admitted, queue, "read", extra, 0)
        used = 0
        try:
            got = await self._shard.loop.submit(
                Poll(admitted.state, admitted.caller, queue, max=max, lease_ms=lease_ms, whole_groups=whole_groups)
            )
            if any(one.encrypted for one in got):
                got = await self._deliveries.decrypt(admitted, got)
            used = len(got) - 1 if got else 0
        finally:
            if extra > used:
                admission.refund_here(admitted, queue, "read", extra - used, 0)
            if shared is not None and shared > used and admission.home_rates is not None:
                admission.home_rates.charge(admitted.state, "read", used - shared, 0)
        admission.charge(admitted, queue, "read", 0, sum(len(one.body) for one in got))
        return got

    async def _poll_later(
        self,
        call: Call,
        admitted: AdmittedCall,
        queue: str,
        max: int,
        wait_ms: int,
        lease_ms: int | None,
        *,
        whole_groups: bool,
    ) -> list[Delivery]:
        """Wait for messages. They are delivered only if the caller is still authorized."""
        admission = self._admission
        left = admission.remaining(admitted, queue, "read")
        if left is not None:
            max = _within_rate(max, left)
        poll = Poll(
            admitted.state, admitted.caller, queue, max=max, wait_ms=wait_ms, lease_ms=lease_ms, whole_groups=whole_groups
        )  # fmt: skip
        got = await self._shard.loop.submit(poll)
        if got:
            with self._deliveries.released_on_failure(got, admitted):
                await admission.confirm(call, admitted, "poll", queue)
            if any(one.encrypted for one in got):
                got = await self._deliveries.decrypt(admitted, got)
            admission.charge(admitted, queue, "read", len(got) - 1, sum(len(one.body) for one in got))
        return got

    def _admit_consumer(
        self, call: Call, admitted: AdmittedCall, queue: str, consumer: str | None, wait_ms: int
    ) -> None:
        try:
            self._admission.admit_consumer(call, admitted.principal, admitted.state, queue, consumer, wait_ms)
        except TenantqError as error:
            self._admission.notes.note_refusal(call, admitted.principal, admitted.tenant, "poll", queue, error)
            raise


def check_consumer(consumer: str | None) -> None:
    """Raise Invalid if a poll may not name its consumer like this."""
    if consumer is not None:
        check_field("consumer", consumer, limits.ConsumerName)


def _needed(tenant: TenantState, queue: str, messages: Sequence[NewMessage | TenantqError]) -> dict[str, int]:
    """Return about how much of a spread tenant's quotas an add uses, not less."""
    count = len(messages)
    size = sum(stored_bytes(one) + _extra_bytes(one) for one in messages)
    return {
        "messages_per_hour": count, "messages_per_day": count, "backlog": count, "stored_bytes": size,
        "queues": queue not in tenant.queues,
    }  # fmt: skip


def _leases(tenant: TenantState, queue: str, max: int) -> dict[str, int]:
    """Return how much of a spread tenant's quotas a poll can use now."""
    found = tenant.queues.get(queue) if tenant.part is not None else None
    return {"in_flight": min(max, found.ready)} if found is not None else {}


_CHARACTER_BYTES = 4  # at most, as it is stored
_ATTRIBUTE_BYTES = 16  # of the lengths of its name and value
_GROUP_BYTES = 16 + _CHARACTER_BYTES * limits.GROUP_CHARS_MAX


def _extra_bytes(message: NewMessage | TenantqError) -> int:
    """Return what a message may take beyond its body and the characters of its attributes."""
    if not isinstance(message, NewMessage) or not isinstance(message.attributes, dict):
        return _GROUP_BYTES
    characters = sum(len(str(name)) + len(str(value)) for name, value in message.attributes.items())
    return _GROUP_BYTES + (_CHARACTER_BYTES - 1) * characters + _ATTRIBUTE_BYTES * len(message.attributes)


def _within_rate(max: int, left: int) -> int:
    """Return how many messages a poll may ask for that has paid for one and has ``left`` more operations."""
    return min(max, left + 1) if left > 0 else 1
