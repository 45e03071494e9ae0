"""Rate limits: operations and bytes a second, reading and writing apart, per tenant and per queue.

Work is admitted by every limit that concerns it, or it is refused and uses up nothing. Where no limit is set there is
nothing to keep and next to nothing to do. Buckets belong to the tenant, whichever of its keys a caller has.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from tenantq.errors import RateLimited, TooLarge
from tenantq.gates.rate_buckets import Buckets, Kind, Work

if TYPE_CHECKING:
    from tenantq.domain.rates import Limits, Rate
    from tenantq.runtime.clock import Clock, Timer


class _Line:
    """Work of one tenant that waits for tokens, in the order it came.

    Nobody passes the first that waits for the tenant's tokens, nor, in the same queue, the first that waits for the queue's.
    """

    __slots__ = ("due_ms", "queues_short", "tenant_short", "timer", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[Work, None] = OrderedDict()
        self.tenant_short = False
        self.queues_short: set[str | None] = set()
        self.timer: Timer | None = None
        self.due_ms = 0  # when the timer fires

    def blocks(self, work: Work) -> bool:
        """Tell whether ``work`` would pass somebody."""
        return (self.tenant_short and work.tenant_rate is not None) or work.queue in self.queues_short


class RateLimits:
    """Token buckets per tenant and per queue, on the clock's monotonic time.

    ``queue`` None: the call concerns no queue. Limits of None are no limits. Limits come with each call, so a change acts at once.
    """

    __slots__ = ("_clock", "_lines", "_read", "_waiting_max", "_write")

    def __init__(self, clock: Clock, *, waiting_max: int = 1_000) -> None:
        self._clock = clock
        self._write = Buckets()
        self._read = Buckets()
        self._lines: dict[tuple[Kind, str], _Line] = {}  # by tenant, while any of its work waits
        self._waiting_max = waiting_max  # calls of one tenant and kind

    def __len__(self) -> int:
        """Return how many tenants and queues have buckets that are not known to be full."""
        return len(self._write) + len(self._read)

    def waiting(self, tenant: str) -> int:
        """Return how many calls of a tenant wait for tokens."""
        lines = (self._lines.get(("write", tenant)), self._lines.get(("read", tenant)))
        return sum(len(line.waiting) for line in lines if line is not None)

    def admit(
        self,
        tenant: str,
        tenant_limits: Limits | None,
        queue: str | None,
        queue_limits: Limits | None,
        kind: Kind,
        ops: int = 1,
        bytes: int = 0,
    ) -> None:
        """Take what the call uses from every bucket that concerns it; else take nothing and raise RateLimited.

        TooLarge: it is more than a burst, so it could never pass.
        """
        work = _limited(kind, tenant, tenant_limits, queue, queue_limits, ops, bytes)
        if work is not None and self._try(work):
            raise self._refusal(work)

    async def admit_within(
        self,
        tenant: str,
        tenant_limits: Limits | None,
        queue: str | None,
        queue_limits: Limits | None,
        kind: Kind,
        ops: int = 1,
        bytes: int = 0,
        *,
        wait_ms: int,
    ) -> None:
        """Do as ``admit`` does, but wait for tokens up to ``wait_ms``, behind those who waited before.

        A call whose tokens cannot be there in time is refused at once. One that is cancelled leaves no trace.
        """
        work = _limited(kind, tenant, tenant_limits, queue, queue_limits, ops, bytes)
        if work is None or not (wait := self._try(work)):
            return
        line = self._lines.get((kind, tenant))
        full = line is not None and len(line.waiting) >= self._waiting_max
        if full or wait > wait_ms or not await self._wait(work, wait, wait_ms):
            raise self._refusal(work)

    def charge(
        self,
        tenant: str,
        tenant_limits: Limits | None,
        queue: str | None,
        queue_limits: Limits | None,
        kind: Kind,
        ops: int = 0,
        bytes: int = 0,
    ) -> None:
        """Take what a call turned out to use, whether or not it is there: later calls wait until the debt is paid."""
        work = _limited(kind, tenant, tenant_limits, queue, queue_limits, ops, bytes)
        if work is not None:
            self._buckets(kind).charge(work, self._clock.monotonic_ms())

    def give_back(
        self,
        tenant: str,
        tenant_limits: Limits | None,
        queue: str | None,
        queue_limits: Limits | None,
        kind: Kind,
        ops: int = 1,
        bytes: int = 0,
    ) -> None:
        """Undo an ``admit`` of the same arguments whose work was not done after all."""
        work = _limited(kind, tenant, tenant_limits, queue, queue_limits, ops, bytes)
        if work is not None:
            self._give_back(work)

    def left(
        self, tenant: str, tenant_limits: Limits | None, queue: str | None, queue_limits: Limits | None, kind: Kind
    ) -> int | None:
        """Return how many operations all limits would admit now, below zero while there is debt; None: any number."""
        work = _limited(kind, tenant, tenant_limits, queue, queue_limits, 0, 0)
        if work is None:
            return None
        bounds = self._buckets(kind).bounds(work, self._clock.monotonic_ms())
        return min((bound.left for bound in bounds if bound.setting.endswith(".ops_per_sec")), default=None)

    def wait_ms(
        self, tenant: str, tenant_limits: Limits | None, queue: str | None, queue_limits: Limits | None, kind: Kind
    ) -> int:
        """Return in how many milliseconds all limits would admit one operation; 0: now. Nothing is taken."""
        work = _limited(kind, tenant, tenant_limits, queue, queue_limits, 1, 0)
        return 0 if work is None else self._buckets(kind).wait_ms(work, self._clock.monotonic_ms())

    def forget(self, tenant: str) -> None:
        """Drop the buckets of a tenant that is deleted."""
        self._write.forget(tenant)
        self._read.forget(tenant)

    def collect(self, most: int = 200) -> int:
        """Drop buckets that are full again, looking at ``most`` of each kind in turn; return how many went.

        To be called now and then; each call goes on where the last one ended.
        """
        now = self._clock.monotonic_ms()
        return self._write.collect(most, now) + self._read.collect(most, now)

    def _buckets(self, kind: Kind) -> Buckets:
        return self._write if kind == "write" else self._read

    def _try(self, work: Work) -> int:
        """Take all that ``work`` uses and return 0, or take nothing and return the milliseconds until it may pass."""
        buckets, now = self._buckets(work.kind), self._clock.monotonic_ms()
        line = self._lines.get((work.kind, work.tenant)) if self._lines else None
        blocked = line is not None and line.blocks(work)
        if not blocked and buckets.take(work, now):
            return 0
        _check_fits(work)
        ahead_ms = line.due_ms - now if line is not None and blocked else 0
        return max(buckets.wait_ms(work, now), ahead_ms, 1)

    def _give_back(self, work: Work) -> None:
        self._buckets(work.kind).give_back(work, self._clock.monotonic_ms())
        self._serve(work.kind, work.tenant)

    def _refusal(self, work: Work) -> RateLimited:
        """Return the error that names the limit furthest from admitting ``work``, and when to come back."""
        now = self._clock.monotonic_ms()
        bound = max(self._buckets(work.kind).bounds(work, now))
        line = self._lines.get((work.kind, work.tenant))
        ahead_ms = line.due_ms - now if line is not None and line.blocks(work) else 0
        wait = max(bound.missing_ms, ahead_ms, 1)
        left = max(0, bound.left)
        why = f"{left} left, {bound.amount} asked for" if bound.missing_ms else "others wait already"
        return RateLimited(
            f"{bound.setting}: {bound.per_sec} a second for this {bound.scope}, {bound.burst} at once; {why}. "
            f"Try again in {wait} ms",
            limit=bound.per_sec,
            current=left,
            retry_after_ms=wait,
            tenant=work.tenant,
            queue=work.queue,
        )

    # ---- waiting ----

    async def _wait(self, work: Work, wait: int, wait_ms: int) -> bool:
        """Wait until ``work`` is admitted; return False when ``wait_ms`` are over."""
        served: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        work.served = served
        self._join(work, wait)
        timer = self._clock.call_later(wait_ms, lambda: self._time_out(work))
        try:
            return await served
        except asyncio.CancelledError:
            if served.cancelled() or not served.done():
                self._leave(work)
            elif served.result():
                self._give_back(work)  # admitted and cancelled in the same moment
            raise
        finally:
            timer.cancel()

    def _join(self, work: Work, wait: int) -> None:
        """Put ``work`` at the end of its tenant's line."""
        now = self._clock.monotonic_ms()
        line = self._lines.setdefault((work.kind, work.tenant), _Line())
        line.waiting[work] = None
        if not line.blocks(work):
            if self._buckets(work.kind).queue_wait_ms(work, now):
                line.queues_short.add(work.queue)
            else:
                line.tenant_short = True
            if line.timer is None or now + wait < line.due_ms:
                self._arm(work.kind, work.tenant, line, wait)

    def _time_out(self, work: Work) -> None:
        if work.served is not None and not work.served.done():
            work.served.set_result(False)
            self._leave(work)

    def _leave(self, work: Work) -> None:
        """Take ``work`` out of its line; those it held up may go."""
        line = self._lines.get((work.kind, work.tenant))
        if line is not None and work in line.waiting:
            del line.waiting[work]
            self._serve(work.kind, work.tenant)

    def _serve(self, kind: Kind, tenant: str) -> None:
        """Admit, in order, whoever in a tenant's line can go now, and set the timer for the next."""
        line = self._lines.get((kind, tenant))
        if line is None:
            return
        buckets, now = self._buckets(kind), self._clock.monotonic_ms()
        line.tenant_short = False
        line.queues_short.clear()
        gone: list[Work] = []
        next_ms: list[int] = []
        for work in line.waiting:
            if work.served is None or work.served.done():  # cancelled a moment ago
                gone.append(work)
                continue
            if work.queue in line.queues_short:
                continue
            if wait := buckets.queue_wait_ms(work, now):
                line.queues_short.add(work.queue)
                next_ms.append(wait)
            elif wait := buckets.tenant_wait_ms(work, now):
                line.tenant_short = True
                next_ms.append(wait)
                break
            else:
                buckets.charge(work, now)
                work.served.set_result(True)
                gone.append(work)
        for work in gone:
            del line.waiting[work]
        if next_ms:
            self._arm(kind, tenant, line, min(next_ms))
        else:
            if line.timer is not None:
                line.timer.cancel()
                line.timer = None
            if not line.waiting:
                del self._lines[kind, tenant]

    def _arm(self, kind: Kind, tenant: str, line: _Line, wait: int) -> None:
        if line.timer is not None:
            line.timer.cancel()
        line.due_ms = self._clock.monotonic_ms() + wait
        line.timer = self._clock.call_later(wait, lambda: self._serve(kind, tenant))


def _limited(
    kind: Kind,
    tenant: str,
    tenant_limits: Limits | None,
    queue: str | None,
    queue_limits: Limits | None,
    ops: int,
    bytes: int,
) -> Work | None:
    """Return the work with the limits it is under, or None if there are none."""
    tenant_rate = _rate(tenant_limits, kind)
    queue_rate = _rate(queue_limits, kind) if queue is not None else None
    if tenant_rate is None and queue_rate is None:
        return None
    return Work(kind, tenant, tenant_rate, queue, queue_rate, ops, bytes)


def _rate(limits: Limits | None, kind: Kind) -> Rate | None:
    if limits is None:
        return None
    rate = limits.write if kind == "write" else limits.read
    return None if rate.ops_per_sec is None and rate.bytes_per_sec is None else rate


def _check_fits(work: Work) -> None:
    """Raise TooLarge if ``work`` is more than may ever come at once."""
    for scope, rate in (("tenant", work.tenant_rate), ("queue", work.queue_rate)):
        if rate is None:
            continue
        if rate.ops_per_sec is not None and work.ops > rate.ops_burst:
            setting, amount = "ops_per_sec" if rate.burst is None else "burst", f"{work.ops} operations"
        elif rate.bytes_per_sec is not None and work.bytes > rate.bytes_per_sec:
            setting, amount = "bytes_per_sec", f"{work.bytes} bytes"
        else:
            continue
        most = rate.bytes_per_sec if setting == "bytes_per_sec" else rate.ops_burst
        raise TooLarge(
            f"limits.{work.kind}.{setting}: {amount} in one call can never pass, {most} at once is the most for this "
            f"{scope}. Send less in a call, or have the limit raised",
            tenant=work.tenant,
            queue=work.queue,
        )
