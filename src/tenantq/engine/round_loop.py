"""The loop of a shard: opens the store, runs rounds, has them synced, keeps timers, stops for good on a failure."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tenantq.domain.config import ShardSettings, TenantConfig, check_shard
from tenantq.domain.message import LOCAL, SYSTEM, check_caller
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.engine.background_work import BackgroundWork
from tenantq.engine.committer import Committer
from tenantq.engine.disk_space import DiskSpace
from tenantq.engine.fair_lines import Line
from tenantq.engine.heartbeat_timer import HeartbeatTimer
from tenantq.engine.ops.lifecycle import DropQueue, PutTenant, puts_off_drop
from tenantq.engine.ops.repair import Repair
from tenantq.engine.ops.settle import Release
from tenantq.engine.ops.sweep import Advance, Sweep
from tenantq.engine.queue_state import NEVER, TenantState
from tenantq.engine.recovery import journal_end, rebuild
from tenantq.engine.round import Round
from tenantq.engine.round_budget import RoundBudget
from tenantq.errors import Busy, Closed, StoreFailed
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.runtime.histogram import Histogram
from tenantq.runtime.randomness import Randomness, system_randomness
from tenantq.store.keys import after
from tenantq.store.rocks import RocksStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tenantq.engine.operation import FleetPoll, Operation, Poll
    from tenantq.engine.ops.redrive import RedriveTask
    from tenantq.engine.queue_state import QueueState
    from tenantq.engine.state import ShardState
    from tenantq.runtime.clock import Timer
    from tenantq.store.interface import OpenStore, Store


log = logging.getLogger("tenantq")

_ROUNDS_UNSYNCED_MAX = 2
_WORTH_A_ROUND = (
    64  # the cost that must wait before a round is run while another syncs; less goes together after that sync
)


def let_go(future: asyncio.Future[None]) -> None:
    """Wake who waits, unless it is gone."""
    if not future.done():
        future.set_result(None)


def _no_probe(_: str) -> None:
    pass


class RoundLoop:
    """One event loop, one store, one writer: every operation goes through here, in rounds."""

    def __init__(
        self,
        path: str | Path,
        *,
        settings: ShardSettings | None = None,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        name: str = "0",
        first_tenant_id: int = 1,
        probe: Callable[[str], None] = _no_probe,
        open_store: OpenStore | None = None,
    ) -> None:
        """Prepare a shard; ``open`` does the work. ``probe`` is told the named points of a round, for crash tests.

        A new store numbers its tenants from ``first_tenant_id`` on. ``open_store`` None: an embedded store in ``path``.
        """
        self._path = Path(path)
        self._settings = check_shard(settings or ShardSettings())
        self._clock = clock or SystemClock()
        self._randomness = randomness or system_randomness()
        self._name = name
        self._first_tenant_id = first_tenant_id
        self._probe = probe
        self._open_store = open_store or self._open_embedded
        self._failure: StoreFailed | None = None
        self._closing = False
        self._closed = False
        self._close_task: asyncio.Future[None] | None = None
        self._committer: Committer | None = None
        self._core: ShardState | None = None
        self._system = TenantState(
            0, "", TenantConfig(), Line(system=True)
        )  # in whose line the platform's own operations wait
        self._journal_first, self._seq = 1, 0
        self._redrives: set[RedriveTask] = set()
        self._step_scheduled = False
        self._syncing: deque[Round] = deque()  # written, and not reported as synced yet
        self._sync_timer: Timer | None = None
        self._synced_seq = 0
        self._idle: asyncio.Event = asyncio.Event()
        self._sync_waiters: list[tuple[int, asyncio.Future[None]]] = []  # the record that must be synced first
        self._background_work = BackgroundWork()
        self._budget = RoundBudget(self._settings, self._clock)
        self.rounds = 0  # run so far
        self.rounds_took = Histogram()  # from the first operation to the write
        self.journal_bytes = 0  # of the records written so far
        self.stopped = asyncio.Event()  # set when the shard stops because of a failure

    # ---- opening and closing ----

    async def open(self) -> None:
        """Open or make the store, rebuild what is kept in memory, and start serving."""
        self._loop = asyncio.get_running_loop()
        store = await self._open_store(self._name)
        try:
            self._start(store)
            store.watch(self._lost)
            self._committer = Committer(store, self._loop, self._clock, self._synced, self._probe)
            if self.core.catalog.is_new:
                await self._submit(PutTenant(self._system, SYSTEM, DEFAULT_TENANT, {}))
            for queue in self.core.catalog.queues():
                self._after_round(queue)
        except BaseException:
            self._closing = self._closed = True
            if self._committer is not None:
                self._heartbeat_timer.stop()
                self._committer.close()
            store.close()
            raise
        self._heartbeat_timer.start()
        self._schedule()

    async def _open_embedded(self, _: str) -> Store:
        return RocksStore(self._path, memory_bytes=self._settings.memory_bytes)

    def _start(self, store: Store) -> None:
        self._store = store
        end = journal_end(store)
        self._journal_first, self._seq, self._link = end.first, end.seq, end.link
        self._synced_seq = end.seq
        core = self._core = rebuild(
            store, end, shard=self._name, first_tenant_id=self._first_tenant_id, clock=self._clock,
            randomness=self._randomness, settings=self._settings,
        )  # fmt: skip
        core.wake = self._schedule
        core.finished_waiting = self._wait_is_over
        core.caller_gone = self._give_back
        self._heartbeat_timer = HeartbeatTimer(store, core.shard_clock, self._clock, end.seq)
        self._space = DiskSpace(store, self._clock, self._settings.disk_reserve_bytes)
        self._idle.set()

    async def close(self) -> None:
        """Finish what stands in line, sync, and let the directory go. Leases are kept.

        Who is cancelled while waiting here does not stop the closing.
        """
        if self._core is None or (self._closed and self._close_task is None):
            return
        if self._close_task is None:
            self._close_task = asyncio.ensure_future(self._finish_and_close())
        await asyncio.shield(self._close_task)

    async def _finish_and_close(self) -> None:
        self._closing = True
        for task in self._redrives:
            task.cancel()
        self._send_waiting_polls_away()
        if self._failure is None:
            await self._idle.wait()
        if self._failure is None and self._synced_seq < self._seq:  # durability "os"
            self._idle.clear()
            self._hand_over(Round(self.core, self._seq))
            await self._idle.wait()
        self._send_waiting_polls_away()  # those that still stood in line
        await self._background_work.finished()
        assert self._committer is not None
        self._committer.close()
        await asyncio.sleep(0)  # let the last sync's report arrive
        for queue in self.core.catalog.queues():
            if queue.timer is not None:
                queue.timer.cancel()
        self._heartbeat_timer.stop()
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        for let_go_of in self.core.before_close:
            let_go_of()
        self._closed = True
        if self._failure is None:
            self._heartbeat_timer.beat(self._synced_seq, clean=self._synced_seq == self._seq)
        try:
            self._store.close()
        except StoreFailed as error:
            self._failure = self._failure or error
            raise

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def core(self) -> ShardState:
        """The shard's parts, once it was opened."""
        if self._core is None:
            raise Closed("the shard is not open yet: use 'async with', or await open() first")
        return self._core

    @property
    def durability(self) -> str:
        """What a reply promises: "fsync", or "os" where the sync follows later."""
        return self._settings.durability

    @property
    def syncs_took(self) -> Histogram:
        """How long the syncs took."""
        if self._committer is None:
            raise Closed("the shard is not open yet: use 'async with', or await open() first")
        return self._committer.took

    @property
    def failure(self) -> StoreFailed | None:
        """Why the shard stopped, if it did."""
        return self._failure

    @property
    def is_doubtful(self) -> bool:
        """Whether the store has not answered for so long that another process may own it by now."""
        return self._core is not None and not self._closed and self._store.is_doubtful

    # ---- rounds ----

    async def _submit(self, operation: Operation) -> Any:
        self._check_open()
        if operation.caller is not LOCAL:
            check_caller(operation.caller)
        line = operation.tenant.line
        if len(line.operations) >= self._settings.line_ops_max:
            raise Busy(tenant=operation.tenant.name or None)
        operation.future = self._loop.create_future()
        operation.entered_round = self.rounds
        self.core.lines.push(line, operation)
        if not self._step_scheduled:
            self._schedule()
        return await operation.future

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise Closed
        if self._core is None:
            raise Closed("the shard is not open yet: use 'async with', or await open() first")

    def _schedule(self) -> None:
        if not self._step_scheduled and self._failure is None and not self._closed:
            self._step_scheduled = True
            self._idle.clear()
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        """Run one round if the pipeline has room; the sync of earlier rounds goes on meanwhile."""
        self._step_scheduled = False
        core = self.core
        if self._failure is not None or len(self._syncing) >= _ROUNDS_UNSYNCED_MAX:
            return
        if self._syncing and core.lines.cost < _WORTH_A_ROUND:
            return
        if not (core.lines or core.hot or core.hot_lanes):
            if not self._syncing:
                self._idle.set()
            return
        self.rounds += 1
        others_wait = core.lines.shared
        operations = self._budget.pick(core.lines)
        round = Round(core, self._seq + 1, shared=others_wait)
        started_us = self._clock.monotonic_us()
        try:
            self._budget.adapt(core.lines, operations, round.run(operations))
            self._write(round)
        except Exception as error:
            if not isinstance(error, StoreFailed):
                log.exception("a round broke; the shard stops, the store keeps what was synced")
                error = StoreFailed(f"internal error in a round: {error!r}; nothing of this round is confirmed")
            round.caller_ops += operations
            round.fail(error)
            self._fail(error)
            return
        self.rounds_took.count(self._clock.monotonic_us() - started_us)
        if core.lines or core.hot or core.hot_lanes:
            self._schedule()
        elif not self._syncing:
            self._idle.set()

    def _write(self, round: Round) -> None:
        """Write a round's batch and hand it over for syncing; a round without effects is answered at once."""
        if round.finish():
            link, size = round.seal(self._link, self.core.ids.last)
            self._probe("before_write")
            self._store.write(round.batch)
            self._link, self._seq = link, round.seq
            self.journal_bytes += size
            self.core.leases.apply(round.overlay, round.cleared)
            self._probe("after_write")
            if self._settings.durability == "os":
                self._announce(round)
                if self._sync_timer is None:
                    self._sync_timer = self._clock.call_later(self._settings.sync_every_ms, self._sync_behind)
            else:
                self._hand_over(round, here=self._may_sync_here())
        elif self._syncing:
            self._hand_over(round)  # what it read may not be durable yet: answer it after the sync
        else:
            self._announce(round)
        for queue in round.dirty:
            self._after_round(queue)
        for tenant in round.freed():
            starved, tenant.starved = tenant.starved, {}
            for queue in starved:
                self._after_round(queue)
        for task in self._redrives:
            if task.letters.tenant.gone:
                task.cancel()

    def _may_sync_here(self) -> bool:
        """Tell whether the loop had better sync by itself: the disk is quick, and no other round is worth running meanwhile."""
        assert self._committer is not None
        return not self._syncing and self.core.lines.cost < _WORTH_A_ROUND and self._committer.is_quick

    def _hand_over(self, round: Round, *, here: bool = False) -> None:
        round.covers = self._seq
        self._syncing.append(round)
        assert self._committer is not None
        if here:
            self._committer.sync_here(round)
        else:
            self._committer.hand_over(round)

    def _sync_behind(self) -> None:
        """With durability "os": sync what was written and answered since the last time."""
        self._sync_timer = None
        if self._failure is None and not self._closed:
            self._hand_over(Round(self.core, self._seq))

    def _synced(self, rounds: list[Round], failure: StoreFailed | None) -> None:
        """Answer everyone whose work the sync covered."""
        if failure is not None:
            self._fail(failure)
            return
        for _ in rounds:
            self._syncing.popleft()
        self._synced_seq = max(self._synced_seq, *(round.covers for round in rounds))
        self._heartbeat_timer.beat(self._synced_seq)
        self._probe("before_reply")
        for round in rounds:
            self._announce(round)
        waiters, self._sync_waiters = self._sync_waiters, []
        for seq, future in waiters:
            if seq <= self._synced_seq:
                let_go(future)
            else:
                self._sync_waiters.append((seq, future))
        self._schedule()

    def _announce(self, round: Round) -> None:
        round.announce()
        for prefix in round.emptied:
            self._background_work.begin(
                self._store.compact, prefix, after(prefix)
            )  # gives back what was deleted by range

    async def _all_synced(self) -> None:
        """Return when everything written so far is durable, so that a read does not tell of what a crash may undo."""
        self._check_open()
        if self._synced_seq < self._seq and self._settings.durability == "fsync":
            future: asyncio.Future[None] = self._loop.create_future()
            self._sync_waiters.append((self._seq, future))
            await future
            self._check_open()

    def _lost(self, error: StoreFailed) -> None:
        """Stop because the store says so; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the shard with it
            self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: StoreFailed) -> None:
        """Stop for good: whoever waits learns that nothing more is confirmed."""
        if self._failure is not None:
            return
        self._failure = error
        log.critical("the shard stops: %s", error)
        self._heartbeat_timer.stop()
        for round in self._syncing:
            round.fail(error)
        for operation in self.core.lines.drain():
            operation.error = error
            operation.resolve()
        for task in self._redrives:
            task.cancel()
        self._send_waiting_polls_away(error)
        for _, future in self._sync_waiters:
            if not future.done():
                future.set_exception(error)
        self._idle.set()
        self.stopped.set()

    # ---- between rounds ----

    def _after_round(self, queue: QueueState) -> None:
        """See what a changed queue needs next: polls served, timers set, the last step of a delete."""
        core = self.core
        if queue.dropping:
            return
        if queue.suspect:
            core.push(Repair(core, queue))
        if queue.status == "draining":
            if (queue.in_flight == 0 or queue.doomed) and not puts_off_drop(queue.tenant):
                core.push(DropQueue(core, queue))
                return
        elif queue.ready > 0:
            if queue.demands:
                core.hot[queue] = None
            if queue.lane is not None and queue.serving:
                queue.lane.enter(queue)
                if queue.lane.demands:
                    core.hot_lanes[queue.lane] = None
        at = queue.next_due
        if queue.frozen is None:
            at = min(at, queue.next_lease, queue.next_expiry)
        if at < queue.timer_at:
            if queue.timer is not None:
                queue.timer.cancel()
            queue.timer_at = at
            delay_ms = max(0, at - core.shard_clock.now_ms())
            if delay_ms == 0:
                queue.timer = None
                self._timer_fired(queue)
            else:
                queue.timer = core.clock.call_later(delay_ms, lambda: self._timer_fired(queue))

    def _timer_fired(self, queue: QueueState) -> None:
        """Bring the background work of a queue into its tenant's line."""
        queue.timer, queue.timer_at = None, NEVER
        if self._failure is not None or self._closing or queue.dropping:
            return
        core, now = self.core, self.core.shard_clock.now_ms()
        if queue.next_due <= now and not queue.advancing:
            core.push(Advance(core, queue))
        if min(queue.next_lease, queue.next_expiry) <= now and not queue.sweeping and queue.frozen is None:
            core.push(Sweep(core, queue))
        if (
            not queue.advancing
            and not queue.sweeping
            and min(queue.next_due, queue.next_lease, queue.next_expiry) < NEVER
        ):
            self._after_round(queue)

    def _wait_is_over(self, poll: Poll | FleetPoll) -> None:
        """Answer a long poll that got nothing in its time."""
        if poll.future is not None and not poll.future.done() and not poll.got:
            poll.future.set_result([])

    def _give_back(self, poll: Poll | FleetPoll) -> None:
        """Release what was leased to a caller that went away before it was told; without this it would wait for the lease's end."""
        receipts: dict[tuple[str, str], list[str]] = {}
        for one in poll.got:
            receipts.setdefault((one.tenant, one.queue), []).append(one.receipt)
        for (tenant, queue), mine in receipts.items():
            found = self.core.catalog.tenants.get(tenant)
            if found is not None and not self._closing and self._failure is None:
                self.core.push(Release(found, poll.caller, queue, mine))

    def _send_waiting_polls_away(self, error: StoreFailed | None = None) -> None:
        demands: list[Poll | FleetPoll] = []
        for queue in self.core.catalog.queues():
            demands += queue.demands
            queue.demands.clear()
            for futures in queue.result_waiters.values():
                for future in futures:
                    let_go(future)
        for lane in self.core.lanes.values():
            demands += lane.demands
            lane.demands.clear()
        for poll in demands:
            if poll.timer is not None:
                poll.timer.cancel()
            poll.error = error
            poll.reply = poll.got
            poll.resolve()
