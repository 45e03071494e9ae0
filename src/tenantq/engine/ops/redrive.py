"""Redrive: moves dead letters back to the queue they came from, filtered and at a limited rate, in slices.

A slice and its progress are one commit, so a redrive that another server continues moves each message once.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from tenantq.domain import limits
from tenantq.domain.message import Caller, DeadLetter
from tenantq.domain.names import check_queue_name
from tenantq.domain.validation import check_field, projected
from tenantq.engine import dead_letter, spread_rules
from tenantq.engine.arguments import QueueArgument
from tenantq.engine.effects import Effects
from tenantq.engine.operation import BYTES_PER_COST, PART_BYTES, SCAN, Operation
from tenantq.engine.ops.remove import remove_message
from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.engine.redrive_task import RedriveFilter, RedriveOrder, RedriveProgress, RedriveState, RedriveTask
from tenantq.engine.state import ShardState
from tenantq.engine.work_counters import REMOVED
from tenantq.errors import Invalid, NotFound, QuotaExceeded
from tenantq.journal.record import without_surrogates
from tenantq.runtime.loop_slices import next_slice
from tenantq.runtime.randomness import id_bytes
from tenantq.store.keys import ID_BYTES, after
from tenantq.store.rows import DeliveryHistory, LeaseRow, pack_history

RUNNING_MAX: Final = 100
"""Redrives of one tenant that run at the same time, on one shard."""

RETRY_MS: Final = 1_000
"""The pause of a redrive whose dead-letter queue is suspended, or that finds too little free disk space."""

UNSTORED_MAX: Final = 10_000
"""Messages that a redrive looks at without moving any before it stores its position."""

_PARSED_AT_ONCE = 2_000  # IDs


async def check_filter(wanted: RedriveFilter | None) -> RedriveFilter:
    """Return ``wanted`` with its IDs parsed, in slices; None means all. Raises Invalid if a condition is invalid."""
    if wanted is None:
        return RedriveFilter()
    if type(wanted) is not RedriveFilter:
        raise Invalid(f"filter: must be a RedriveFilter, not {type(wanted).__name__}")
    for name in (wanted.source, wanted.to):
        if name is not None:
            check_queue_name(name)
    if wanted.reason is not None:
        check_field("filter: reason", wanted.reason, limits.Reason)
    if wanted.limit is not None:
        check_field("filter: limit", wanted.limit, limits.RedriveLimit)
    if wanted.ids is None:
        return wanted
    if not isinstance(wanted.ids, frozenset | set | list | tuple):
        raise Invalid(f"filter: ids must be a set of message ids, not {type(wanted.ids).__name__}")
    if len(wanted.ids) > limits.REDRIVE_IDS_MAX:
        raise too_many_ids(len(wanted.ids))
    given, ids = list(wanted.ids), set[str | bytes]()
    for start in range(0, len(given), _PARSED_AT_ONCE):
        ids.update(map(id_bytes, given[start : start + _PARSED_AT_ONCE]))
        await next_slice()
    return msgspec.structs.replace(wanted, ids=frozenset(ids))


def too_many_ids(count: int) -> Invalid:
    """Return the error for a filter that names too many messages."""
    return Invalid(
        f"filter: {count} ids, allowed are {limits.REDRIVE_IDS_MAX}; redrive them in parts, or by their reason"
    )


@dataclass(eq=False)
class StartRedrive(Operation[RedriveTask]):
    """Start a redrive. It continues when the shard is opened again, also by another server. The result is the redrive.

    ``queue`` is the queue whose dead letters are meant, or a dead-letter queue itself.
    """

    queue: QueueArgument
    filter: RedriveFilter  # from ``check_filter``
    rate: int | None = None
    dry_run: bool = False
    journal_op = "redrive"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate is not None:
            check_field("rate", self.rate, limits.RedriveRate)
        if not set(map(type, self.filter.ids or ())) <= {bytes}:
            raise Invalid("filter: ids: must be bytes. Get the filter from check_filter.")
        self.cost = 1 + len(self.filter.ids or ()) * ID_BYTES / BYTES_PER_COST

    def execute(self, effects: Effects) -> None:
        """Store it. Its first slice follows once that is written.

        Raises Suspended if the queue, its dead-letter queue or the filter's source is. Letters of other suspended queues
        stay. Raises QuotaExceeded if the tenant's redrives are too many, or name too many messages.
        """
        state, tenant = effects.state, self.tenant
        letters, wanted = self._letters(state.catalog.queue(tenant, self.queue), state)
        letters.check_takes()
        spread_rules.check_redrive(tenant, letters.name, wanted.to)
        for name in (wanted.source, wanted.to):
            if name in tenant.queues:
                tenant.queues[name].check_takes()
        _check_running(tenant, state, len(wanted.ids or ()))
        rate = None if self.dry_run else self.rate
        caller = Caller(*map(without_surrogates, msgspec.structs.astuple(self.caller)))
        order = projected(
            RedriveOrder, wanted, rate=rate, dry_run=self.dry_run, caller=caller, found=letters.messages,
            started_at=effects.now + effects.wall,
        )  # fmt: skip
        self.reply = RedriveTask(state.redrives.new_id(state.randomness), letters, order, RedriveProgress())
        state.redrives.start(effects.batch, self.reply)
        effects.moved_bytes += len(wanted.ids or ()) * ID_BYTES  # a large write, too
        pace = "a dry run" if self.dry_run else f"at most {rate} a second" if rate is not None else "no rate limit"
        effects.log(self.journal_op, letters, self.caller, details=f"{self.reply.id}, {pace}")

    def _letters(self, queue: QueueState, state: ShardState) -> tuple[QueueState, RedriveFilter]:
        """Return the dead-letter queue, and the filter for it."""
        queues, name_of = self.tenant.queues, state.catalog.dead_letter_name
        letters = queues.get(name_of(queue))
        takes_letters = any(name_of(one) == queue.name for one in queues.values())
        if letters is None or takes_letters:
            return queue, self.filter
        return letters, msgspec.structs.replace(self.filter, source=queue.name)


def _check_running(tenant: TenantState, state: ShardState, ids: int) -> None:
    """Raise QuotaExceeded if the tenant cannot start another redrive, with this number of message IDs."""
    running = [task for task in state.redrives.of_tenant(tenant) if task.is_running]
    if len(running) >= RUNNING_MAX:
        text = f"redrives: at most {RUNNING_MAX} can run. Wait for one to end, or cancel one."
        raise QuotaExceeded(text, tenant=tenant.name, limit=RUNNING_MAX, current=len(running))
    named, most = sum(len(task.order.ids or ()) for task in running), limits.REDRIVE_IDS_MAX
    if ids and named + ids > most:
        text = (
            f"filter: ids: too many ({ids}, and {named} of redrives that run; allowed are {most} together). "
            "Wait for a redrive to end, or cancel one."
        )
        raise QuotaExceeded(text, tenant=tenant.name, limit=most, current=named)


@dataclass(eq=False)
class CancelRedrive(Operation[RedriveTask]):
    """Stop a redrive before its next slice. Messages that it moved stay moved."""

    queue: QueueArgument  # the dead-letter queue, or the one whose dead letters it moves
    id: str
    journal_op = "cancel_redrive"

    def execute(self, effects: Effects) -> None:
        """End it, if it runs. Raises NotFound."""
        task = self.reply = find_redrive(effects.state, self.tenant.name, self.queue, self.id)
        if task.is_running:
            progress = msgspec.structs.replace(task.progress, state="cancelled")
            effects.state.redrives.put_progress(effects.batch, task, progress)
            effects.log(self.journal_op, task.letters, self.caller, details=task.id)


def find_redrive(state: ShardState, tenant: str, queue: str, id: str) -> RedriveTask:
    """Return a redrive of a dead-letter queue, or of the dead letters of a queue. Raises NotFound."""
    task = state.redrives.get(id) if type(id) is str else None
    owner = state.catalog.tenant(tenant)
    if task is None or task.letters.tenant is not owner or queue not in {task.letters.name, task.order.source}:
        state.catalog.check_queue_here(owner, queue)
        text = "unknown redrive: check the task ID and the queue. Old redrives and those of deleted queues are removed."
        raise NotFound(text, tenant=tenant, queue=queue)
    return task


def continue_redrives(state: ShardState) -> None:
    """Continue the redrives that were loaded or changed and run, after the pause that their rates require."""
    for task in state.redrives.take_changed():
        if not task.is_running:
            task.ended.set()
        elif task.pause_ms:
            state.clock.call_later(task.pause_ms, partial(_push_slice, state, task))
        else:
            _push_slice(state, task)


def _push_slice(state: ShardState, task: RedriveTask) -> None:
    if not state.redrives.continues(task):
        return
    if _must_wait(state, task):
        state.clock.call_later(RETRY_MS, partial(_push_slice, state, task))
    else:
        state.push(RedriveSlice(task, state.settings.sweep_rows // 2))


def _must_wait(state: ShardState, task: RedriveTask) -> bool:
    """Return whether a redrive cannot move messages now, but may be able to later."""
    letters = task.letters
    if letters.status == "draining" or letters.damaged:
        return False  # it ends
    return letters.suspended or not (task.order.dry_run or state.space.is_enough)


class RedriveSlice(Operation[None]):
    """A bounded part of a redrive."""

    journal_op = "redrive"
    phase = SCAN

    def __init__(self, task: RedriveTask, rows_max: int) -> None:
        super().__init__(task.letters.tenant, task.order.caller)
        self.rows = task.slice_rows(rows_max)
        self.cost = max(1, self.rows)
        self.task = task
        self.missing: str | None = None

    def execute(self, effects: Effects) -> None:
        """Check the next letters in order of their ids, which keeps groups in order, and move those that pass the filter."""
        task, letters, store = self.task, self.task.letters, effects.store
        wanted, before, redrives = task.order, task.progress, effects.state.redrives
        if not redrives.continues(task):
            return
        if letters.status == "draining":
            self._end(effects, before, "cancelled", "the dead-letter queue is being deleted")
            return
        if letters.damaged:
            before = msgspec.structs.replace(before, missing=None)
            self._end(effects, before, "failed", "rows of the dead-letter queue cannot be read")
            return
        if letters.suspended:  # since the slice entered the line
            redrives.keep_progress(task, before)
            return
        if letters.prefix in effects.cleared:
            self._end(effects, before)
            return
        # With a named target, messages added to the dead-letter queue itself move too; they may have no lease row.
        family = store.le if wanted.to is None else store.m
        rows = store.scan(family, task.cursor, after(letters.prefix), self.rows)
        if rows and wanted.to is not None:
            target = letters.tenant.queues.get(wanted.to)
            if target is None or target.status == "draining":
                self._end(effects, msgspec.structs.replace(before, missing=wanted.to), "failed")
                return
        self.missing = before.missing
        moved: dict[str, list[tuple[bytes, int]]] = {}  # by the queue they go to
        seen: list[bytes] = []
        for key in rows:
            if effects.moved_bytes >= PART_BYTES:
                break
            id = key[-ID_BYTES:]
            seen.append(id)
            sent_to = self._move(effects, id)
            if sent_to is not None:
                name, size = sent_to
                moved.setdefault(name, []).append((id, size))
        for name, sent in moved.items() if not wanted.dry_run else ():
            ids, sizes = b"".join(id for id, _ in sent), [size for _, size in sent]
            effects.log("redrive", letters, wanted.caller, ids=ids, size=sizes, details=f"to {name}")
        count, last = sum(map(len, moved.values())), seen[-1] if seen else before.last
        skipped = before.skipped + len(seen) - count
        progress = RedriveProgress("running", before.moved + count, skipped, self.missing, last)
        if len(seen) == len(rows) < self.rows or (wanted.limit is not None and progress.moved >= wanted.limit):
            self._end(effects, progress)
        else:
            self._continue(effects, progress)

    def _continue(self, effects: Effects, progress: RedriveProgress) -> None:
        task, redrives = self.task, effects.state.redrives
        if progress.moved > task.progress.moved and not task.order.dry_run:
            redrives.put_progress(effects.batch, task, progress)
        elif progress.checked - task.stored.checked >= UNSTORED_MAX:
            details = f"{task.id}, running: {progress.checked} messages checked"
            effects.log("redrive", task.letters, effects.state.system, details=details)
            redrives.put_progress(effects.batch, task, progress)
        else:
            redrives.keep_progress(task, progress)

    def _end(
        self,
        effects: Effects,
        progress: RedriveProgress,
        state: RedriveState | None = None,
        reason: str | None = None,
    ) -> None:
        """Store and journal the end; None: the redrive got to its end."""
        task, dry_run = self.task, self.task.order.dry_run
        if state is None:
            state = "done" if progress.missing is None or dry_run else "failed"
        if state == "failed" and reason is None and progress.missing is not None:
            reason = f"queue '{progress.missing}' does not exist"
        verb = "would move" if dry_run else "moved"
        details = f"{task.id}, {state}: {verb} {progress.moved}, skipped {progress.skipped}"
        if reason is not None:
            details += f"; {reason}"
        effects.log("redrive", task.letters, effects.state.system, details=details)
        ended = msgspec.structs.replace(progress, state=state, reason=reason)
        effects.state.redrives.put_progress(effects.batch, task, ended)

    def _move(self, effects: Effects, id: bytes) -> tuple[str, int] | None:
        """Move one letter if it passes the filter, is not in flight and its queue accepts it; return that queue and the size."""
        task = self.task
        letters, wanted = task.letters, task.order
        if wanted.ids is not None and id not in wanted.ids:
            return None
        found = effects.locate(letters, id)
        if found is None or found.state == "in_flight":
            return None
        message, history = (
            found.message,
            found.lease.unpack_history() if found.lease is not None else DeliveryHistory([]),
        )
        name = _goes_to(wanted, history.dead)
        target = letters.tenant.queues.get(name) if name is not None else None
        encrypted_for = history.dead.source if history.dead is not None else letters.name
        if target is None or target.status == "draining":
            self.missing = name or self.missing
            return None
        if (
            target.suspended
            or target.damaged
            or (message.encrypted and target.name != encrypted_for)  # its encryption is bound to that queue
        ):
            return None
        if task.order.dry_run:
            return target.name, message.size
        remove_message(effects, letters, id)
        letters.work.totals[REMOVED] += 1
        history.dead = None
        fresh = LeaseRow(
            0, 0, 0, 0, effects.now, 0, message.size, message.priority, message.max_attempts, history=pack_history(history)
        )  # fmt: skip
        effects.batch.delete(target.prefix + id, effects.store.re.handle)
        dead_letter.move_in(effects, target, id, message, fresh, lives_since=effects.now)
        return target.name, message.size


def _goes_to(wanted: RedriveOrder, dead: DeadLetter | None) -> str | None:
    """Return the target queue if a message passes the filter. A message that is not a dead letter needs a named target."""
    if dead is None:
        return wanted.to if wanted.source is None and wanted.reason is None else None
    if (wanted.source is not None and dead.source != wanted.source) or (
        wanted.reason is not None and wanted.reason not in dead.reason
    ):
        return None
    return wanted.to or dead.source
