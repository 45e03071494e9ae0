"""Migration of a Queueber store whose server runs until the end of it.

The target queue is paused, and filled with what no worker of Queueber holds. What Queueber finishes meanwhile is removed from it
again. When Queueber stops, only the last changes are left to transfer; then the queue is resumed. So nothing is delivered by both.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from tenantq.client import Queue
from tenantq.domain.limits import BATCH_MESSAGES_MAX, PEEK_MAX
from tenantq.errors import Forbidden
from tenantq.runtime.randomness import id_bytes, id_text
from tenantq.sources.queueber import Queueber
from tenantq.sources.source import InProgress, Mode, SourceBatch, SourceMessage, SourceQueue, batched
from tenantq.sources.transfer import Transfer, TransferReport, is_uuid_7, obstacle

MARK: Final = "migrated-from"
"""Attribute of messages that were transferred while Queueber ran: an interrupted migration recognizes them."""


class LiveQueueber:
    """What has changed in a Queueber store since the last reading, as a source."""

    kind = Queueber.kind
    modes = Queueber.modes

    def __init__(self, store: Queueber, known: set[bytes]) -> None:
        """``known`` are the items that the target has."""
        self._store = store
        self.known = known
        self.sent: set[bytes] = set()
        self.problems = store.problems
        self.is_last = False  # Queueber has stopped, so the items that its workers held are free

    def queues(self) -> list[SourceQueue]:
        """Return what the store holds."""
        return self._store.queues()

    def batches(self, mode: Mode, in_progress: InProgress) -> Iterator[SourceBatch]:  # noqa: ARG002  # as in the store
        """Yield the new items. While Queueber runs, only those that can be removed again by their ID."""
        return batched(self._messages(in_progress))

    def _messages(self, in_progress: InProgress) -> Iterator[SourceMessage]:
        for one in self._store.available(self.known):
            if self.is_last:
                yield one
            elif one.id is not None and is_uuid_7(one.id) and obstacle(one) is None:
                self.sent.add(one.id)
                yield msgspec.structs.replace(one, attributes={**one.attributes, MARK: self.kind})
        for one in self._store.in_progress(in_progress, self.known):
            if self.is_last:
                yield one

    def close(self) -> None:
        """Close the store."""
        self._store.close()


class LiveMigration:
    """Follows Queueber until it stops."""

    def __init__(self, store: Queueber, queue: Queue, transfer: Callable[[LiveQueueber], Transfer]) -> None:
        self._store, self._queue = store, queue
        self._source = LiveQueueber(store, set())
        self._transfer = transfer(self._source)

    def run(self, in_progress: InProgress, wait: Callable[[int], None]) -> TransferReport:
        """Migrate. ``wait`` gets the number of messages at the target, and returns when it is time to look again.

        Raises what the store or the server raises; run it again to continue.
        """
        self._queue.configure()
        self._queue.pause()
        source = self._source
        source.known.update(self._found())
        removed = 0
        while True:
            source.is_last = self._store.has_stopped()
            self._store.catch_up()
            report = self._transfer.run("snapshot", in_progress)
            removed += self._remove(source.known - self._store.present)
            if source.is_last:
                break
            source.known.update(source.sent)
            wait(len(source.known))
        self._queue.resume()
        report.removed = removed
        return report

    def _found(self) -> Iterator[bytes]:
        """Yield what an interrupted migration has transferred, and Queueber may have finished since."""
        cursor: str | None = None
        while True:
            page = self._queue.peek(PEEK_MAX, cursor=cursor)
            if any(one.hidden for one in page.messages):
                raise Forbidden("the token may not read attributes. Grant it read_body in the target tenant.")
            yield from (id_bytes(one.id) for one in page.messages if one.attributes.get(MARK) == Queueber.kind)
            cursor = page.cursor
            if cursor is None:
                return

    def _remove(self, gone: set[bytes]) -> int:
        """Remove what Queueber has finished."""
        self._source.known -= gone
        ids = [id_text(id) for id in gone]
        return sum(
            sum(self._queue.remove(*ids[at : at + BATCH_MESSAGES_MAX])) for at in range(0, len(ids), BATCH_MESSAGES_MAX)
        )
