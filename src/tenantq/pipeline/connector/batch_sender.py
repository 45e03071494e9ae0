"""Adds rows to queues in batches, and waits, within bounds, for a server that is full, limits or is unreachable."""

import time
from collections.abc import Callable, Iterable
from typing import Final, NoReturn

from pyspark.sql.datasource import WriterCommitMessage

from tenantq.client import Client, Queue
from tenantq.errors import ConnectionFailed, Limited, TenantqError, Unavailable
from tenantq.pipeline.connector.message_rows import OutgoingRow
from tenantq.runtime.backoff import Backoff

_BACKOFF: Final = Backoff(200, 10_000)
_FIRST_CONTACT_MS: Final = 10_000
"""The longest wait for a server that was never reached: its address may be wrong."""
_BYTES_MAX: Final = 8 << 20
_QUEUES_MAX: Final = 1_000  # queues whose rows are collected at a time


class WriteCounts(WriterCommitMessage):
    """What a task reports to the driver: its rows, how many were added, and how many an earlier attempt had added."""

    def __init__(self, rows: int = 0, added: int = 0, duplicates: int = 0) -> None:
        self.rows, self.added, self.duplicates = rows, added, duplicates

    def __repr__(self) -> str:
        return f"{self.rows} rows: {self.added} added, {self.duplicates} had been added before"


class BatchSender:
    """Sends the rows of one task. Every row has a key, so a row that is sent again is not added again."""

    def __init__(
        self,
        client: Client,
        *,
        batch_size: int,
        max_wait_ms: int,
        task: str,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = WriteCounts()
        self._client = client
        self._batch_size = batch_size
        self._max_wait_ms = max_wait_ms
        self._task = task
        self._sleep = sleep
        self._monotonic = monotonic
        self._gathered: dict[tuple[str | None, str], list[OutgoingRow]] = {}
        self._bytes: dict[tuple[str | None, str], int] = {}

    def send_all(self, rows: Iterable[OutgoingRow]) -> None:
        """Add rows, in order per queue; return when all are durable."""
        for row in rows:
            place = (row.tenant, row.queue)
            if place not in self._gathered and len(self._gathered) >= _QUEUES_MAX:
                self._flush_all()
            gathered = self._gathered.setdefault(place, [])
            gathered.append(row)
            size = self._bytes[place] = self._bytes.get(place, 0) + len(row.message.body)
            if len(gathered) >= self._batch_size or size >= _BYTES_MAX:
                self._flush(place)
        self._flush_all()

    def _flush_all(self) -> None:
        for place in list(self._gathered):
            self._flush(place)

    def _flush(self, place: tuple[str | None, str]) -> None:
        """Send the rows collected for a queue, retrying. The wait is counted from the last accepted message."""
        rows = self._gathered.pop(place)
        del self._bytes[place]
        queue = self._queue(rows[0], place)
        since, tries = self._monotonic(), 0
        while True:
            refused, error = self._try(queue, rows)
            if error is None:
                return
            if len(refused) < len(rows):
                since, tries = self._monotonic(), 0
            rows, tries = refused, tries + 1
            self._pause(rows[0], error, tries, since)

    def _queue(self, row: OutgoingRow, place: tuple[str | None, str]) -> Queue:
        tenant, name = place
        try:
            return self._client.queue(name) if tenant is None else self._client.tenant(tenant).queue(name)
        except TenantqError as error:
            self._refuse(row, error)

    def _try(self, queue: Queue, rows: list[OutgoingRow]) -> tuple[list[OutgoingRow], TenantqError | None]:
        """Send rows once; return those that may be accepted later, and the reason."""
        try:
            outcomes = queue.add_many((row.message for row in rows), errors="return")
        except (Limited, Unavailable) as error:
            return rows, error
        except TenantqError as error:
            self._refuse(rows[0], error)
        later: list[OutgoingRow] = []
        reason: TenantqError | None = None
        for row, outcome in zip(rows, outcomes, strict=True):
            if outcome.error is None:
                self.counts.rows += 1
                self.counts.duplicates += outcome.duplicate
                self.counts.added += not outcome.duplicate
            elif isinstance(outcome.error, Limited | Unavailable):
                later.append(row)
                reason = reason or outcome.error
            else:
                self._refuse(row, outcome.error)
        return later, reason

    def _pause(self, row: OutgoingRow, error: TenantqError, tries: int, since: float) -> None:
        """Wait as long as the server asks for, at least the backoff; raise if that exceeds the bound."""
        asked_ms = error.retry_after_ms if isinstance(error, Limited | Unavailable) else 0
        pause_ms = max(asked_ms, int(_BACKOFF.ceiling_ms(tries)))
        bound_ms = self._max_wait_ms
        if isinstance(error, ConnectionFailed) and not self.counts.rows:
            bound_ms = min(bound_ms, _FIRST_CONTACT_MS)
        waited_ms = int((self._monotonic() - since) * 1_000)
        if waited_ms + pause_ms > bound_ms:
            waited = (
                f"waited {waited_ms} ms, the next try is in {pause_ms} ms, and the bound is {bound_ms} ms (maxWaitMs)"
            )
            error.args = (f"{error.message}; {waited}",)
            self._refuse(row, error)
        self._sleep(pause_ms / 1_000)

    def _refuse(self, row: OutgoingRow, error: TenantqError) -> NoReturn:
        """Raise the error with the row's place, without its body."""
        where = f"{row.tenant}/{row.queue}" if row.tenant else row.queue
        done = f"{self.counts.rows} rows of this task were taken before"
        error.args = (f"row {row.number} of {self._task}, for {where}: {error.code}: {error.message} ({done})",)
        raise error
