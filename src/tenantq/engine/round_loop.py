"""The round loop of a shard: runs and syncs rounds, keeps timers, and stops permanently on a failure."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tenantq.domain.message import LOCAL, Caller, Delivery, check_caller, receipts_by_queue
from tenantq.engine.background_work import BackgroundWork
from tenantq.engine.committer import Committer
from tenantq.engine.fair_lines import RoundBudget
from tenantq.engine.heartbeat_timer import HeartbeatTimer
from tenantq.engine.operation import Operation
from tenantq.engine.ops.redrive import continue_redrives
from tenantq.engine.ops.settle import Release
from tenantq.engine.polls import Poll
from tenantq.engine.quarantine import quarantine, undo_round
from tenantq.engine.queue_timers import QueueTimers
from tenantq.engine.round import Round
from tenantq.engine.round_figures import RoundFigures
from tenantq.engine.state import ShardState
from tenantq.engine.waiting_polls import end_waiting_polls
from tenantq.errors import Busy, Closed, QueueDamaged, RowsDamaged, StoreFailed, TenantqError
from tenantq.runtime.clock import Timer
from tenantq.runtime.futures import wake
from tenantq.store.keys import after

log = logging.getLogger("tenantq")

_ROUNDS_UNSYNCED_MAX = 2
_WORTH_A_ROUND = 64  # while another round syncs, less waiting cost than this waits for that sync
_SYNCED_HERE_BYTES_MAX = 64 << 10  # of bodies; more would take a fast disk milliseconds
_LONG_ROUND_US = 500
_REST_TURNS = 4  # after a long round that tenants share
_R = TypeVar("_R")


class RoundLoop:
    """Runs every operation of a shard, in rounds: one event loop, one store, one writer."""

    def __init__(self, state: ShardState, probe: Callable[[str], None]) -> None:
        """Start the committer. ``probe`` is called at the named points of a round, for crash tests."""
        settings = state.settings
        self.state = state
        self._store, self._journal, self._clock = state.store, state.journal, state.clock
        self._probe = probe
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.Context()  # a round belongs to no request
        self._durable = settings.durability == "fsync"
        self._line_max = settings.line_ops_max
        self._closing = False
        self._closed = False
        self._step_scheduled = False
        self._rest_turns = 0  # of the event loop before the next round
        self._idle = asyncio.Event()
        self._idle.set()
        self._syncing: deque[Round] = deque()  # written, and not reported as synced yet
        self._sync_timer: Timer | None = None
        self._sync_waiters: list[tuple[int, asyncio.Future[None]]] = []  # the record that must be synced first
        self._budget = RoundBudget(settings)
        self._heartbeat = HeartbeatTimer(state.store, state.shard_clock, state.clock, state.journal.seq)
        self._timers = QueueTimers(state, lambda: self._closing or self.failure is not None)
        self.background = BackgroundWork()
        self.failure: StoreFailed | None = None  # why the shard stopped, if it did
        self.stopped = asyncio.Event()  # set when the shard stops because of a failure
        self._waiting_since_us = 0  # when the first operation since the last round entered; 0: none did
        state.wake = self._schedule
        state.store.ownership.watch(self._lose_store)
        self._committer = Committer(state.store, self._loop, state.clock, self._synced, probe)
        self.figures = RoundFigures(self._committer.took)

    # ---- starting and stopping ----

    def start(self) -> None:
        """Set the queues' timers, continue redrives and start serving."""
        for queue in self.state.catalog.queues():
            self._timers.follow(queue)
        if self._durable and not self._store.found_is_durable:  # replies about what was found wait for this sync
            self._hand_over(Round(self.state, self._journal.seq))
        self._heartbeat.start()
        continue_redrives(self.state)
        self._schedule()

    def abort(self) -> None:
        """Stop a loop whose shard could not be opened."""
        self._closing = self._closed = True
        self._heartbeat.stop()
        self._committer.close()

    async def finish(self) -> None:
        """Finish what waits in the lines, sync it, and stop. Leases are kept."""
        self._closing = True
        self.state.redrives.stop()
        end_waiting_polls(self.state)
        if self.failure is None:
            await self._idle.wait()
        if self.failure is None and self._journal.synced_seq < self._journal.seq:  # durability "os"
            self._idle.clear()
            self._hand_over(Round(self.state, self._journal.seq))
            await self._idle.wait()
        end_waiting_polls(self.state)  # those that were still in a line
        await self.background.finished()
        self._committer.close()
        await asyncio.sleep(0)  # let the last sync's report arrive
        self._timers.cancel()
        self._heartbeat.stop()
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        self._closed = True

    def end_waits(self) -> None:
        """End all polls and reads that wait, as if their time were over."""
        end_waiting_polls(self.state)

    def close_store(self) -> None:
        """Close the store after ``finish``, and mark it as cleanly closed if everything is synced."""
        if self.failure is None:
            synced_seq = self._journal.synced_seq
            self._heartbeat.beat(synced_seq, clean=synced_seq == self._journal.seq)
        try:
            self._store.close()
        except StoreFailed as error:
            self.failure = self.failure or error
            raise

    @property
    def is_doubtful(self) -> bool:
        """Whether the store has not answered for so long that another process may own it by now."""
        return not self._closed and self._store.ownership.is_doubtful

    # ---- submitting ----

    def check_open(self) -> None:
        """Raise what stopped the shard, or Closed while it closes."""
        if self.failure is not None:
            raise self.failure
        if self._closing:
            raise Closed

    async def submit(self, operation: Operation[_R]) -> _R:
        """Run an operation in a round and return its reply after the sync that covers it."""
        self.check_open()
        if operation.caller is not LOCAL:
            check_caller(operation.caller)
        if operation.stores_messages:
            self.state.space.check()
        line = operation.tenant.line
        if len(line.operations) >= self._line_max:
            raise Busy(tenant=operation.tenant.name or None)
        future: asyncio.Future[_R] = self._loop.create_future()
        operation.future = future
        operation.queued_us = self._waiting_since_us or self._enter()
        self.state.lines.push(line, operation)
        if not self._step_scheduled:
            self._schedule()
        try:
            return await future
        except asyncio.CancelledError:
            if isinstance(operation, Poll) and not future.cancelled():  # cancelled in the same turn as the reply
                self.release_undelivered(operation.got, operation.caller)
            raise

    async def submit_parts(
        self, parts: Sequence[tuple[Operation[list[_R]], int]], refused: Callable[[TenantqError], _R]
    ) -> list[_R]:
        """Run the operations of one batch, each with its number of items, and return the results of all items, in order.

        If an operation fails, its items get ``refused(error)``. Raises like ``submit`` if all fail or the shard has stopped.
        """
        self.check_open()
        first = parts[0][0]
        check_caller(first.caller)
        if first.stores_messages:
            self.state.space.check()
        line = first.tenant.line
        if line.operations and len(line.operations) + len(parts) > self._line_max:
            raise Busy(tenant=first.tenant.name or None)
        queued_us = self._waiting_since_us or self._enter()
        futures: list[asyncio.Future[list[_R]]] = []
        for part, _ in parts:
            part.future = self._loop.create_future()
            part.queued_us = queued_us
            futures.append(part.future)
            self.state.lines.push(line, part)
        self._schedule()
        replies = await asyncio.gather(*futures, return_exceptions=True)
        results: list[_R] = []
        errors = [one for one in replies if isinstance(one, BaseException)]
        for (_, count), reply in zip(parts, replies, strict=True):
            if not isinstance(reply, BaseException):
                results += reply
            elif len(errors) == len(parts) or isinstance(reply, StoreFailed) or not isinstance(reply, TenantqError):
                raise reply
            else:
                results += [refused(reply)] * count
        return results

    def release_undelivered(self, deliveries: Sequence[Delivery], caller: Caller) -> None:
        """Release messages whose caller went away before it received them.

        Otherwise they would stay leased until their leases end. The call returns immediately; the release waits in the
        tenants' lines, uses up no attempt, and does nothing on a shard that is closing or has stopped.
        """
        for (name, queue), receipts in receipts_by_queue(deliveries).items():
            tenant = self.state.catalog.tenants.get(name)
            if tenant is not None and not self._closing and self.failure is None:
                self.state.push(Release(tenant, caller, queue, receipts))

    async def synced(self) -> None:
        """Return when everything written so far is durable. Reads call it, because a crash could undo the rest.

        With durability "os" it returns immediately.
        """
        if self._durable:
            await self.made_durable()
        else:
            self.check_open()

    async def made_durable(self) -> None:
        """Return when everything written so far is durable, also with durability "os".

        Await it before writing or deleting elsewhere because of what this shard has stored. Else a power failure could undo
        only this shard's part.
        """
        self.check_open()
        if self._syncing or self._journal.synced_seq < self._journal.seq:
            future: asyncio.Future[None] = self._loop.create_future()
            self._sync_waiters.append((self._journal.seq, future))
            if not self._durable:
                self._sync_behind()
            await future
            self.check_open()

    def _enter(self) -> int:
        """Return when the operations that enter before the next round began to wait: the time of the first."""
        self._waiting_since_us = self._clock.monotonic_us()
        return self._waiting_since_us

    # ---- rounds ----

    def _schedule(self) -> None:
        if not self._step_scheduled and self.failure is None and not self._closed:
            self._step_scheduled = True
            self._idle.clear()
            self._loop.call_soon(self._rest if self._rest_turns else self._step, context=self._context)

    def _rest(self) -> None:
        """Let the loop turn a few times before the next round: a short request needs several turns to enter and leave."""
        self._rest_turns -= 1
        self._loop.call_soon(self._rest if self._rest_turns else self._step, context=self._context)

    def _step(self) -> None:
        """Run one round unless too many are unsynced. Earlier rounds are synced at the same time."""
        self._step_scheduled = False
        self._waiting_since_us = 0
        state = self.state
        if self.failure is not None or len(self._syncing) >= _ROUNDS_UNSYNCED_MAX:
            return
        if self._syncing and state.lines.cost < _WORTH_A_ROUND:
            return
        if not (state.lines or state.queues_to_match or state.lanes_to_match):
            if not self._syncing:
                self._idle.set()
            return
        budget, started_us = self._budget, self._clock.monotonic_us()
        large_syncs = bool(self._syncing) and any(one.is_large for one in self._syncing)
        operations = budget.pick(state.lines, started_us // 1_000, large_syncs=large_syncs)
        if not (operations or state.queues_to_match or state.lanes_to_match):
            return  # only large operations wait, until another one is synced
        self.figures.rounds += 1
        round = Round(state, self._journal.seq + 1, shared=budget.is_shared)
        round.is_large = budget.is_shared and bool(operations) and budget.is_large(operations[0])
        try:
            unstarted = round.run(operations, started_us // 1_000 + state.settings.round_ms)
            _count_turns(operations, unstarted, started_us)
            budget.adapt(state.lines, operations, unstarted)
            if round.unfinished:
                state.lines.put_back(round.unfinished)
            self._write(round)
        except Exception as error:
            if isinstance(error, RowsDamaged) and self._undo(round, operations, error):
                return
            if not isinstance(error, StoreFailed):
                log.exception("internal error in a round; the shard stops. Synced data is safe.")
                error = StoreFailed(f"internal error in a round: {error!r}. No operation of this round is confirmed.")
            round.effects.answered += operations
            round.fail(error)
            self._fail(error)
            return
        self.figures.count(len(operations) - len(unstarted), self._clock.monotonic_us() - started_us)
        if round.syncs_here:
            self._sync_here(round)
        if budget.is_shared and self._clock.monotonic_us() - started_us >= _LONG_ROUND_US:
            self._rest_turns = _REST_TURNS
        if state.lines or state.queues_to_match or state.lanes_to_match:
            self._schedule()
        elif not self._syncing:
            self._idle.set()

    def _sync_here(self, round: Round) -> None:
        """Sync a round on the event loop, and reply in its next turn: requests that arrived meanwhile share the next round."""
        self._loop.call_soon(self._report_sync, round, self._committer.sync())

    def _report_sync(self, round: Round, failure: StoreFailed | None) -> None:
        if not self._closed:  # it is if the shard could not be opened, and then its store is closed too
            self._synced([round], failure)

    def _undo(self, round: Round, operations: Sequence[Operation[Any]], error: RowsDamaged) -> bool:
        """Undo a round that read damaged rows; its operations run again. Returns False if that is not possible."""
        try:
            undone = undo_round(round.effects, operations, error)
        except StoreFailed:
            return False
        if undone:
            for queue in self.state.catalog.queues():
                self._timers.follow(queue)
            self._schedule()
        return undone

    def quarantine(self, error: RowsDamaged) -> QueueDamaged:
        """Take the queue of damaged rows, which a read found, out of service. Returns the error for the caller."""
        queue = quarantine(self.state, error)
        return QueueDamaged(tenant=queue.tenant.name, queue=queue.name) if queue is not None else QueueDamaged()

    def _write(self, round: Round) -> None:
        """Write a round's batch and hand it over for syncing. A round without effects is answered immediately."""
        is_changed = round.finish()
        if is_changed:
            self._write_batch(round)
        continue_redrives(self.state)
        if is_changed and not self._durable:
            self._announce(round)
            if self._sync_timer is None:
                self._sync_timer = self._clock.call_later(self.state.settings.sync_every_ms, self._sync_behind)
        elif is_changed:
            round.syncs_here = self._may_sync_here(round)
            self._hand_over(round)
        elif self._syncing:
            self._hand_over(round)  # it may have read rows that are not durable yet, so it is answered after the sync
        else:
            self._announce(round)
        for queue in round.effects.dirty:
            self._timers.follow(queue)
        for tenant in round.freed_tenants():
            starved, tenant.starved = tenant.starved, {}
            for queue in starved:
                self._timers.follow(queue)

    def _write_batch(self, round: Round) -> None:
        """Write a round's rows with its journal record."""
        link, size = round.add_record(self._journal.link, self.state.ids.last)
        self._probe("before_write")
        started_us = self._clock.monotonic_us()
        self.state.write(round.effects.batch)
        self.figures.writes_took.count(self._clock.monotonic_us() - started_us)
        self._journal.link, self._journal.seq = link, round.effects.seq
        self._journal.bytes += size
        self.state.leases.apply(round.effects.overlay, round.effects.cleared)
        self._probe("after_write")

    def _may_sync_here(self, round: Round) -> bool:
        """Return whether to sync on the event loop: few bytes, the disk is fast, and too little work waits for another round."""
        if self._syncing or round.effects.moved_bytes > _SYNCED_HERE_BYTES_MAX:
            return False
        return self.state.lines.cost < _WORTH_A_ROUND and self._committer.is_quick

    def _hand_over(self, round: Round) -> None:
        """Have a round synced, together with all that was written before."""
        round.covers = self._journal.seq
        self._syncing.append(round)
        if not round.syncs_here:
            self._committer.hand_over(round)

    def _sync_behind(self) -> None:
        """With durability "os": sync everything written since the last sync."""
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None
        if self.failure is None and not self._closed:
            self._hand_over(Round(self.state, self._journal.seq))

    def _synced(self, rounds: list[Round], failure: StoreFailed | None) -> None:
        """Answer all callers whose rounds the sync covered."""
        if failure is not None:
            self._fail(failure)
            return
        for _ in rounds:
            self._syncing.popleft()
        self._journal.synced_seq = max(self._journal.synced_seq, rounds[-1].covers)
        self._heartbeat.beat(self._journal.synced_seq)
        self._probe("before_reply")
        for round in rounds:
            self._announce(round)
        if self._sync_waiters:
            self._wake_waiters()
        self._schedule()

    def _wake_waiters(self) -> None:
        """Wake the reads that wait for a sync, if it covers what they found."""
        waiters, self._sync_waiters = self._sync_waiters, []
        for seq, future in waiters:
            if seq <= self._journal.synced_seq:
                wake(future)
            else:
                self._sync_waiters.append((seq, future))

    def _announce(self, round: Round) -> None:
        for poll in round.announce():
            self.release_undelivered(poll.got, poll.caller)
        for prefix in round.effects.emptied:
            self.background.begin(
                self._store.files.compact, prefix, after(prefix)
            )  # reclaims the space of deleted ranges

    def _lose_store(self, error: StoreFailed) -> None:
        """Stop because the store is lost. Safe from any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and the shard with it
            self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: StoreFailed) -> None:
        """Stop permanently. All waiting callers get the error."""
        if self.failure is not None:
            return
        self.failure = error
        log.critical("the shard has stopped: %s", error)
        self._heartbeat.stop()
        for round in self._syncing:
            round.fail(error)
        for operation in self.state.lines.drain():
            operation.error = error
            operation.resolve()
        self.state.redrives.stop()
        end_waiting_polls(self.state, error)
        for _, future in self._sync_waiters:
            if not future.done():
                future.set_exception(error)
        self._idle.set()
        self.stopped.set()


def _count_turns(operations: Sequence[Operation[Any]], unstarted: Sequence[Operation[Any]], now_us: int) -> None:
    """Count how long operations waited for their turn."""
    still_waiting = set(unstarted)
    tenant, since_us, times = None, 0, 0  # most operations of a tenant entered together
    for operation in operations:
        queued_us = operation.queued_us
        if not queued_us or (still_waiting and operation in still_waiting):
            continue
        operation.queued_us = 0
        if operation.tenant is not tenant or queued_us != since_us:
            if tenant is not None:
                tenant.counters.turns.count(now_us - since_us, times)
            tenant, since_us, times = operation.tenant, queued_us, 0
        times += 1
    if tenant is not None:
        tenant.counters.turns.count(now_us - since_us, times)
