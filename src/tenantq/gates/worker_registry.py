"""Workers: who polls which queue, since when, and with which version. Kept in memory and bounded."""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Final

import msgspec

from tenantq.runtime.clock import Clock

WORKERS_MAX: Final = 10_000
"""Workers remembered per shard; beyond that, the one that polled least recently is dropped."""

_WORKER: Final = " worker/"
_WorkerKey = tuple[str, str, str, str]  # tenant, queue, principal, name


class WorkerEntry(msgspec.Struct, frozen=True):
    """One worker of one queue."""

    queue: str
    worker: str  # its own name, or its address
    principal: str
    remote: str
    version: str  # of its client, as its user agent says
    since: int  # wall clock of its first poll
    last_seen: int  # wall clock of its last poll


class _PollingWorker:
    __slots__ = ("gone_at", "remote", "seen", "since", "version")

    def __init__(self, since: int, version: str) -> None:
        self.since, self.version = since, version
        self.seen = self.gone_at = 0
        self.remote = ""


class WorkerRegistry:
    """Workers by their polls. One expires ``idle_ms`` after its last poll, and after the wait of that poll."""

    def __init__(self, clock: Clock, idle_ms: int) -> None:
        self._clock, self._idle_ms = clock, idle_ms
        self._workers: OrderedDict[_WorkerKey, _PollingWorker] = OrderedDict()
        self._of_queues: defaultdict[tuple[str, str], dict[_WorkerKey, _PollingWorker]] = defaultdict(dict)

    def note(
        self, tenant: str, queue: str, principal: str, consumer: str | None, remote: str, agent: str, wait_ms: int
    ) -> None:
        """Note a poll. The name of a worker is what its agent says, the consumer of the poll, or its address."""
        version, _, name = agent.partition(_WORKER)
        key = (tenant, queue, principal, name or consumer or remote)
        now, worker = self._clock.monotonic_ms(), self._workers.get(key)
        if worker is not None and worker.gone_at >= now:
            self._workers.move_to_end(key)
        else:
            worker = self._workers[key] = self._of_queues[key[:2]][key] = _PollingWorker(self._clock.wall_ms(), version)
            while len(self._workers) > WORKERS_MAX:
                self._drop(next(iter(self._workers)))
        worker.seen, worker.remote = self._clock.wall_ms(), remote
        worker.gone_at = now + wait_ms + self._idle_ms

    def of(self, tenant: str) -> list[WorkerEntry]:
        """Return the workers of a tenant by queue and name."""
        now = self._clock.monotonic_ms()
        found = [
            WorkerEntry(queue, name, principal, one.remote, one.version, one.since, one.seen)
            for (owner, queue, principal, name), one in self._workers.items()
            if owner == tenant and one.gone_at >= now
        ]
        return sorted(found, key=lambda one: (one.queue, one.worker, one.principal))

    def counts(self, tenant: str, queues: Iterable[str]) -> list[int]:
        """Return how many workers each of these queues has."""
        now, of_queues = self._clock.monotonic_ms(), self._of_queues
        return [
            len([one for one in found.values() if one.gone_at >= now])
            if (found := of_queues.get((tenant, queue)))
            else 0
            for queue in queues
        ]

    def _drop(self, key: _WorkerKey) -> None:
        del self._workers[key]
        left = self._of_queues[key[:2]]
        del left[key]
        if not left:
            del self._of_queues[key[:2]]

    def forget(self, tenant: str) -> None:
        """Drop the workers of a deleted tenant."""
        for key in [key for key in self._workers if key[0] == tenant]:
            self._drop(key)

    def collect(self, most: int = 200) -> None:
        """Drop workers that are gone, checking at most ``most`` of those that polled least recently."""
        now = self._clock.monotonic_ms()
        for key in [key for key, _ in zip(self._workers, range(most), strict=False)]:
            if self._workers[key].gone_at < now:
                self._drop(key)
