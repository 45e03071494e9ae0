"""What the admission gates cost a call, and what a hundred thousand tenants with limits cost in memory."""

from __future__ import annotations

import time
import tracemalloc
from typing import TYPE_CHECKING

from bench.table import Table
from tenantq.domain.rates import NO_LIMITS, Concurrency, Limits, Rate
from tenantq.gates.call_notes import CallNote, CallNotes
from tenantq.gates.charge import Charge
from tenantq.gates.consumers import Consumers
from tenantq.gates.rate_limit import RateLimits
from tenantq.gates.signals import Signals, SignalSettings
from tenantq.gates.slots import Slots
from tenantq.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_RATE = Rate(ops_per_sec=100_000_000, bytes_per_sec=1 << 36)
_WIDE = Limits(write=_RATE, read=_RATE)  # all four buckets, never empty
_REPEATS = 20


def _best_us(call: Callable[[], object], times: int) -> float:
    """Return the CPU time of a call in microseconds: the best of many runs, to exclude other load."""
    best = float("inf")
    for _ in range(_REPEATS):
        started = time.thread_time()
        for _ in range(times):
            call()
        best = min(best, time.thread_time() - started)
    return best / times * 1e6


async def run(directory: Path, *, quick: bool) -> None:  # noqa: ARG001  # all sections are called alike
    times = 2_000 if quick else 20_000
    table = Table("gate", "us/call")
    for name, call in _calls().items():
        table.row(name, f"{_best_us(call, times):.2f}")
    table.show()
    _memory(tenants=10_000 if quick else 100_000)


def _calls() -> dict[str, Callable[[], object]]:
    clock = SystemClock()
    rates, slots, consumers = RateLimits(clock), Slots(clock), Consumers(clock)
    refusals = CallNotes(clock, lambda _: None, rows_per_second=0)
    signals = Signals(clock, SignalSettings(), lambda _: None)
    concurrency, connection = Concurrency(), object()
    refusal = CallNote(tenant="acme", queue="q", action="add", outcome="denied", error_code="forbidden")

    def slot() -> None:
        ticket = slots.try_take("acme", "q", "add", concurrency, connection)
        assert ticket is not None
        ticket.release()

    return {
        "rate limits, none set": lambda: rates.admit(Charge.of("acme", NO_LIMITS, "q", NO_LIMITS, "write", 1, 100)),
        "rate limits of the tenant": lambda: rates.admit(Charge.of("acme", _WIDE, "q", NO_LIMITS, "write", 1, 100)),
        "rate limits of tenant and queue": lambda: rates.admit(Charge.of("acme", _WIDE, "q", _WIDE, "write", 1, 100)),
        "slot taken and released": slot,
        "consumer noted, no limit": lambda: consumers.note("acme", "q", "worker-1", None),
        "consumer noted, limit set": lambda: consumers.note("acme", "q", "worker-1", 100),
        "key's place noted": lambda: signals.key_used("key:1", "acme", "10.0.0.1"),
        "refusal counted in a flood": lambda: refusals.note(refusal),
    }


def _memory(*, tenants: int) -> None:
    """Give every tenant its own limits and use all of them, for reads and writes."""
    names = [f"tenant-{n}" for n in range(tenants)]
    tracemalloc.start()
    limits = [_own_limits(n) for n in range(tenants)]
    settings = tracemalloc.get_traced_memory()[0]
    rates = RateLimits(SystemClock())
    for name, allowed in zip(names, limits, strict=True):
        rates.admit(Charge.of(name, allowed, "q", None, "write", 1, 100))
        rates.admit(Charge.of(name, allowed, "q", None, "read", 1, 100))
    buckets = tracemalloc.get_traced_memory()[0] - settings
    tracemalloc.stop()
    print(
        f"{tenants:,} tenants with four active buckets each: {buckets / 1e6:.0f} MB, {buckets / tenants:.0f} bytes a tenant; "
        f"their settings {settings / 1e6:.0f} MB (target for all: 150 MB)"
    )
    started, slices = time.thread_time(), 0
    while len(rates):  # they are full again a moment after their use
        rates.collect()
        slices += 1
    spent = time.thread_time() - started
    print(f"removed in {slices} slices of {spent / slices * 1e3:.1f} ms")


def _own_limits(n: int) -> Limits:
    """Return limits that differ from every other tenant's in all numbers."""
    ops, size = 1_000_000 + n, 1_000_000_000 + n
    return Limits(
        write=Rate(ops_per_sec=ops, bytes_per_sec=size, burst=2 * ops), read=Rate(ops_per_sec=ops, bytes_per_sec=size)
    )
