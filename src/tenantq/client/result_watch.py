"""Waits for the results of many messages with few concurrent requests."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple

from tenantq.client.values import JobResult
from tenantq.errors import NotFound, TimedOut
from tenantq.runtime.clock import Clock

AT_ONCE: Final = 16
"""Maximum number of concurrent requests."""
WAIT_SLICE_MS: Final = 20_000
"""Longest wait of one request. Proxies may close connections that are silent for longer."""
ROUND_MS: Final = 2_000
"""Target time for one pass over all results, if there are more than concurrent requests."""
WAIT_MS_MIN: Final = 50


class _ResultRequest(NamedTuple):
    """One request in flight."""

    id: str
    last: bool  # its wait ends at the timeout


class ResultWatch:
    """Requests many results in turns until all are done or the timeout is over."""

    def __init__(
        self,
        ask: Callable[[str, int], Coroutine[Any, Any, JobResult]],
        clock: Clock,
        queue: str,
        ids: Iterable[str],
        timeout_ms: int,
    ) -> None:
        """``ask`` returns a result once it is done, or its state after the given milliseconds."""
        self._ask = ask
        self._clock = clock
        self._queue = queue
        self._pending = deque(dict.fromkeys(ids))
        self._count = len(self._pending)
        self._unseen = self._count if self._count > AT_ONCE else 0  # not requested yet: finished results come first
        self._timeout_ms = timeout_ms
        self._end_ms = clock.monotonic_ms() + timeout_ms
        self._running: dict[asyncio.Task[JobResult], _ResultRequest] = {}

    async def results(self) -> AsyncGenerator[JobResult]:
        """Yield each result once, when it is completed or failed.

        After the last result it raises NotFound if a message does not exist, or TimedOut if one is still pending.
        """
        not_found: list[NotFound] = []
        late: list[str] = []
        try:
            while self._pending or self._running:
                self._ask_more()
                done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=lambda task: task.exception() is not None):  # results before errors
                    request = self._running.pop(task)
                    try:
                        result = task.result()
                    except NotFound as error:
                        not_found.append(error)
                        continue
                    if result.done:
                        yield result
                    elif request.last:
                        late.append(request.id)
                    else:
                        self._pending.append(request.id)
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
        if not_found:
            raise not_found[0]
        if late:
            what = f"message {late[0]}" if self._count == 1 else f"{len(late)} of {self._count} messages"
            raise TimedOut(f"no result of {what} within {self._timeout_ms} ms", queue=self._queue, id=late[0])

    def _ask_more(self) -> None:
        while self._pending and len(self._running) < AT_ONCE:
            id = self._pending.popleft()
            left_ms = max(0, self._end_ms - self._clock.monotonic_ms())
            wait_ms = min(left_ms, self._wait_ms())
            self._running[asyncio.create_task(self._ask(id, wait_ms))] = _ResultRequest(id, wait_ms == left_ms)

    def _wait_ms(self) -> int:
        """Return the wait of the next request: long if no other result has to wait for its turn, else short."""
        if self._unseen:
            self._unseen -= 1
            return 0
        open_count = len(self._pending) + len(self._running) + 1
        return WAIT_SLICE_MS if open_count <= AT_ONCE else max(WAIT_MS_MIN, ROUND_MS * AT_ONCE // open_count)
