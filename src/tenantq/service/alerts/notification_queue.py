"""Delivers notifications to a target: in order, with retries, without delaying anything else."""

import asyncio
import logging
import uuid
from collections import Counter, deque
from typing import Final

from tenantq.runtime.backoff import Backoff
from tenantq.runtime.clock import Clock, sleep_ms
from tenantq.runtime.randomness import system_randomness
from tenantq.service.alerts.active_alerts import Notification
from tenantq.service.alerts.targets import DeliveryFailed, Target

log = logging.getLogger("tenantq")

WAITING_MAX: Final = 1_000
"""Notifications that wait for one target. Beyond that the oldest is dropped."""

ATTEMPTS: Final = 36  # with the backoff below: from 70 to 140 minutes
BACKOFF: Final = Backoff(base_ms=1_000, max_ms=300_000)


class NotificationQueue:
    """The notifications that wait for the targets of a shard."""

    def __init__(self, targets: dict[str, Target], clock: Clock) -> None:
        self._targets, self._clock = targets, clock
        self._waiting: dict[str, deque[tuple[str, Notification]]] = {name: deque() for name in targets}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._randomness = system_randomness()
        self.counts: Counter[tuple[str, str]] = Counter()  # by target and outcome: sent, failed, dropped

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of all targets."""
        return tuple(sorted(self._targets))

    def has_room(self, targets: tuple[str, ...]) -> bool:
        """Return whether one of these targets can take another notification, or there is none to wait for."""
        waiting = [self._waiting[name] for name in targets if name in self._waiting]
        return not waiting or any(len(one) < WAITING_MAX for one in waiting)

    def send(self, notification: Notification, targets: tuple[str, ...]) -> None:
        """Deliver a notification later. Targets that the server does not have are skipped."""
        for name in targets:
            waiting = self._waiting.get(name)
            if waiting is None:
                log.warning("alert target %s is not defined on this server", name)
                continue
            if len(waiting) >= WAITING_MAX:
                waiting.popleft()
                self.counts[name, "dropped"] += 1
            waiting.append((f"msg_{uuid.uuid4().hex}", notification))
            if name not in self._workers:
                self._workers[name] = asyncio.get_running_loop().create_task(self._work(name))

    async def send_now(self, notification: Notification, target: str) -> None:
        """Deliver a notification once. Raises DeliveryFailed."""
        await self._targets[target].send(f"msg_{uuid.uuid4().hex}", notification)

    async def close(self) -> None:
        """Stop. Notifications that still wait are dropped; an alert that lasts is sent again after a restart."""
        workers = list(self._workers.values())
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, name: str) -> None:
        waiting = self._waiting[name]
        try:
            while waiting:
                await self._deliver(name, *waiting.popleft())
        finally:
            del self._workers[name]

    async def _deliver(self, name: str, id: str, notification: Notification) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._targets[name].send(id, notification)
            except DeliveryFailed as error:
                log.warning("alert target %s, attempt %d of %d: %s", name, attempt, ATTEMPTS, error)
                if attempt < ATTEMPTS:
                    await sleep_ms(self._clock, BACKOFF.half_jitter_ms(attempt, self._randomness))
            else:
                self.counts[name, "sent"] += 1
                return
        self.counts[name, "failed"] += 1
        log.error("alert target %s did not accept a notification: %s", name, notification.text)
