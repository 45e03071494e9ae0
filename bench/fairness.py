"""What a noisy neighbour costs, measured at the engine: shares, weights, waits in rounds, and the price of fairness."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from bench.table import Table, percentile
from tenantq.engine.fair_lines import FairLines, Line
from tenantq.engine.shard import Shard
from tenantq.message import NewMessage

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.engine.operation import Operation

_BODY = NewMessage(body=b"x" * 100)


class FifoLines(FairLines):
    """Plain first-in-first-out over all tenants, for comparison only."""

    def __init__(self, turn_cost: int) -> None:
        super().__init__(turn_cost)
        self.waiting: deque[Operation] = deque()

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def put_back(self, operations: list[Operation]) -> None:
        self.waiting.extendleft(reversed(operations))

    @property
    def shared(self) -> bool:
        return False

    def push(self, line: Line, operation: Operation) -> None:  # noqa: ARG002
        self.waiting.append(operation)

    def take_turn(self, budget: float) -> list[Operation]:
        turn: list[Operation] = []
        while self.waiting and (not turn or budget > 0):
            turn.append(self.waiting.popleft())
            budget -= turn[-1].cost
        return turn


async def _shares(directory: Path, weights: dict[str, int], dispatches: int) -> dict[str, int]:
    """Fill every tenant's line, then count whose operations run first."""
    served: Counter[str] = Counter()
    async with Shard(directory) as shard:
        for tenant, weight in weights.items():
            await shard.put_tenant(tenant, weight=weight)
            await shard.put_queue(tenant, "q")

        async def one(tenant: str) -> None:
            await shard.add(tenant, "q", [_BODY])
            if sum(served.values()) < dispatches:
                served[tenant] += 1

        per_tenant = int(dispatches * 1.2 * max(weights.values()) / sum(weights.values())) + 100
        await asyncio.gather(*(one(tenant) for _ in range(per_tenant) for tenant in weights))
    return served


def _jain(shares: list[float]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


async def _quiet_beside_flood(
    directory: Path, *, flooders: int, queues: int, operations: int
) -> tuple[list[int], list[float]]:
    """One operation at a time of a quiet tenant beside full lines of others: its waits in rounds and seconds."""
    rounds: list[int] = []
    seconds: list[float] = []
    async with Shard(directory) as shard:
        pick = shard._pick

        def watched_pick() -> list[Operation]:
            operations = pick()
            rounds.extend(shard.rounds - one.entered_round for one in operations if one.tenant.name == "quiet")
            return operations

        shard._pick = watched_pick  # type: ignore[method-assign]
        names = [f"loud-{i}" for i in range(flooders)]
        for name in [*names, "quiet"]:
            await shard.put_tenant(name)
        stop = False

        async def flood(name: str, index: int) -> None:
            while not stop:
                await shard.add(name, f"q{index % queues}", [_BODY])

        floods = [asyncio.create_task(flood(name, i)) for name in names for i in range(1_000 // flooders)]
        await asyncio.sleep(0.3)
        for _ in range(operations):
            started = time.perf_counter()
            await shard.add("quiet", "q", [_BODY])
            seconds.append(time.perf_counter() - started)
            await asyncio.sleep(0.002)
        stop = True
        await asyncio.gather(*floods)
    return rounds, seconds


async def _drain_seconds(directory: Path, *, fifo: bool, operations: int) -> float:
    async with Shard(directory) as shard:
        for i in range(10):
            await shard.put_tenant(f"tenant-{i}")
            await shard.put_queue(f"tenant-{i}", "q")
        if fifo:
            shard.core.lines = FifoLines(8)
        started = time.perf_counter()
        await asyncio.gather(*(shard.add(f"tenant-{n % 10}", "q", [_BODY] * 10) for n in range(operations)))
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
    table = Table("1,000 loud callers", "rounds p50", "rounds p99", "rounds max", "ms p50", "ms p99")
    for label, flooders, queues in (
        ("one tenant, one queue", 1, 1),
        ("one tenant, 1,000 queues", 1, 1_000),
        ("100 tenants", 100, 1),
    ):
        rounds, seconds = await _quiet_beside_flood(
            directory / f"flood-{flooders}-{queues}", flooders=flooders, queues=queues, operations=50 if quick else 500
        )
        waits = [float(n) for n in rounds]
        table.row(
            label, f"{percentile(waits, 50):.0f}", f"{percentile(waits, 99):.0f}", f"{max(waits):.0f}",
            f"{percentile(seconds, 50) * 1e3:.2f}", f"{percentile(seconds, 99) * 1e3:.2f}",
        )  # fmt: skip
    table.show()
    ratios = []
    for attempt in range(3 if quick else 5):
        fair = await _drain_seconds(directory / f"fair-{attempt}", fifo=False, operations=300 if quick else 2_000)
        fifo = await _drain_seconds(directory / f"fifo-{attempt}", fifo=True, operations=300 if quick else 2_000)
        ratios.append(fair / fifo)
    print(
        f"total drain time, fair / plain FIFO: median {percentile(ratios, 50):.3f} (at most 1.02), all {[f'{r:.3f}' for r in ratios]}"
    )
