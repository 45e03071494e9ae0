"""The token buckets of all tenants and queues for one kind of work. Only those from which something is missing are kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from tenantq.domain.rates import Rate
from tenantq.gates.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["read", "write"]


class Work(msgspec.Struct, eq=False):
    """What one call wants to do, and under which limits; a rate of None: no limit."""

    kind: Kind
    tenant: str
    tenant_rate: Rate | None
    queue: str | None
    queue_rate: Rate | None
    ops: int
    bytes: int
    served: asyncio.Future[bool] | None = None  # while it waits; False: its time is over


class Bound(NamedTuple):
    """One limit as it stands against one call."""

    missing_ms: int  # until it would admit the call
    setting: str
    scope: Literal["tenant", "queue"]
    per_sec: int
    burst: int
    amount: int  # what the call wants
    left: int


class _Pair(msgspec.Struct, gc=False):  # it refers to buckets and settings only, never back
    """The buckets of one tenant or one queue. A bucket that is not there would be full."""

    rate: Rate  # as it was when last used
    ops: TokenBucket | None = None
    bytes: TokenBucket | None = None

    def has(self, rate: Rate, ops: int, size: int, now: int) -> bool:
        if (per_sec := rate.ops_per_sec) is not None:
            burst = rate.burst or per_sec
            if not (ops <= burst if self.ops is None else self.ops.has(ops, per_sec, burst, now)):
                return False
        if (per_sec := rate.bytes_per_sec) is not None:
            return size <= per_sec if self.bytes is None else self.bytes.has(size, per_sec, per_sec, now)
        return True

    def wait_ms(self, rate: Rate, ops: int, size: int, now: int) -> int:
        wait = 0
        if self.ops is not None and rate.ops_per_sec is not None:
            wait = self.ops.wait_ms(ops, rate.ops_per_sec, rate.ops_burst, now)
        if self.bytes is not None and rate.bytes_per_sec is not None:
            wait = max(wait, self.bytes.wait_ms(size, rate.bytes_per_sec, rate.bytes_per_sec, now))
        return wait

    def charge(self, rate: Rate, ops: int, size: int, now: int) -> None:
        self.rate = rate
        if ops and (per_sec := rate.ops_per_sec) is not None:
            burst = rate.burst or per_sec
            if self.ops is None:
                self.ops = TokenBucket.full(burst, now)
            self.ops.charge(ops, per_sec, burst, now)
        if size and (per_sec := rate.bytes_per_sec) is not None:
            if self.bytes is None:
                self.bytes = TokenBucket.full(per_sec, now)
            self.bytes.charge(size, per_sec, per_sec, now)

    def give_back(self, rate: Rate, ops: int, size: int, now: int) -> None:
        if self.ops is not None and rate.ops_per_sec is not None:
            self.ops.give_back(ops, rate.ops_per_sec, rate.ops_burst, now)
        if self.bytes is not None and rate.bytes_per_sec is not None:
            self.bytes.give_back(size, rate.bytes_per_sec, rate.bytes_per_sec, now)

    def is_full(self, now: int) -> bool:
        return self.wait_ms(self.rate, self.rate.ops_burst, self.rate.bytes_per_sec or 0, now) == 0


class Buckets:
    """Buckets by tenant and by (tenant, queue), made when first used, forgotten when full again."""

    __slots__ = ("_queue_names", "_queues", "_tenants", "_to_visit")

    def __init__(self) -> None:
        self._tenants: dict[str, _Pair] = {}
        self._queues: dict[tuple[str, str | None], _Pair] = {}
        self._queue_names: dict[str, set[str | None]] = {}  # by tenant, of those in _queues
        self._to_visit: list[str | tuple[str, str | None]] = []  # what this sweep of collect has not looked at yet

    def __len__(self) -> int:
        return len(self._tenants) + len(self._queues)

    def take(self, work: Work, now: int) -> bool:
        """Take what ``work`` uses from all buckets, or nothing from any if one lacks it."""
        ops, size = work.ops, work.bytes
        tenant_pair = queue_pair = None
        if (tenant_rate := work.tenant_rate) is not None:
            tenant_pair = self._tenants.get(work.tenant)
            if not (tenant_pair or _Pair(tenant_rate)).has(tenant_rate, ops, size, now):
                return False
        if (queue_rate := work.queue_rate) is not None:
            queue_pair = self._queues.get((work.tenant, work.queue))
            if not (queue_pair or _Pair(queue_rate)).has(queue_rate, ops, size, now):
                return False
        if tenant_rate is not None:
            (tenant_pair or self._tenant_pair(work, tenant_rate)).charge(tenant_rate, ops, size, now)
        if queue_rate is not None:
            (queue_pair or self._queue_pair(work, queue_rate)).charge(queue_rate, ops, size, now)
        return True

    def tenant_wait_ms(self, work: Work, now: int) -> int:
        """Return in how many milliseconds the tenant's limits admit ``work``; 0: now."""
        if work.tenant_rate is None:
            return 0
        pair = self._tenants.get(work.tenant)
        return 0 if pair is None else pair.wait_ms(work.tenant_rate, work.ops, work.bytes, now)

    def queue_wait_ms(self, work: Work, now: int) -> int:
        """Return in how many milliseconds the queue's limits admit ``work``; 0: now."""
        if work.queue_rate is None:
            return 0
        pair = self._queues.get((work.tenant, work.queue))
        return 0 if pair is None else pair.wait_ms(work.queue_rate, work.ops, work.bytes, now)

    def wait_ms(self, work: Work, now: int) -> int:
        """Return in how many milliseconds all limits admit ``work``; 0: now."""
        return max(self.tenant_wait_ms(work, now), self.queue_wait_ms(work, now))

    def charge(self, work: Work, now: int) -> None:
        """Take what ``work`` uses from all buckets, whether or not it is there."""
        if (rate := work.tenant_rate) is not None:
            self._tenant_pair(work, rate).charge(rate, work.ops, work.bytes, now)
        if (rate := work.queue_rate) is not None:
            self._queue_pair(work, rate).charge(rate, work.ops, work.bytes, now)

    def give_back(self, work: Work, now: int) -> None:
        """Put back what was taken for ``work``."""
        if work.tenant_rate is not None and (pair := self._tenants.get(work.tenant)) is not None:
            pair.give_back(work.tenant_rate, work.ops, work.bytes, now)
        if work.queue_rate is not None and (pair := self._queues.get((work.tenant, work.queue))) is not None:
            pair.give_back(work.queue_rate, work.ops, work.bytes, now)

    def bounds(self, work: Work, now: int) -> Iterator[Bound]:
        """Return every limit that ``work`` is under, as it stands now."""
        tenant, queue = self._tenants.get(work.tenant), self._queues.get((work.tenant, work.queue))
        yield from _bounds(work, "tenant", work.tenant_rate, tenant, now)
        yield from _bounds(work, "queue", work.queue_rate, queue, now)

    def forget(self, tenant: str) -> None:
        """Drop all buckets of a tenant."""
        self._tenants.pop(tenant, None)
        for queue in self._queue_names.pop(tenant, ()):
            del self._queues[tenant, queue]

    def collect(self, most: int, now: int) -> int:
        """Drop what is full again, looking at ``most`` of all in turn; return how many went."""
        if not self._to_visit:
            self._to_visit = [*self._tenants, *self._queues]
        before = len(self)
        for _ in range(min(most, len(self._to_visit))):
            key = self._to_visit.pop()
            if isinstance(key, str):
                if key in self._tenants and self._tenants[key].is_full(now):
                    del self._tenants[key]
            elif key in self._queues and self._queues[key].is_full(now):
                del self._queues[key]
                names = self._queue_names[key[0]]
                names.remove(key[1])
                if not names:
                    del self._queue_names[key[0]]
        return before - len(self)

    def _tenant_pair(self, work: Work, rate: Rate) -> _Pair:
        pair = self._tenants.get(work.tenant)
        if pair is None:
            pair = self._tenants[work.tenant] = _Pair(rate)
        return pair

    def _queue_pair(self, work: Work, rate: Rate) -> _Pair:
        pair = self._queues.get((work.tenant, work.queue))
        if pair is None:
            pair = self._queues[work.tenant, work.queue] = _Pair(rate)
            self._queue_names.setdefault(work.tenant, set()).add(work.queue)
        return pair


def _bounds(
    work: Work, scope: Literal["tenant", "queue"], rate: Rate | None, pair: _Pair | None, now: int
) -> Iterator[Bound]:
    if rate is None:
        return
    for setting, per_sec, burst, amount, bucket in (
        ("ops_per_sec", rate.ops_per_sec, rate.ops_burst, work.ops, pair and pair.ops),
        ("bytes_per_sec", rate.bytes_per_sec, rate.bytes_per_sec or 0, work.bytes, pair and pair.bytes),
    ):
        if per_sec is not None:
            kept = bucket or TokenBucket.full(burst, now)
            missing_ms = kept.wait_ms(amount, per_sec, burst, now)
            left = kept.tokens(per_sec, burst, now)
            yield Bound(missing_ms, f"limits.{work.kind}.{setting}", scope, per_sec, burst, amount, left)
