"""A message under lease, for asyncio."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self

from tenantq import wire
from tenantq.client.bodies import UNSET, Unset, to_bytes
from tenantq.client.queue_calls import Settling
from tenantq.client.received import Held, Received, bounded_reason, reason_of
from tenantq.errors import Invalid, LeaseLost, TenantqError, TooLarge
from tenantq.wire.json_bytes import text_or_base64

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

    from tenantq.client.queue_calls import Leased, QueueCalls
    from tenantq.runtime.clock import Timer

log = logging.getLogger("tenantq.client")

_BEATS_PER_LEASE = 3
_LEASE_MS_UNKNOWN = 10_000


class AsyncMessage(Received):
    """A message under lease. Settle it with one of its methods, or do the work inside ``async with message``.

    The block keeps the lease alive while it runs. It acks when it ends well, with ``message.result`` if that was set; it nacks with
    the exception's name and text when one leaves it, and the exception goes on. A cancelled block releases the message.
    A message that was settled inside the block is left alone.
    """

    __slots__ = ("_beat", "_calls", "_timer")

    def __init__(self, leased: Leased, calls: QueueCalls) -> None:
        super().__init__(Held(leased))
        self._calls = calls
        self._timer: Timer | None = None
        self._beat: asyncio.Task[None] | None = None

    # ---- settling ----

    async def ack(self, result: Any | Unset = UNSET) -> None:
        """Finish it, with a result if one is given: bytes, text, or anything JSON. Raises LeaseLost if it is another's now."""
        await self._settle(self._calls.ack(self._settling(_completed(result))))

    async def fail(self, error: str) -> None:
        """Finish it as failed for good: no other attempt; who waits for the result learns the error."""
        await self._settle(
            self._calls.ack(self._settling(wire.WireResult(status="failed", error=bounded_reason(error) or "failed")))
        )

    async def nack(self, delay_ms: int | None = None, reason: str = "") -> None:
        """Give it back as failed, hidden for ``delay_ms`` or, where None, for the queue's backoff."""
        await self._settle(self._calls.nack(self._settling(), delay_ms, bounded_reason(reason)))

    async def release(self) -> None:
        """Give it back at once, in its old place, without using up the attempt."""
        await self._settle(self._calls.release(self._settling()))

    async def extend(self, lease_ms: int | None = None) -> None:
        """Have the lease end ``lease_ms`` from now; None: as long as it was. Raises LeaseLost if it is another's now."""
        length = lease_ms if lease_ms is not None else self._held.lease_ms
        if length is None:
            raise Invalid("lease_ms: name one; how long this lease was is not known")
        asked_ms = self._calls.core.clock.monotonic_ms()
        until = await self._calls.extend(self._settling(), length)
        self._held.sure_until_ms = asked_ms + length
        self._held.lease_ms = length
        if until is not None:
            self._held.lease_until = until
        if self._timer is not None:  # it was set for the lease as it was
            self._timer.cancel()
            self._next_beat(length)

    def settling_result(self) -> Settling:
        """Return what acks it with the ``result`` that was set, if any; raises Invalid where that cannot be written."""
        settling = self._settling(_completed(self.result))
        self.stop_heartbeat()
        return settling

    def was_settled(self) -> None:
        """Take note that it was acked together with others."""
        self._held.settled = True

    @property
    def held(self) -> Held:
        """What the two faces of a message share."""
        return self._held

    def _settling(self, result: wire.WireResult | None = None) -> Settling:
        size = 64
        if result is not None:
            size += len(result.value or result.value_base64 or result.error or "")
        return Settling(self._held.item.receipt, self._held.sure_until_ms, result, size)

    async def _settle(self, call: Any) -> None:
        self.stop_heartbeat()
        await call
        self._held.settled = True

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
        """End a block: ack, or nack or release if ``error`` left it, or if the result is refused, which is an error as well.

        Trouble in giving it back does not hide the error.
        """
        if self.settled:
            return
        if error is not None:
            await self._give_back(error)
            return
        try:
            await self.ack(self.result)
        except (Invalid, TooLarge) as refused:
            if not refused.maybe_done:
                await self._give_back(refused)
            raise

    async def _give_back(self, error: BaseException) -> None:
        try:
            if isinstance(error, Exception):
                await self.nack(reason=reason_of(error))
            else:
                await self.release()
        except TenantqError as trouble:
            log.warning("%r could not be given back: %s", self, trouble)

    def start_heartbeat(self) -> None:
        """Keep the lease alive until ``stop_heartbeat``. Called on the client's event loop."""
        if self._timer is None and self._beat is None and not self.settled:
            self._next_beat(self._held.lease_ms)

    def stop_heartbeat(self) -> None:
        """Leave the lease to itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def _next_beat(self, lease_ms: int | None) -> None:
        pause_ms = max(1, (lease_ms or _LEASE_MS_UNKNOWN) // _BEATS_PER_LEASE)
        self._timer = self._calls.core.clock.call_later(pause_ms, self._start_beat)

    def _start_beat(self) -> None:
        self._timer = None
        if not self._calls.core.closed:
            self._beat = self._calls.core.spawn(self._beat_once())

    async def _beat_once(self) -> None:
        """Extend once and plan the next time; on trouble try again sooner, until the lease is lost."""
        length = self._held.lease_ms or _LEASE_MS_UNKNOWN * _BEATS_PER_LEASE
        try:
            await self.extend(length)
        except LeaseLost:
            self._held.lost = True
            log.warning("%r has lost its lease while it was being worked on", self)
            self._beat = None
            return
        except TenantqError as trouble:
            log.warning("the lease of %r could not be extended: %s", self, trouble)
            length = length // 2
        self._beat = None
        self._next_beat(length)


def _completed(result: Any | Unset) -> wire.WireResult | None:
    if isinstance(result, Unset):
        return None
    text, encoded = text_or_base64(to_bytes(result, "result"))
    return wire.WireResult(value=text, value_base64=encoded)
