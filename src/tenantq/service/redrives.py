"""Redrives: move dead letters back to the queues they came from."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from tenantq.domain.validation import projected
from tenantq.engine.ops.redrive import RedriveFilter, RedriveTask
from tenantq.engine.shard import Shard
from tenantq.errors import NotFound
from tenantq.journal.record import entry_of
from tenantq.service.admission import Admission
from tenantq.service.admitted_call import AdmittedCall
from tenantq.service.call import Call

_REDRIVES_MAX: Final = 1_000


class RedriveInfo(msgspec.Struct, frozen=True):
    """The progress of a redrive."""

    id: str
    state: Literal["running", "done", "cancelled", "failed"]
    moved: int  # in a dry run, how many would be moved
    skipped: int  # did not match the filter, or their queue is gone or suspended
    dry_run: bool
    found: int  # dead letters when it started
    started_at: int
    rate: int | None = None  # messages a second
    to: str | None = None  # the target queue; None: where each message came from
    reason: str | None = None  # why it failed


class Redrives:
    """Starts, shows and cancels redrives. The newest ones are remembered until the server stops, or the shard moves."""

    def __init__(self, shard: Shard, admission: Admission) -> None:
        self._shard, self._admission = shard, admission
        self._tasks: dict[str, RedriveTask] = {}

    async def start(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        *,
        filter: RedriveFilter,
        rate: int | None = None,
        dry_run: bool = False,
    ) -> RedriveInfo:
        """Start to move dead letters back."""
        with await self._admission.admit_queue(call, tenant, "redrive", queue) as admitted:
            with self._admission.notes.noting_failure(admitted.caller, admitted.tenant, "redrive", queue):
                task = await self._shard.redrive(
                    admitted.tenant, queue, filter=filter, rate=rate, dry_run=dry_run, caller=admitted.caller
                )
            await self._journal("redrive", admitted, queue, task)
            self._tasks[task.id] = task
            if len(self._tasks) > _REDRIVES_MAX:
                ended = next((old for old, one in self._tasks.items() if one.state != "running"), None)
                self._tasks.pop(ended or next(iter(self._tasks)))
            return _info(task)

    async def get(self, call: Call, tenant: str | None, queue: str, id: str) -> RedriveInfo:
        with await self._admission.admit_queue(call, tenant, "redrive", queue) as admitted:
            return _info(self._task(admitted, queue, id))

    async def list(self, call: Call, tenant: str | None, queue: str) -> Sequence[RedriveInfo]:
        """Return the redrives of a dead-letter queue, newest first."""
        with await self._admission.admit_queue(call, tenant, "redrive", queue) as admitted:
            return [
                _info(task)
                for task in reversed(self._tasks.values())
                if task.letters.tenant is admitted.state and task.letters.name == queue
            ]

    async def cancel(self, call: Call, tenant: str | None, queue: str, id: str) -> RedriveInfo:
        """Stop a redrive. Messages that it moved stay moved."""
        with await self._admission.admit_queue(call, tenant, "redrive", queue) as admitted:
            with self._admission.notes.noting_failure(admitted.caller, admitted.tenant, "cancel_redrive", queue):
                task = self._task(admitted, queue, id)
            task.cancel()
            await self._journal("cancel_redrive", admitted, queue, task)
            return _info(task)

    def _task(self, admitted: AdmittedCall, queue: str, id: str) -> RedriveTask:
        """Return a redrive of this queue, or raise NotFound."""
        task = self._tasks.get(id) if type(id) is str else None
        tenant = admitted.state
        if task is None or task.letters.tenant is not tenant or queue not in {task.letters.name, task.filter.source}:
            text = "the redrive does not exist; it ends when its server restarts, or its shard or tenant moves. Start another."
            raise NotFound(text, tenant=tenant.name, queue=queue)
        return task

    async def _journal(self, action: str, admitted: AdmittedCall, queue: str, task: RedriveTask) -> None:
        """Journal the start or the cancellation of a redrive. The engine journals each move."""
        rate = "a dry run" if task.dry_run else f"at most {task.rate or 'any number'} a second"
        details = f"{task.id}, {rate}"
        await self._shard.journal.note([entry_of(action, admitted.tenant, admitted.caller, details, queue)])


def _info(task: RedriveTask) -> RedriveInfo:
    reason = f"queue '{task.missing}' does not exist" if task.state == "failed" else None
    return projected(RedriveInfo, task, to=task.filter.to, reason=reason)
