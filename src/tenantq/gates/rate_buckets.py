"""The token buckets of all tenants and queues for one kind of charge. Only those from which something is missing are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tenantq.domain.rates import Rate
from tenantq.gates.charge import Charge, RateScope
from tenantq.gates.token_bucket import TokenBucket


class LimitStatus(NamedTuple):
    """One limit as it stands against one charge."""

    missing_ms: int  # until it would admit the charge
    setting: str
    scope: RateScope
    per_sec: int
    burst: int
    amount: int  # what the charge needs
    left: int


class _BucketPair(msgspec.Struct, gc=False):  # it never refers back, so there are no cycles
    """The buckets of one tenant or one queue. A bucket that is None is full."""

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

    def refund(self, rate: Rate, ops: int, size: int, now: int) -> None:
        if self.ops is not None and rate.ops_per_sec is not None:
            self.ops.refund(ops, rate.ops_per_sec, rate.ops_burst, now)
        if self.bytes is not None and rate.bytes_per_sec is not None:
            self.bytes.refund(size, rate.bytes_per_sec, rate.bytes_per_sec, now)

    def is_full(self, now: int) -> bool:
        return self.wait_ms(self.rate, self.rate.ops_burst, self.rate.bytes_per_sec or 0, now) == 0


class Buckets:
    """Buckets by tenant and by (tenant, queue). They are created when first used and dropped when full again."""

    def __init__(self) -> None:
        self._tenants: dict[str, _BucketPair] = {}
        self._queues: dict[tuple[str, str | None], _BucketPair] = {}
        self._queue_names: dict[str, set[str | None]] = {}  # by tenant, of those in _queues
        self._to_collect: list[str | tuple[str, str | None]] = []  # not checked yet by this sweep of collect

    def __len__(self) -> int:
        return len(self._tenants) + len(self._queues)

    def take(self, charge: Charge, now: int) -> bool:
        """Take the charge from all buckets, or nothing if one of them lacks tokens; return whether it was taken."""
        ops, size = charge.ops, charge.bytes
        tenant_pair = queue_pair = None
        if (tenant_rate := charge.tenant_rate) is not None:
            tenant_pair = self._tenants.get(charge.tenant)
            if not (tenant_pair or _BucketPair(tenant_rate)).has(tenant_rate, ops, size, now):
                return False
        if (queue_rate := charge.queue_rate) is not None:
            queue_pair = self._queues.get((charge.tenant, charge.queue))
            if not (queue_pair or _BucketPair(queue_rate)).has(queue_rate, ops, size, now):
                return False
        if tenant_rate is not None:
            (tenant_pair or self._tenant_pair(charge, tenant_rate)).charge(tenant_rate, ops, size, now)
        if queue_rate is not None:
            (queue_pair or self._queue_pair(charge, queue_rate)).charge(queue_rate, ops, size, now)
        return True

    def tenant_wait_ms(self, charge: Charge, now: int) -> int:
        """Return in how many milliseconds the tenant's limits admit the charge."""
        if charge.tenant_rate is None:
            return 0
        pair = self._tenants.get(charge.tenant)
        return 0 if pair is None else pair.wait_ms(charge.tenant_rate, charge.ops, charge.bytes, now)

    def queue_wait_ms(self, charge: Charge, now: int) -> int:
        """Return in how many milliseconds the queue's limits admit the charge."""
        if charge.queue_rate is None:
            return 0
        pair = self._queues.get((charge.tenant, charge.queue))
        return 0 if pair is None else pair.wait_ms(charge.queue_rate, charge.ops, charge.bytes, now)

    def wait_ms(self, charge: Charge, now: int) -> int:
        """Return in how many milliseconds all limits admit the charge."""
        return max(self.tenant_wait_ms(charge, now), self.queue_wait_ms(charge, now))

    def charge(self, charge: Charge, now: int) -> None:
        """Take the charge from all buckets, into debt if tokens are missing."""
        if (rate := charge.tenant_rate) is not None:
            self._tenant_pair(charge, rate).charge(rate, charge.ops, charge.bytes, now)
        if (rate := charge.queue_rate) is not None:
            self._queue_pair(charge, rate).charge(rate, charge.ops, charge.bytes, now)

    def refund(self, charge: Charge, now: int) -> None:
        if charge.tenant_rate is not None and (pair := self._tenants.get(charge.tenant)) is not None:
            pair.refund(charge.tenant_rate, charge.ops, charge.bytes, now)
        if charge.queue_rate is not None and (pair := self._queues.get((charge.tenant, charge.queue))) is not None:
            pair.refund(charge.queue_rate, charge.ops, charge.bytes, now)

    def statuses(self, charge: Charge, now: int) -> Iterator[LimitStatus]:
        """Yield every limit that applies to the charge, as it stands now."""
        tenant, queue = self._tenants.get(charge.tenant), self._queues.get((charge.tenant, charge.queue))
        yield from _statuses(charge, charge.owner, charge.tenant_rate, tenant, now)
        yield from _statuses(charge, "queue", charge.queue_rate, queue, now)

    def forget(self, tenant: str) -> None:
        self._tenants.pop(tenant, None)
        for queue in self._queue_names.pop(tenant, ()):
            del self._queues[tenant, queue]

    def collect(self, most: int, now: int) -> int:
        """Drop full buckets, checking at most ``most`` in turn; return how many were dropped."""
        if not self._to_collect:
            self._to_collect = [*self._tenants, *self._queues]
        before = len(self)
        for _ in range(min(most, len(self._to_collect))):
            key = self._to_collect.pop()
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

    def _tenant_pair(self, charge: Charge, rate: Rate) -> _BucketPair:
        pair = self._tenants.get(charge.tenant)
        if pair is None:
            pair = self._tenants[charge.tenant] = _BucketPair(rate)
        return pair

    def _queue_pair(self, charge: Charge, rate: Rate) -> _BucketPair:
        pair = self._queues.get((charge.tenant, charge.queue))
        if pair is None:
            pair = self._queues[charge.tenant, charge.queue] = _BucketPair(rate)
            self._queue_names.setdefault(charge.tenant, set()).add(charge.queue)
        return pair


def _statuses(
    charge: Charge, scope: RateScope, rate: Rate | None, pair: _BucketPair | None, now: int
) -> Iterator[LimitStatus]:
    if rate is None:
        return
    for setting, per_sec, burst, amount, bucket in (
        ("ops_per_sec", rate.ops_per_sec, rate.ops_burst, charge.ops, pair and pair.ops),
        ("bytes_per_sec", rate.bytes_per_sec, rate.bytes_per_sec or 0, charge.bytes, pair and pair.bytes),
    ):
        if per_sec is not None:
            kept = bucket or TokenBucket.full(burst, now)
            missing_ms = kept.wait_ms(amount, per_sec, burst, now)
            left = kept.tokens(per_sec, burst, now)
            yield LimitStatus(missing_ms, f"limits.{charge.kind}.{setting}", scope, per_sec, burst, amount, left)
