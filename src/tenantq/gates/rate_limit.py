"""Rate limits: operations and bytes a second, for reads and writes, per tenant and per queue.

A charge is admitted by every limit that applies to it, or it is refused and uses nothing. Buckets belong to the tenant,
whichever of its keys a caller has.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from tenantq.errors import RateLimited, TooLarge
from tenantq.gates.charge import Charge, RateKind
from tenantq.gates.rate_buckets import Buckets
from tenantq.runtime.clock import Clock, Timer


class _WaitingCharge:
    """A charge that waits for tokens."""

    __slots__ = ("admitted", "charge")

    def __init__(self, charge: Charge, admitted: asyncio.Future[bool]) -> None:
        self.charge = charge
        self.admitted = admitted  # False: its time is over


class _WaitingCharges:
    """Charges of one tenant that wait for tokens, in order of arrival.

    None overtakes the first that waits for the tenant's tokens, nor the first in the same queue that waits for the queue's.
    """

    __slots__ = ("due_ms", "queues_short", "tenant_short", "timer", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[_WaitingCharge, None] = OrderedDict()
        self.tenant_short = False
        self.queues_short: set[str | None] = set()
        self.timer: Timer | None = None
        self.due_ms = 0  # when the timer fires

    def blocks(self, charge: Charge) -> bool:
        """Return whether ``charge`` would overtake another one."""
        return (self.tenant_short and charge.tenant_rate is not None) or charge.queue in self.queues_short


class RateLimits:
    """Token buckets per tenant and per queue, on the clock's monotonic time. Limits come with each charge, so changes apply at once."""

    def __init__(self, clock: Clock, *, waiting_max: int = 1_000) -> None:
        self._clock = clock
        self._write = Buckets()
        self._read = Buckets()
        self._lines: dict[tuple[RateKind, str], _WaitingCharges] = {}  # by tenant, while any of its charges waits
        self._waiting_max = waiting_max  # charges of one tenant and kind

    def __len__(self) -> int:
        """Return how many tenants and queues have buckets that are not known to be full."""
        return len(self._write) + len(self._read)

    def waiting(self, tenant: str) -> int:
        """Return how many charges of a tenant wait for tokens."""
        lines = (self._lines.get(("write", tenant)), self._lines.get(("read", tenant)))
        return sum(len(line.waiting) for line in lines if line is not None)

    def admit(self, charge: Charge) -> None:
        """Take the charge from every bucket that applies; else take nothing and raise RateLimited.

        Raises TooLarge if it exceeds a burst and so could never pass.
        """
        if not charge.is_unlimited and self._try(charge):
            raise self._refusal(charge)

    async def admit_within(self, charge: Charge, wait_ms: int) -> None:
        """Like ``admit``, but wait up to ``wait_ms`` for tokens, behind charges that came before.

        A charge whose tokens cannot arrive in time is refused at once. A cancelled one leaves no trace.
        """
        if charge.is_unlimited or not (wait := self._try(charge)):
            return
        line = self._lines.get((charge.kind, charge.tenant))
        full = line is not None and len(line.waiting) >= self._waiting_max
        if full or wait > wait_ms or not await self._wait(charge, wait, wait_ms):
            raise self._refusal(charge)

    def charge(self, charge: Charge) -> None:
        """Take what a call has used, into debt if tokens are missing: later calls wait until the debt is paid."""
        if not charge.is_unlimited:
            self._buckets(charge.kind).charge(charge, self._clock.monotonic_ms())

    def refund(self, charge: Charge) -> None:
        """Return the tokens of a charge whose work was not done."""
        if not charge.is_unlimited:
            self._buckets(charge.kind).refund(charge, self._clock.monotonic_ms())
            self._admit_waiting(charge.kind, charge.tenant)

    def remaining(self, charge: Charge) -> int | None:
        """Return how many operations all limits would admit now, below zero while in debt; None means any number."""
        if charge.is_unlimited:
            return None
        statuses = self._buckets(charge.kind).statuses(charge, self._clock.monotonic_ms())
        return min((one.left for one in statuses if one.setting.endswith(".ops_per_sec")), default=None)

    def wait_ms(self, charge: Charge) -> int:
        """Return in how many milliseconds all limits would admit the charge. Nothing is taken."""
        if charge.is_unlimited:
            return 0
        return self._buckets(charge.kind).wait_ms(charge, self._clock.monotonic_ms())

    def forget(self, tenant: str) -> None:
        """Drop the buckets of a deleted tenant."""
        self._write.forget(tenant)
        self._read.forget(tenant)

    def collect(self, most: int = 200) -> int:
        """Drop buckets that are full again, checking at most ``most`` of each kind; return how many were dropped.

        Each call continues where the last one ended.
        """
        now = self._clock.monotonic_ms()
        return self._write.collect(most, now) + self._read.collect(most, now)

    def _buckets(self, kind: RateKind) -> Buckets:
        return self._write if kind == "write" else self._read

    def _try(self, charge: Charge) -> int:
        """Take the charge and return 0, or take nothing and return the milliseconds until it may pass."""
        buckets, now = self._buckets(charge.kind), self._clock.monotonic_ms()
        line = self._lines.get((charge.kind, charge.tenant)) if self._lines else None
        blocked = line is not None and line.blocks(charge)
        if not blocked and buckets.take(charge, now):
            return 0
        _check_fits(charge)
        ahead_ms = line.due_ms - now if line is not None and blocked else 0
        return max(buckets.wait_ms(charge, now), ahead_ms, 1)

    def _refusal(self, charge: Charge) -> RateLimited:
        """Return the error that names the limit furthest from admitting the charge, and when to retry."""
        now = self._clock.monotonic_ms()
        status = max(self._buckets(charge.kind).statuses(charge, now))
        line = self._lines.get((charge.kind, charge.tenant))
        ahead_ms = line.due_ms - now if line is not None and line.blocks(charge) else 0
        wait = max(status.missing_ms, ahead_ms, 1)
        left = max(0, status.left)
        why = f"{left} left, {status.amount} asked for" if status.missing_ms else "others are already waiting"
        return RateLimited(
            f"{status.setting}: {status.per_sec} a second for this {status.scope}, {status.burst} at once; {why}. "
            f"Try again in {wait} ms",
            limit=status.per_sec,
            current=left,
            retry_after_ms=wait,
            tenant=charge.tenant if charge.owner == "tenant" else None,
            queue=charge.queue,
        )

    # ---- waiting ----

    async def _wait(self, charge: Charge, wait: int, wait_ms: int) -> bool:
        """Wait until the charge is admitted; return False after ``wait_ms``."""
        admitted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiter = _WaitingCharge(charge, admitted)
        self._join(waiter, wait)
        timer = self._clock.call_later(wait_ms, lambda: self._time_out(waiter))
        try:
            return await admitted
        except asyncio.CancelledError:
            if admitted.cancelled() or not admitted.done():
                self._leave(waiter)
            elif admitted.result():
                self.refund(charge)  # admitted and cancelled at the same time
            raise
        finally:
            timer.cancel()

    def _join(self, waiter: _WaitingCharge, wait: int) -> None:
        """Put a waiter at the end of its tenant's line."""
        now, charge = self._clock.monotonic_ms(), waiter.charge
        line = self._lines.setdefault((charge.kind, charge.tenant), _WaitingCharges())
        line.waiting[waiter] = None
        if not line.blocks(charge):
            if self._buckets(charge.kind).queue_wait_ms(charge, now):
                line.queues_short.add(charge.queue)
            else:
                line.tenant_short = True
            if line.timer is None or now + wait < line.due_ms:
                self._arm(charge.kind, charge.tenant, line, wait)

    def _time_out(self, waiter: _WaitingCharge) -> None:
        if not waiter.admitted.done():
            waiter.admitted.set_result(False)
            self._leave(waiter)

    def _leave(self, waiter: _WaitingCharge) -> None:
        """Take a waiter out of its line. Those behind it may pass now."""
        charge = waiter.charge
        line = self._lines.get((charge.kind, charge.tenant))
        if line is not None and waiter in line.waiting:
            del line.waiting[waiter]
            self._admit_waiting(charge.kind, charge.tenant)

    def _admit_waiting(self, kind: RateKind, tenant: str) -> None:
        """Admit, in order, the waiting charges of a tenant that can pass now, and set the timer for the next."""
        line = self._lines.get((kind, tenant))
        if line is None:
            return
        buckets, now = self._buckets(kind), self._clock.monotonic_ms()
        line.tenant_short = False
        line.queues_short.clear()
        gone: list[_WaitingCharge] = []
        next_ms: list[int] = []
        for waiter in line.waiting:
            charge = waiter.charge
            if waiter.admitted.done():  # cancelled just now
                gone.append(waiter)
                continue
            if charge.queue in line.queues_short:
                continue
            if wait := buckets.queue_wait_ms(charge, now):
                line.queues_short.add(charge.queue)
                next_ms.append(wait)
            elif wait := buckets.tenant_wait_ms(charge, now):
                line.tenant_short = True
                next_ms.append(wait)
                break
            else:
                buckets.charge(charge, now)
                waiter.admitted.set_result(True)
                gone.append(waiter)
        for waiter in gone:
            del line.waiting[waiter]
        if next_ms:
            self._arm(kind, tenant, line, min(next_ms))
        else:
            if line.timer is not None:
                line.timer.cancel()
                line.timer = None
            if not line.waiting:
                del self._lines[kind, tenant]

    def _arm(self, kind: RateKind, tenant: str, line: _WaitingCharges, wait: int) -> None:
        if line.timer is not None:
            line.timer.cancel()
        line.due_ms = self._clock.monotonic_ms() + wait
        line.timer = self._clock.call_later(wait, lambda: self._admit_waiting(kind, tenant))


def _check_fits(charge: Charge) -> None:
    """Raise TooLarge if the charge exceeds what may ever come at once."""
    for scope, rate in ((charge.owner, charge.tenant_rate), ("queue", charge.queue_rate)):
        if rate is None:
            continue
        if rate.ops_per_sec is not None and charge.ops > rate.ops_burst:
            setting, amount = "ops_per_sec" if rate.burst is None else "burst", f"{charge.ops} operations"
        elif rate.bytes_per_sec is not None and charge.bytes > rate.bytes_per_sec:
            setting, amount = "bytes_per_sec", f"{charge.bytes} bytes"
        else:
            continue
        most = rate.bytes_per_sec if setting == "bytes_per_sec" else rate.ops_burst
        raise TooLarge(
            f"limits.{charge.kind}.{setting}: {amount} in one call can never pass, {most} at once is the most for this "
            f"{scope}. Send less in a call, or have the limit raised",
            tenant=charge.tenant if charge.owner == "tenant" else None,
            queue=charge.queue,
        )
