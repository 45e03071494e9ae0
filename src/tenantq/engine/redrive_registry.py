"""The redrives of a shard: kept in the meta family, cached here, changed only by rounds.

redrive/<P><id>            what it was asked to do; P is the prefix of the dead-letter queue
redrive/<P><id>/progress   its progress, once it has moved a message, looked at many or ended
"""

import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.engine.redrive_task import RedriveOrder, RedriveProgress, RedriveTask, SavedRedrive
from tenantq.runtime.randomness import Randomness
from tenantq.store.interface import Batch, StoreReader
from tenantq.store.keys import PREFIX_BYTES, after
from tenantq.store.row_pages import VALUES_PER_PAGE, rows_under

log = logging.getLogger("tenantq")

REDRIVE_ROW: Final = b"redrive/"
ENDED_MAX: Final = 100
"""The newest redrives of a tenant that have ended and are kept, on one shard."""

_PROGRESS: Final = b"/progress"
_encode = msgspec.msgpack.Encoder().encode
_decode_order = msgspec.msgpack.Decoder(RedriveOrder).decode
_decode_progress = msgspec.msgpack.Decoder(RedriveProgress).decode


class StoredRedrive(msgspec.Struct, frozen=True):
    """The rows of a redrive. Without ``order``, its first row is missing or unreadable."""

    prefix: bytes  # of the dead-letter queue
    id: str
    order: RedriveOrder | None
    progress: RedriveProgress
    problem: str = ""  # why a row cannot be read


def stored_redrives(store: StoreReader, prefix: bytes = b"") -> list[StoredRedrive]:
    """Return the redrives in a store whose keys start with ``prefix``, also those with unreadable rows."""
    orders: dict[bytes, RedriveOrder | None] = {}
    progress: dict[bytes, RedriveProgress] = {}
    problems: dict[bytes, str] = {}
    for key, value in rows_under(store, store.meta, REDRIVE_ROW + prefix, VALUES_PER_PAGE):
        row = key[len(REDRIVE_ROW) :]
        place = row.removesuffix(_PROGRESS)
        orders.setdefault(place, None)
        try:
            if row.endswith(_PROGRESS):
                progress[place] = _decode_progress(value)
            else:
                orders[place] = _decode_order(value)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            problems[place] = str(error)
    return [
        StoredRedrive(
            place[:PREFIX_BYTES],
            place[PREFIX_BYTES:].decode(errors="replace"),
            order,
            progress.get(place, RedriveProgress()),
            problems.get(place, ""),
        )
        for place, order in orders.items()
    ]


class RedriveRegistry:
    """The redrives of the queues that the shard serves."""

    def __init__(self, store: StoreReader) -> None:
        self._store = store
        self._tasks: dict[str, RedriveTask] = {}
        self._of_tenant: dict[int, dict[bytes, dict[str, RedriveTask]]] = {}  # by tenant and prefix of the queue
        self._changed: dict[RedriveTask, SavedRedrive | None] = {}  # in this round, as they were; None: new here
        self._removed: list[RedriveTask] = []  # in this round, to make room
        self._stopped = False

    # ---- reading ----

    def get(self, id: str) -> RedriveTask | None:
        return self._tasks.get(id)

    def of(self, letters: QueueState) -> list[RedriveTask]:
        """Return the redrives of a dead-letter queue, oldest first."""
        return sorted(self._of_queue(letters).values(), key=_age)

    def of_tenant(self, tenant: TenantState) -> list[RedriveTask]:
        """Return the redrives of a tenant on this shard."""
        return [task for tasks in self._of_tenant.get(tenant.id, {}).values() for task in tasks.values()]

    def continues(self, task: RedriveTask) -> bool:
        """Return whether a redrive has more to do here: it runs, and neither its queue nor this shard has ended."""
        return task.is_running and not self._stopped and self._tasks.get(task.id) is task

    def new_id(self, randomness: Randomness) -> str:
        """Return an ID that no redrive of the shard has."""
        while (id := f"{randomness.getrandbits(64):016x}") in self._tasks:
            pass
        return id

    # ---- changing, into a round's batch ----

    def start(self, batch: Batch, task: RedriveTask) -> None:
        """Add a new redrive, and delete the tenant's oldest ones that have ended if there are too many."""
        batch.put(_key(task), _encode(task.order), self._store.meta.handle)
        self._add(task)
        self._changed[task] = None
        ended = sorted((one for one in self.of_tenant(task.letters.tenant) if not one.is_running), key=_age)
        for one in ended[:-ENDED_MAX]:
            self._remove(one)
            self._removed.append(one)
            batch.delete(_key(one), self._store.meta.handle)
            batch.delete(_key(one) + _PROGRESS, self._store.meta.handle)

    def put_progress(self, batch: Batch, task: RedriveTask, progress: RedriveProgress) -> None:
        """Store the progress of a redrive. Once it has ended, only what callers can read is kept."""
        self.keep_progress(task, progress)
        task.stored = progress
        batch.put(_key(task) + _PROGRESS, _encode(progress), self._store.meta.handle)
        if not task.is_running:
            task.order = task.order.without_conditions()
            batch.put(_key(task), _encode(task.order), self._store.meta.handle)

    def keep_progress(self, task: RedriveTask, progress: RedriveProgress) -> None:
        """Keep the progress of a redrive in memory. After a restart, it looks at these letters again."""
        if task not in self._changed:
            self._changed[task] = task.save()
        task.progress = progress

    def delete_rows(self, batch: Batch, prefix: bytes) -> None:
        """Delete the rows of the queues whose keys start with ``prefix``, which are not served any more."""
        batch.delete_range(REDRIVE_ROW + prefix, REDRIVE_ROW + after(prefix), self._store.meta.handle)

    # ---- in memory only ----

    def load(self, queues: Iterable[QueueState], prefix: bytes = b"") -> None:
        """Read the redrives of served queues whose keys start with ``prefix``. Those with unreadable rows are not continued."""
        found = stored_redrives(self._store, prefix)
        by_prefix = {queue.prefix: queue for queue in queues} if found else {}
        for one in found:
            letters = by_prefix.get(one.prefix)
            if letters is None:
                continue
            if one.problem:
                log.error(
                    "redrive %s cannot be read and is not continued: %s. Start another one.", one.id, one.problem,
                    extra=letters.log_fields(),
                )  # fmt: skip
            elif one.order is not None:
                task = RedriveTask(one.id, letters, one.order, one.progress)
                self._add(task)
                self._changed[task] = None

    def forget(self, letters: QueueState) -> None:
        """Forget the redrives of a queue that is not served any more. Their rows stay."""
        for task in list(self._of_queue(letters).values()):
            self._remove(task)

    def take_changed(self) -> list[RedriveTask]:
        """Return the redrives that were loaded, or changed by the round that was just written, once."""
        changed, self._changed = list(self._changed), {}
        self._removed.clear()
        return changed

    def undo(self) -> None:
        """Take back what the round changed, which is not written."""
        for task, saved in self._changed.items():
            if saved is None:
                self._remove(task)
            else:
                task.restore(saved)
        for task in self._removed:
            self._add(task)
        self.take_changed()

    def stop(self) -> None:
        """Continue none of them. The next one to open the shard does."""
        self._stopped = True
        for task in self._tasks.values():
            task.ended.set()

    def _of_queue(self, letters: QueueState) -> dict[str, RedriveTask]:
        return self._of_tenant.get(letters.tenant.id, {}).get(letters.prefix, {})

    def _add(self, task: RedriveTask) -> None:
        self._tasks[task.id] = task
        letters = task.letters
        self._of_tenant.setdefault(letters.tenant.id, {}).setdefault(letters.prefix, {})[task.id] = task

    def _remove(self, task: RedriveTask) -> None:
        del self._tasks[task.id]
        letters = task.letters
        queues = self._of_tenant[letters.tenant.id]
        del queues[letters.prefix][task.id]
        if not queues[letters.prefix]:
            del queues[letters.prefix]
        if not queues:
            del self._of_tenant[letters.tenant.id]
        task.ended.set()


def _key(task: RedriveTask) -> bytes:
    return REDRIVE_ROW + task.letters.prefix + task.id.encode()


def _age(task: RedriveTask) -> tuple[int, str]:
    return task.order.started_at, task.id
