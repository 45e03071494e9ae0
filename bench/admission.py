"""Complete admission: what all gates together cost a call, and the memory of a shard with many tenants that have limits."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import resource
import time
from pathlib import Path

from bench.service import open_service
from tenantq.domain.access import Grant
from tenantq.domain.message import LOCAL
from tenantq.engine.ops.lifecycle import PutTenant
from tenantq.engine.settings import ShardSettings
from tenantq.gates.charge import Charge
from tenantq.gates.rate_limit import RateLimits
from tenantq.runtime.clock import SystemClock
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tests.verbs import Shard

_RATE = {"ops_per_sec": 100_000_000, "bytes_per_sec": 1 << 36}


async def run(directory: Path, *, quick: bool) -> None:
    async with open_service(directory / "admission") as (service, admin):
        await service.tenants.put(admin, "acme", {"limits": {"write": _RATE}, "quotas": {"backlog": 10**9}})
        await service.queues.put(admin, "acme", "q", {"limits": {"write": _RATE}})
        key = await service.access.create_key(admin, "acme", "bench", Grant(role="producer"))
        call = Call(bearer=key.token, remote="127.0.0.1", request_id="r", connection=1)
        await _cost(service.admission, call, 2_000 if quick else 20_000)
    await _memory(directory / "tenants", 10_000 if quick else 100_000)


async def _cost(admission: Admission, call: Call, times: int) -> None:
    """Pass all gates with a cached credential, under limits of the tenant and of the queue."""
    best = float("inf")
    for _ in range(10):
        started = time.thread_time()
        for _ in range(times):
            with await admission.admit(call, None, "add", "q", slot="add", rate="write", ops=1, size=100):
                pass
        best = min(best, time.thread_time() - started)
    print(
        f"all gates together, credential cached, four buckets: {best / times * 1e6:.1f} us per call (target: at most 15)"
    )


async def _memory(path: Path, tenants: int) -> None:
    """Open a store of tenants that another process created, and use the limits of each."""
    maker = multiprocessing.get_context("spawn").Process(target=_make, args=(path, tenants))
    maker.start()
    maker.join()
    gc.collect()
    before = _resident_mb()
    async with Shard(path) as shard:
        rates = RateLimits(SystemClock())
        for name, state in shard.state.catalog.tenants.items():
            rates.admit(Charge.of(name, state.config.limits, None, None, "write", 1, 100))
            rates.admit(Charge.of(name, state.config.limits, None, None, "read", 1, 100))
        gc.collect()
        grown = _resident_mb() - before
    print(
        f"{tenants:,} tenants with limits, all in use: {grown:.0f} MB more resident memory (target: at most 150 for 100,000)"
    )


def _make(path: Path, tenants: int) -> None:
    async def make() -> None:
        async with Shard(path, settings=ShardSettings(durability="os")) as shard:
            for start in range(0, tenants, 1_000):
                names = [f"tenant-{number}" for number in range(start, start + 1_000)]
                await asyncio.gather(
                    *(
                        shard.submit(
                            PutTenant(shard.state.platform, LOCAL, name, {"limits": {"write": _RATE, "read": _RATE}})
                        )
                        for name in names
                    )
                )

    asyncio.run(make())


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)
