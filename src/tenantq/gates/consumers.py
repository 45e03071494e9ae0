"""Consumers: limits how many poll a queue at a time."""

from collections import OrderedDict
from typing import Annotated, Final

from tenantq.domain.validation import check_field, text
from tenantq.errors import QuotaExceeded
from tenantq.runtime.clock import Clock

CONSUMER_CHARS_MAX: Final = 256  # with its principal and address
_Consumer = Annotated[str, text(CONSUMER_CHARS_MAX)]


class _Known:
    """The consumers of one queue."""

    __slots__ = ("first_gone_at", "gone_at")

    def __init__(self) -> None:
        self.gone_at: dict[str, int] = {}  # consumer -> when it expires, unless it polls again
        self.first_gone_at = 0  # no consumer expires before

    def drop_gone(self, now: int) -> None:
        if now >= self.first_gone_at:
            self.gone_at = {consumer: at for consumer, at in self.gone_at.items() if at > now}
            self.first_gone_at = min(self.gone_at.values(), default=0)


class Consumers:
    """Consumers per queue, known by their polls. A consumer expires ``idle_ms`` after its last poll.

    Only queues with a limit are watched, so there are never more consumers in memory than the limits allow.
    """

    def __init__(self, clock: Clock, idle_ms: int = 60_000) -> None:
        self._clock = clock
        self._idle_ms = idle_ms
        self._queues: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def __len__(self) -> int:
        """Return how many queues have consumers that are watched."""
        return len(self._queues)

    def note(self, tenant: str, queue: str, consumer: str, limit: int | None, *, wait_ms: int = 0) -> None:
        """Note that ``consumer`` polls and may wait ``wait_ms``. Raises QuotaExceeded beyond the limit.

        A known consumer is admitted even if the limit was lowered below the current number.
        """
        if limit is None:
            return
        now = self._clock.monotonic_ms()
        known = self._queues.get((tenant, queue))
        if known is None or consumer not in known.gone_at:
            check_field("consumer", consumer, _Consumer)
            if known is None:
                known = _Known()
            known.drop_gone(now)
            if len(known.gone_at) >= limit:
                raise self._refusal(tenant, queue, known, limit, now)
            self._queues[tenant, queue] = known
        at = now + wait_ms + self._idle_ms
        known.gone_at[consumer] = at
        if at < known.first_gone_at or len(known.gone_at) == 1:
            known.first_gone_at = at

    def count(self, tenant: str, queue: str) -> int:
        """Return how many consumers a queue has; 0 if it has no limit."""
        known = self._queues.get((tenant, queue))
        if known is None:
            return 0
        known.drop_gone(self._clock.monotonic_ms())
        return len(known.gone_at)

    def forget(self, tenant: str) -> None:
        """Drop the consumers of a deleted tenant."""
        for key in [key for key in self._queues if key[0] == tenant]:
            del self._queues[key]

    def collect(self, most: int = 200) -> int:
        """Drop queues without consumers, checking at most ``most`` in turn; return how many were dropped."""
        now = self._clock.monotonic_ms()
        before = len(self._queues)
        for _ in range(min(most, before)):
            key, known = next(iter(self._queues.items()))
            known.drop_gone(now)
            if known.gone_at:
                self._queues.move_to_end(key)
            else:
                del self._queues[key]
        return before - len(self._queues)

    def _refusal(self, tenant: str, queue: str, known: _Known, limit: int, now: int) -> QuotaExceeded:
        count = len(known.gone_at)
        return QuotaExceeded(
            f"quotas.consumers_per_queue: {count} consumers poll this queue, the limit is {limit}. Stop one and wait "
            f"{self._idle_ms} ms, or ask for a higher limit",
            limit=limit,
            current=count,
            retry_after_ms=max(1, known.first_gone_at - now),
            tenant=tenant,
            queue=queue,
        )
