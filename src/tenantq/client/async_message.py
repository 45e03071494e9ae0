"""A message under lease, for asyncio."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tenantq.client.bodies import UNSET, Unset, to_bytes
from tenantq.client.queue_calls import LeaseSettlement, LeaseState, QueueCalls
from tenantq.client.received import Received, bounded_reason, reason_of
from tenantq.errors import Invalid, LeaseLost, TenantqError, TooLarge
from tenantq.runtime.clock import Timer
from tenantq.wire.json_bytes import text_or_base64
from tenantq.wire.messages import WireResult

if TYPE_CHECKING:
    from tenantq.client.tracing import ClientTracing

log = logging.getLogger("tenantq.client")

_HEARTBEATS_PER_LEASE = 3
_LEASE_MS_UNKNOWN = 10_000


class AsyncMessage(Received):
    """A message under lease. Settle it with one of its methods, or do the work inside ``async with message``.

    The block keeps the lease alive while it runs. If it succeeds, the message is acked, with ``message.result`` if that was set. If
    it raises, the message is nacked with the exception's name and text, and the exception propagates. If it is cancelled, the
    message is released. A message that was settled inside the block does not change.
    """

    __slots__ = ("_calls", "_heartbeat", "_timer")

    def __init__(self, lease_state: LeaseState, calls: QueueCalls) -> None:
        super().__init__(lease_state)
        self._calls = calls
        self._timer: Timer | None = None
        self._heartbeat: asyncio.Task[None] | None = None

    # ---- settling ----

    async def ack(self, result: Any | Unset = UNSET) -> None:
        """Finish the message, with a result if given: bytes, text, or anything JSON. Raises LeaseLost if the lease has ended."""
        await self._settle(("ack",), _completed(result))

    async def fail(self, error: str) -> None:
        """Finish the message as failed, without further attempts. Callers that wait for the result get the error."""
        await self._settle(("ack",), WireResult(status="failed", error=bounded_reason(error) or "failed"))

    async def nack(self, delay_ms: int | None = None, reason: str = "") -> None:
        """Return the message to the queue as failed, hidden for ``delay_ms``; None: for the queue's backoff."""
        await self._settle(("nack", delay_ms, bounded_reason(reason)))

    async def release(self) -> None:
        """Return the message to its old position in the queue without using up the attempt."""
        await self._settle(("release",))

    async def extend(self, lease_ms: int | None = None) -> None:
        """Extend the lease to ``lease_ms`` from now; None: its original length. Raises LeaseLost if the lease has ended."""
        length = lease_ms if lease_ms is not None else self._lease.lease_ms
        if length is None:
            raise Invalid("lease_ms: required, because the original length of this lease is unknown")
        asked_ms = self._calls.session.clock.monotonic_ms()
        until = await self._calls.settle(("extend", length), self._settlement())
        self._lease.sure_until_ms = asked_ms + length
        self._lease.lease_ms = length
        if until is not None:
            self._lease.lease_until = until
        if self._timer is not None:  # it was set for the previous length
            self._timer.cancel()
            self._schedule_heartbeat(length)

    def start_batch_ack(self) -> LeaseSettlement:
        """Stop the heartbeat and return the ack with its ``result``. Raises Invalid if the result cannot be encoded."""
        settlement = self._settlement(_completed(self.result))
        self.stop_heartbeat()
        return settlement

    def finish_batch_ack(self) -> None:
        """Mark it as settled after an ack of many messages."""
        self._lease.settled = True

    @property
    def tracing(self) -> ClientTracing | None:
        """The tracing of its client, if the application is traced."""
        return self._calls.session.tracing

    @property
    def lease_state(self) -> LeaseState:
        """The lease, which the asynchronous and the blocking message share."""
        return self._lease

    def _settlement(self, result: WireResult | None = None) -> LeaseSettlement:
        size = 64
        if result is not None:
            size += len(result.value or result.value_base64 or result.error or "")
        trace = self.tracing.current() if self.tracing is not None else None
        return LeaseSettlement(self._lease.item.receipt, self._lease.sure_until_ms, result, size, trace)

    async def _settle(self, operation: tuple[Any, ...], result: WireResult | None = None) -> None:
        settlement = self._settlement(result)
        self.stop_heartbeat()
        await self._calls.settle(operation, settlement)
        self._lease.settled = True

    # ---- the block ----

    async def __aenter__(self) -> Self:
        self.start_heartbeat()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_heartbeat()
        await self.finish(error)

    async def finish(self, error: BaseException | None) -> None:
        """End a block: ack on success, else nack or release. A result that is refused counts as an error.

        A failed nack or release is logged and does not hide the error.
        """
        if self.settled:
            return
        if error is not None:
            await self._return_to_queue(error)
            return
        try:
            await self.ack(self.result)
        except (Invalid, TooLarge) as refused:
            if not refused.maybe_done:
                await self._return_to_queue(refused)
            raise

    async def _return_to_queue(self, error: BaseException) -> None:
        try:
            if isinstance(error, Exception):
                await self.nack(reason=reason_of(error))
            else:
                await self.release()
        except TenantqError as trouble:
            log.warning("%r: cannot return the message to the queue: %s", self, trouble)

    def start_heartbeat(self) -> None:
        """Extend the lease regularly until ``stop_heartbeat``. Must run on the client's event loop."""
        if self._timer is None and self._heartbeat is None and not self.settled:
            self._schedule_heartbeat(self._lease.lease_ms)

    def stop_heartbeat(self) -> None:
        """Stop extending the lease."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    def _schedule_heartbeat(self, lease_ms: int | None) -> None:
        delay_ms = max(1, (lease_ms or _LEASE_MS_UNKNOWN) // _HEARTBEATS_PER_LEASE)
        self._timer = self._calls.session.clock.call_later(delay_ms, self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        self._timer = None
        if not self._calls.session.closed:
            self._heartbeat = self._calls.session.spawn(self._heartbeat_once())

    async def _heartbeat_once(self) -> None:
        """Extend the lease once and schedule the next heartbeat, sooner after an error, until the lease is lost."""
        length = self._lease.lease_ms or _LEASE_MS_UNKNOWN * _HEARTBEATS_PER_LEASE
        try:
            await self.extend(length)
        except LeaseLost:
            self._lease.lost = True
            log.warning("%r: the lease was lost during processing", self)
            self._heartbeat = None
            return
        except TenantqError as trouble:
            log.warning("%r: cannot extend the lease: %s", self, trouble)
            length = length // 2
        self._heartbeat = None
        self._schedule_heartbeat(length)


def _completed(result: Any | Unset) -> WireResult | None:
    if isinstance(result, Unset):
        return None
    text, encoded = text_or_base64(to_bytes(result, "result"))
    return WireResult(value=text, value_base64=encoded)
