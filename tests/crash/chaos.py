"""Kill a shard repeatedly, and compare what it stored with what it had confirmed.

    python -m tests.crash.chaos --kills 500 [--seconds S] [--seed X]

Workers run one after the other on the same directory. Each is killed at a named point of a round, or at a random
moment from its first millisecond on. After every kill the store is recounted and compared with the replies. At the end
everything is drained. The exit status is 0 only if nothing was lost, invented, resurrected, doubled or miscounted.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tenantq.doctor.store_check import examine, open_embedded
from tenantq.engine.settings import ShardSettings
from tenantq.runtime.clock import SystemClock
from tests.administration import queues, tenants
from tests.crash import events
from tests.crash.oracle import Oracle
from tests.crash.recount import JournalTally, recount
from tests.crash.worker import Carried
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tenantq.store.interface import Store

PROJECT = Path(__file__).resolve().parents[2]
LATER_MS = 3 * 3_600_000
"""How far the clock of the final drain is ahead: every lease, delay, TTL and idempotency key has ended by then."""

_WORKER_SECONDS_MAX = 20.0
_CARRIED_MAX = 5


class LaterClock(SystemClock):
    """The machine's clock, several hours ahead."""

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + LATER_MS

    def wall_ms(self) -> int:
        return super().wall_ms() + LATER_MS


class Kill(msgspec.Struct, frozen=True):
    """How one worker is killed."""

    seed: int
    point: str  # a named point, or "anytime"
    after: int  # at this hit of the point
    seconds: float  # without a point: until it is killed from outside
    memory_mib: int


def plan(seed: int) -> Iterator[Kill]:
    """Yield kills forever: the named points in rotation, and two of seven at a random moment."""
    rng = random.Random(seed)
    for number, point in enumerate(itertools.cycle((*events.POINTS, "anytime", "anytime"))):
        yield Kill(
            seed=rng.randrange(1 << 30),
            point=point,
            after=rng.choice((1, 2, 5, rng.randrange(1, 60), rng.randrange(1, 120))),
            seconds=rng.uniform(0.02, 0.55),
            memory_mib=8 if number % 3 == 0 else 96,
        )


def run_worker(directory: Path, log: Path, options: Sequence[str], *, seconds: float | None = None) -> int:
    """Run one worker until it exits, or kill it after ``seconds``; return its exit status."""
    command = [sys.executable, "-m", "tests.crash.worker", str(directory), *options]
    with log.open("wb") as out, log.with_suffix(".err").open("wb") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, stdin=subprocess.DEVNULL, cwd=PROJECT)
        try:
            return process.wait(_WORKER_SECONDS_MAX if seconds is None else seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            return process.wait()


class Chaos:
    """One directory, its killed workers, and the oracle that judges them."""

    def __init__(self, scratch: Path, seed: int) -> None:
        self.directory = scratch / "data"
        self.log = scratch / "events"
        self.carried_file = scratch / "carried.json"
        self.seed = seed
        self.oracle = Oracle()
        self.tally = JournalTally()
        self.kills: Counter[str] = Counter()
        self.carried = Carried()
        self.started = time.monotonic()
        self._plan = plan(seed)

    open_store: Callable[[Path], Store] = staticmethod(open_embedded)
    """Opens the store to examine it."""
    worker_options: tuple[str, ...] = ()

    def has_store(self) -> bool:
        """Return whether there is a store to examine yet."""
        return (self.directory / "format").exists()

    def to_drain(self, settings: ShardSettings) -> Shard:
        """Return the shard that drains everything at the end."""
        return Shard(self.directory, clock=LaterClock(), settings=settings)

    def kill_one(self) -> str:
        """Run a worker, kill it, and judge; return the point at which it was killed."""
        kill = next(self._plan)
        number = self.kills.total()
        self.carried_file.write_bytes(msgspec.json.encode(self.carried))
        options = ["--seed", str(kill.seed), "--name", f"w{number}", "--memory-mib", str(kill.memory_mib)]
        options += [
            *self.worker_options,
            "--carried",
            str(self.carried_file),
            "--seconds",
            str(_WORKER_SECONDS_MAX * 2),
        ]
        if kill.point == "anytime":
            status = run_worker(self.directory, self.log, options, seconds=kill.seconds)
        else:
            options += ["--crash-point", kill.point, "--crash-after", str(kill.after)]
            status = run_worker(self.directory, self.log, options)
        point = self.judge(kill, status)
        self.kills[point] += 1
        return point

    def judge(self, kill: Kill, status: int) -> str:
        """Compare the worker's events with what the store holds."""
        oracle = self.oracle
        lines = self.log.read_text(encoding="utf-8").splitlines(keepends=True)
        oracle.read(lines)
        if status != -signal.SIGKILL or (oracle.crashed_at is None and kill.point != "anytime"):
            told = self.log.with_suffix(".err").read_text(encoding="utf-8", errors="replace")[-2_000:]
            oracle.wrong("broken worker", f"{kill} ended with status {status} {oracle.failure or ''}\n{told}")
        opened = any(line.startswith(events.OPENED) for line in lines)
        if not self.has_store():
            return "anytime, while starting"  # there is no store yet
        found = recount(self.directory, self.tally, self.open_store)
        oracle.compare(found)
        self._doctor()
        self._carry(found.seq)
        if oracle.crashed_at is not None:
            return oracle.crashed_at
        return "anytime, at work" if opened else "anytime, while starting"

    def _doctor(self) -> None:
        """Check that the doctor agrees."""
        report = examine(self.directory, open_store=self.open_store)
        if not report.clean:
            for finding in report.findings:
                self.oracle.wrong("drift", f"doctor: {finding}")

    def _carry(self, seq: int) -> None:
        """Choose what the next worker takes over."""
        oracle, now = self.oracle, SystemClock().wall_ms()
        retries = [
            (token.name, token.tenant, token.queue, token.key)
            for token in oracle.tokens.values()
            if token.key is not None
        ][-_CARRIED_MAX:]
        retries += [retry for retry in oracle.unanswered if retry[0] not in oracle.tokens][-_CARRIED_MAX:]
        receipts = [
            (token.name, token.lease.tenant, token.lease.queue, token.lease.receipt)
            for token in oracle.tokens.values()
            if token.lease is not None and token.lease.live and token.lease.sure and token.lease.ends_at > now + 500
        ][:_CARRIED_MAX]
        oracle.unanswered.clear()
        oracle.carried = {receipt for _, _, _, receipt in receipts}
        self.carried = Carried(retries, receipts, trim_to=seq - 20 if self.kills.total() % 5 == 4 else 0)

    async def drain(self) -> None:
        """Drain everything, hours later, and check that the store is empty and every message is accounted for."""
        oracle = self.oracle
        settings = ShardSettings(disk_reserve_bytes=0)
        async with self.to_drain(settings) as shard:
            quiet = 0
            while quiet < 3:
                got = 0
                for tenant in tenants(shard):
                    for queue in queues(shard, tenant):
                        deliveries = await shard.poll(tenant, queue, max=1_000, lease_ms=60_000)
                        got += len(deliveries)
                        if deliveries:
                            await shard.ack(tenant, queue, [one.receipt for one in deliveries])
                        for one in deliveries:
                            oracle.drained(events.token_of(one.body) or repr(one.body), one.raw_id.hex())
                waits = any(queue.messages for queue in shard.state.catalog.queues())
                quiet = quiet + 1 if not got and not waits else 0
                await asyncio.sleep(0.02)
        found = recount(self.directory, self.tally, self.open_store)
        oracle.compare(found)
        for family in ("m", "vi", "le", "li", "gr", "ik"):
            if found.rows_by_family[family]:
                oracle.wrong("drift", f"{found.rows_by_family[family]} rows are left in {family} after the drain")
        self._doctor()

    def report(self) -> str:
        """Return the figures and all violations."""
        oracle, figures = self.oracle, self.oracle.figures
        lines = [f"seed {self.seed}: {self.kills.total()} kills in {time.monotonic() - self.started:.1f} s"]
        lines += [f"  killed {point:<24} {count:>7}" for point, count in sorted(self.kills.items())]
        wanted = (
            "adds confirmed", "adds that never were", "delivered", "redelivered", "ack confirmed", "acked without reply",
            "nack confirmed", "release confirmed", "extend confirmed", "carried leases acked", "removed", "expired", "drained",
        )  # fmt: skip
        lines += [f"  {name:<31} {figures[name]:>7}" for name in wanted]
        wrongs = (
            "lost",
            "unexpected",
            "resurrected",
            "doubled",
            "duplicate",
            "reordered",
            "lease lost early",
            "time jumped",
            "drift",
        )
        lines += [f"  {name:<31} {figures[name]:>7}" for name in wrongs]
        lines += [f"WRONG {wrong}" for wrong in oracle.wrongs[:50]]
        if len(oracle.wrongs) > 50:
            lines.append(f"WRONG and {len(oracle.wrongs) - 50} more")
        lines.append("all is well" if not oracle.wrongs else f"FAILED: run again with --seed {self.seed}")
        return "\n".join(lines)


def run(scratch: Path, *, kills: int | None, seconds: float | None, seed: int) -> Chaos:
    """Kill until ``kills`` or ``seconds`` is reached or a violation is found, then drain."""
    chaos = Chaos(scratch, seed)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("kills", total=kills)
        last = time.monotonic()
        while not chaos.oracle.wrongs:
            progress.update(task, completed=chaos.kills.total())
            if kills is not None and chaos.kills.total() >= kills:
                break
            if seconds is not None and time.monotonic() - chaos.started >= seconds:
                break
            point = chaos.kill_one()
            progress.update(task, description=f"killed {point}")
            if not console.is_terminal and time.monotonic() - last > 10:
                last = time.monotonic()
                print(f"{chaos.kills.total()} kills, {last - chaos.started:.0f} s", flush=True)
    if not chaos.oracle.wrongs:
        asyncio.run(chaos.drain())
    return chaos


def main() -> None:
    """Read the command line, run, print the figures."""
    parser = argparse.ArgumentParser(description="kill a shard over and over and check that it keeps its promises")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    arguments = parser.parse_args()
    kills = arguments.kills if arguments.kills or arguments.seconds else 100
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tenantq-chaos-") as scratch:
        chaos = run(Path(scratch), kills=kills, seconds=arguments.seconds, seed=arguments.seed)
    print(chaos.report())
    sys.exit(1 if chaos.oracle.wrongs else 0)


if __name__ == "__main__":
    main()
