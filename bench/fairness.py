"""What a noisy neighbour costs in the engine: shares, weights, waits in rounds, and the price of fairness."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from bench.table import Table, percentile
from tenantq.domain.message import LOCAL, NewMessage
from tenantq.engine.fair_lines import FairLines, TenantLine
from tenantq.engine.ops.lifecycle import PutQueue, PutTenant
from tenantq.engine.settings import ShardSettings
from tests.verbs import Shard

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.engine.fair_lines import Work

_BODY = NewMessage(body=b"x" * 100)


class FifoLines(FairLines):
    """Plain first-in-first-out over all tenants, in rounds of the same size, for comparison only."""

    def __init__(self, turn_cost: int) -> None:
        super().__init__(turn_cost)
        self.waiting: deque[Any] = deque()

    def __bool__(self) -> bool:
        return bool(self.waiting)

    @property
    def shared(self) -> bool:
        return len(self.waiting) > 1

    def push(self, line: TenantLine, operation: Work) -> None:  # noqa: ARG002
        self.waiting.append(operation)

    def put_back(self, operations: list[Any]) -> None:
        self.waiting.extendleft(reversed(operations))

    def next_line(self) -> TenantLine:
        return TenantLine()  # no tenant has had a turn before

    def take_turn(self, budget: float, *, may_use_all: bool = True) -> list[Any]:  # noqa: ARG002  # it always may
        turn: list[Any] = []
        while self.waiting and (not turn or budget > 0):
            turn.append(self.waiting.popleft())
            budget -= turn[-1].cost
        return turn


async def _shares(directory: Path, weights: dict[str, int], dispatches: int) -> dict[str, int]:
    """Fill every tenant's line, then count whose operations run first."""
    served: Counter[str] = Counter()
    async with Shard(directory) as shard:
        for tenant, weight in weights.items():
            await shard.submit(PutTenant(shard.state.platform, LOCAL, tenant, {"weight": weight}))
            await shard.submit(PutQueue(shard.tenant(tenant), LOCAL, "q"))

        async def one(tenant: str) -> None:
            await shard.add(tenant, "q", [_BODY])
            if sum(served.values()) < dispatches:
                served[tenant] += 1

        per_tenant = int(dispatches * 1.2 * max(weights.values()) / sum(weights.values())) + 100
        await asyncio.gather(*(one(tenant) for _ in range(per_tenant) for tenant in weights))
    return served


def _jain(shares: list[float]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


class _Watch:
    """Counts the rounds that a tenant's operations wait, and the CPU time of the engine."""

    def __init__(self, shard: Shard, tenant: str) -> None:
        self.rounds: list[float] = []
        self.engine_seconds = 0.0
        budget, step = shard.loop._budget, shard.loop._step
        pick, submit = budget.pick, shard.loop.submit
        entered: dict[Any, int] = {}

        async def watched_submit(operation: Any) -> Any:
            entered[operation] = shard.loop.figures.rounds
            return await submit(operation)

        def watched_pick(lines: FairLines, now_ms: int, *, large_syncs: bool = False) -> list[Any]:
            operations = pick(lines, now_ms, large_syncs=large_syncs)
            self.rounds += [
                float(shard.loop.figures.rounds - entered.pop(one)) for one in operations if one.tenant.name == tenant
            ]
            return operations

        def watched_step() -> None:
            started = time.perf_counter()
            step()
            self.engine_seconds += time.perf_counter() - started

        shard.loop.submit = watched_submit  # type: ignore[method-assign]
        budget.pick = watched_pick  # type: ignore[method-assign]
        shard.loop._step = watched_step  # type: ignore[method-assign]


async def _quiet_during_flood(
    directory: Path, *, flooders: int, queues: int, operations: int
) -> tuple[list[float], list[float], list[float]]:
    """Run one operation at a time of a quiet tenant next to 1,000 busy callers: rounds, engine seconds, total seconds."""
    engine: list[float] = []
    whole: list[float] = []
    async with Shard(directory) as shard:
        names = [f"loud-{i}" for i in range(flooders)]
        for name in [*names, "quiet"]:
            await shard.submit(PutTenant(shard.state.platform, LOCAL, name, {}))
        await shard.submit(PutQueue(shard.tenant("quiet"), LOCAL, "q"))
        watch = _Watch(shard, "quiet")
        watch.rounds.clear()
        stop = False

        async def flood(name: str, index: int) -> None:
            while not stop:
                await shard.add(name, f"q{index % queues}", [_BODY])

        floods = [asyncio.create_task(flood(name, i)) for name in names for i in range(1_000 // flooders)]
        await asyncio.sleep(0.3)
        for _ in range(operations):
            before, started = watch.engine_seconds, time.perf_counter()
            await shard.add("quiet", "q", [_BODY])
            whole.append(time.perf_counter() - started)
            engine.append(watch.engine_seconds - before)
            await asyncio.sleep(0.002)
        stop = True
        await asyncio.gather(*floods)
    return watch.rounds, engine, whole


async def _drain_seconds(directory: Path, name: str, operations: int) -> float:
    settings = ShardSettings(round_cost_shared=1_024) if name == "large" else ShardSettings()
    async with Shard(directory, settings=settings) as shard:
        for i in range(10):
            await shard.submit(PutTenant(shard.state.platform, LOCAL, f"tenant-{i}", {}))
            await shard.submit(PutQueue(shard.tenant(f"tenant-{i}"), LOCAL, "q"))
        if name == "fifo":
            shard.state.lines = FifoLines(8)
        work = [shard.add(f"tenant-{n % 10}", "q", [_BODY]) for n in range(operations)]
        started = time.perf_counter()
        await asyncio.gather(*work)
        return time.perf_counter() - started


async def run(directory: Path, *, quick: bool) -> None:
    dispatches = 1_000 if quick else 10_000
    served = await _shares(directory / "equal", {f"tenant-{i}": 1 for i in range(10)}, dispatches)
    print(f"ten equal tenants, full lines: Jain {_jain([float(n) for n in served.values()]):.4f} (at least 0.99)")
    weights = {"one": 1, "two": 2, "five": 5}
    served = await _shares(directory / "weights", weights, dispatches)
    total, parts = sum(served.values()), sum(weights.values())
    off = max(abs(served[name] / total / (weight / parts) - 1) for name, weight in weights.items())
    print(f"weights 1:2:5 over {total} dispatches: {dict(served)}, at most {off:.2%} off (2 % allowed)")
    table = Table(
        "1,000 busy callers", "rounds p50", "rounds p99", "rounds max", "engine ms p50", "engine ms p99", "total ms p99"
    )
    for label, flooders, queues in (
        ("one tenant, one queue", 1, 1),
        ("one tenant, 1,000 queues", 1, 1_000),
        ("100 tenants", 100, 1),
    ):
        rounds, engine, whole = await _quiet_during_flood(
            directory / f"flood-{flooders}-{queues}", flooders=flooders, queues=queues, operations=50 if quick else 500
        )
        table.row(
            label,
            *(f"{value:.0f}" for value in (percentile(rounds, 50), percentile(rounds, 99), max(rounds))),
            *(
                f"{value * 1e3:.2f}"
                for value in (percentile(engine, 50), percentile(engine, 99), percentile(whole, 99))
            ),
        )
    table.show()
    print("(the callers run in the same process, so the total time is mostly theirs)")
    await _price_of_fairness(directory, quick=quick)


async def _price_of_fairness(directory: Path, *, quick: bool) -> None:
    """Drain ten tenants with full lines fairly and first-in-first-out, in turns, and compare the best of each."""
    operations, best = 300 if quick else 4_000, {"fair": 9e9, "fifo": 9e9, "large": 9e9}
    for attempt in range(3 if quick else 12):
        for name, least in best.items():
            best[name] = min(least, await _drain_seconds(directory / f"{name}-{attempt}", name, operations))
    print(
        f"total drain time, fair / plain FIFO in rounds of the same size: {best['fair'] / best['fifo']:.3f} (at most 1.02)"
    )
    print(f"the price of small rounds while tenants share: {best['fair'] / best['large']:.2f} times rounds of 1,024")
