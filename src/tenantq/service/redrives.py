"""Redrives: move dead letters back to the queues they came from."""

from collections.abc import Sequence

import msgspec

from tenantq.engine.ops.redrive import CancelRedrive, StartRedrive, check_filter, find_redrive
from tenantq.engine.redrive_task import RedriveFilter, RedriveState, RedriveTask
from tenantq.engine.shard import Shard
from tenantq.errors import Invalid
from tenantq.service.admission import Admission
from tenantq.service.admitted_call import AdmittedCall
from tenantq.service.call import Call
from tenantq.service.settlement import label_of


class RedriveInfo(msgspec.Struct, frozen=True):
    """The progress of a redrive."""

    id: str
    state: RedriveState
    moved: int  # in a dry run, how many would be moved
    skipped: int  # did not match the filter, or their queue is gone or suspended
    dry_run: bool
    found: int  # dead letters when it started
    started_at: int
    rate: int | None = None  # messages a second
    to: str | None = None  # the target queue; None: where each message came from
    reason: str | None = None  # why it failed, or was cancelled by the server
    missing: str | None = None  # a queue to which messages should go and that does not exist


class Redrives:
    """Starts, shows and cancels redrives. The shard stores and continues them, and keeps the newest."""

    def __init__(self, shard: Shard, admission: Admission) -> None:
        self._shard, self._admission = shard, admission

    async def start(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        *,
        filter: RedriveFilter | None,
        rate: int | None = None,
        dry_run: bool = False,
    ) -> RedriveInfo:
        """Start to move dead letters back."""
        with await self._admission.admit_queue(call, tenant, "redrive", queue) as admitted:
            with self._admission.notes.noting_failure(admitted.caller, admitted.tenant, "redrive", queue):
                wanted = await check_filter(filter)
                _check_reason(admitted, wanted.reason)
                start = StartRedrive(admitted.state, admitted.caller, queue, wanted, rate, dry_run)
            return _info(await self._shard.submit(start))

    async def get(self, call: Call, tenant: str | None, queue: str, id: str) -> RedriveInfo:
        with await self._admission.admit_queue(call, tenant, "redrive", queue) as admitted:
            info = _info(find_redrive(self._shard.state, admitted.tenant, queue, id))
            await self._shard.loop.synced()
            return info

    async def list(self, call: Call, tenant: str | None, queue: str) -> Sequence[RedriveInfo]:
        """Return the redrives of a dead-letter queue, newest first."""
        with await self._admission.admit_queue(call, tenant, "redrive", queue) as admitted:
            state = self._shard.state
            state.catalog.check_queue_here(admitted.state, queue)
            letters = admitted.state.queues.get(queue)
            found = [_info(task) for task in reversed(state.redrives.of(letters))] if letters is not None else []
            await self._shard.loop.synced()
            return found

    async def cancel(self, call: Call, tenant: str | None, queue: str, id: str) -> RedriveInfo:
        """Stop a redrive. Messages that it moved stay moved."""
        with await self._admission.admit_queue(call, tenant, "redrive", queue) as admitted:
            return _info(await self._shard.submit(CancelRedrive(admitted.state, admitted.caller, queue, id)))


def _check_reason(admitted: AdmittedCall, reason: str | None) -> None:
    """Raise Invalid for a text that may quote bodies of an encrypted tenant: it would be stored, and match nothing."""
    encryption = admitted.state.config.encryption
    if reason is not None and encryption.enabled and not encryption.plain_reasons and label_of(reason) != reason:
        raise Invalid(
            "filter: reason: must be a label, such as 'ValueError'. Encrypted tenants keep only the label of a reason.",
            tenant=admitted.tenant,
        )


def _info(task: RedriveTask) -> RedriveInfo:
    order, progress = task.order, task.progress
    return RedriveInfo(
        task.id, progress.state, progress.moved, progress.skipped, order.dry_run, order.found, order.started_at,
        order.rate, order.to, progress.reason, progress.missing,
    )  # fmt: skip
