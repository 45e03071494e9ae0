"""Cooldowns: minimum intervals between two operations on the same queue."""

from typing import Final

from tenantq.runtime.clock import Clock
from tenantq.service.call import Call
from tenantq.sqs.settings import SqsSettings

REMEMBERED_MAX: Final = 1_000
"""Queues remembered per tenant. Beyond that, the oldest of the same tenant are dropped."""


class Cooldowns:
    """When an action was last done to a queue, kept by the shard that owns the tenant until it stops."""

    def __init__(self, clock: Clock, pause_ms: int) -> None:
        self._clock = clock
        self._pause_ms = pause_ms
        self._done: dict[int, dict[str, int]] = {}  # by tenant, the oldest first

    async def note(self, call: Call, tenant: str, tenant_id: int, queue: str) -> None:  # noqa: ARG002  # they route it
        """Start the cooldown of a queue."""
        now = self._clock.monotonic_ms()
        theirs = self._done.pop(tenant_id, {})
        theirs.pop(queue, None)
        theirs[queue] = now
        if len(theirs) > REMEMBERED_MAX:
            del theirs[next(iter(theirs))]
        self._done[tenant_id] = theirs
        while now - _last(self._done[first := next(iter(self._done))]) >= self._pause_ms > 0:
            del self._done[first]  # all of its cooldowns have ended

    async def is_on(self, call: Call, tenant: str, tenant_id: int, queue: str) -> bool:  # noqa: ARG002  # they route it
        """Return whether the cooldown of a queue is still running."""
        at = self._done.get(tenant_id, {}).get(queue)
        return at is not None and self._clock.monotonic_ms() - at < self._pause_ms


def _last(times: dict[str, int]) -> int:
    return next(reversed(times.values()))


COOLDOWNS: Final[dict[str, type]] = {"sqs_purges": Cooldowns, "sqs_deletions": Cooldowns}
"""The cooldowns of a server by name. The shard that owns a tenant keeps its own."""


def sqs_cooldowns(settings: SqsSettings, clock: Clock) -> dict[str, Cooldowns]:
    """Return the cooldowns of one shard."""
    cooldowns_ms = {"sqs_purges": settings.purge_pause_ms, "sqs_deletions": settings.recreate_pause_ms}
    return {name: Cooldowns(clock, cooldown_ms) for name, cooldown_ms in cooldowns_ms.items()}
