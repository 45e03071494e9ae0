"""The redrives of a shard: kept in the meta family, cached here, changed only by rounds.

redrive/<P><id>            what it was asked to do; P is the prefix of the dead-letter queue
redrive/<P><id>/progress   how far it is, once it has moved a message or has ended
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from tenantq.engine.queue_state import QueueState
from tenantq.engine.redrive_task import RedriveOrder, RedriveProgress, RedriveTask
from tenantq.runtime.randomness import Randomness
from tenantq.store.interface import Batch, StoreReader
from tenantq.store.keys import PREFIX_BYTES, after
from tenantq.store.row_pages import VALUES_PER_PAGE, rows_under

REDRIVE_ROW: Final = b"redrive/"
REDRIVES_MAX: Final = 1_000
"""The newest redrives of a shard that are kept. Those that run are kept in any case."""

_PROGRESS: Final = b"/progress"
_encode = msgspec.msgpack.Encoder().encode
_decode_order = msgspec.msgpack.Decoder(RedriveOrder).decode
_decode_progress = msgspec.msgpack.Decoder(RedriveProgress).decode


class StoredRedrive(msgspec.Struct, frozen=True):
    """The rows of a redrive. Without ``order``, its first row is missing."""

    prefix: bytes  # of the dead-letter queue
    id: str
    order: RedriveOrder | None
    progress: RedriveProgress


def stored_redrives(store: StoreReader, prefix: bytes = b"") -> list[StoredRedrive]:
    """Return the redrives in a store whose keys start with ``prefix``. Raises MsgspecError if a row is damaged."""
    orders: dict[bytes, RedriveOrder] = {}
    progress: dict[bytes, RedriveProgress] = {}
    for key, value in rows_under(store, store.meta, REDRIVE_ROW + prefix, VALUES_PER_PAGE):
        place = key[len(REDRIVE_ROW) :]
        if place.endswith(_PROGRESS):
            progress[place.removesuffix(_PROGRESS)] = _decode_progress(value)
        else:
            orders[place] = _decode_order(value)
    return [
        StoredRedrive(
            place[:PREFIX_BYTES],
            place[PREFIX_BYTES:].decode(),
            orders.get(place),
            progress.get(place, RedriveProgress()),
        )
        for place in {**orders, **progress}
    ]


class RedriveRegistry:
    """The redrives of the queues that the shard serves."""

    def __init__(self, store: StoreReader) -> None:
        self._store = store
        self._tasks: dict[str, RedriveTask] = {}
        self._of_queue: dict[bytes, dict[str, RedriveTask]] = {}  # by the prefix of the dead-letter queue
        self._stopped = False

    # ---- reading ----

    def get(self, id: str) -> RedriveTask | None:
        return self._tasks.get(id)

    def of(self, letters: QueueState) -> list[RedriveTask]:
        """Return the redrives of a dead-letter queue, oldest first."""
        return sorted(self._of_queue.get(letters.prefix, {}).values(), key=_age)

    def running(self) -> list[RedriveTask]:
        """Return the redrives to continue."""
        return [task for task in self._tasks.values() if task.is_running]

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
        """Add a new redrive, and delete the oldest ones that have ended if there are too many."""
        batch.put(_key(task), _encode(task.order), self._store.meta.handle)
        self._add(task)
        excess = len(self._tasks) - REDRIVES_MAX
        if excess > 0:
            ended = sorted((one for one in self._tasks.values() if not one.is_running), key=_age)
            for one in ended[:excess]:
                self._remove(one)
                batch.delete(_key(one), self._store.meta.handle)
                batch.delete(_key(one) + _PROGRESS, self._store.meta.handle)

    def put_progress(self, batch: Batch, task: RedriveTask, progress: RedriveProgress) -> None:
        """Store how far a redrive is. The message IDs of one that has ended are not kept."""
        task.progress = progress
        batch.put(_key(task) + _PROGRESS, _encode(progress), self._store.meta.handle)
        if not task.is_running:
            if task.order.ids is not None:
                task.order = msgspec.structs.replace(task.order, ids=None)
                batch.put(_key(task), _encode(task.order), self._store.meta.handle)
            task.ended.set()

    def delete_rows(self, batch: Batch, prefix: bytes) -> None:
        """Delete the rows of the queues whose keys start with ``prefix``, which are not served any more."""
        batch.delete_range(REDRIVE_ROW + prefix, REDRIVE_ROW + after(prefix), self._store.meta.handle)

    # ---- in memory only ----

    def load(self, queues: Iterable[QueueState], prefix: bytes = b"") -> list[RedriveTask]:
        """Read the redrives of served queues whose keys start with ``prefix``. Return those to continue."""
        found = list(stored_redrives(self._store, prefix))
        by_prefix = {queue.prefix: queue for queue in queues} if found else {}
        tasks = [
            RedriveTask(one.id, by_prefix[one.prefix], one.order, one.progress)
            for one in found
            if one.order is not None and one.prefix in by_prefix
        ]
        for task in tasks:
            self._add(task)
        return [task for task in tasks if task.is_running]

    def forget(self, letters: QueueState) -> None:
        """Forget the redrives of a queue that is not served any more. Their rows stay."""
        for task in list(self._of_queue.get(letters.prefix, {}).values()):
            self._remove(task)

    def stop(self) -> None:
        """Continue none of them. The next one to open the shard does."""
        self._stopped = True
        for task in self._tasks.values():
            task.ended.set()

    def _add(self, task: RedriveTask) -> None:
        self._tasks[task.id] = task
        self._of_queue.setdefault(task.letters.prefix, {})[task.id] = task
        if not task.is_running:
            task.ended.set()

    def _remove(self, task: RedriveTask) -> None:
        del self._tasks[task.id]
        others = self._of_queue[task.letters.prefix]
        del others[task.id]
        if not others:
            del self._of_queue[task.letters.prefix]
        task.ended.set()


def _key(task: RedriveTask) -> bytes:
    return REDRIVE_ROW + task.letters.prefix + task.id.encode()


def _age(task: RedriveTask) -> tuple[int, str]:
    return task.order.started_at, task.id
