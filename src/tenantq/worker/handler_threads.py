"""Threads for blocking handlers. They are daemons, so a handler that never ends does not keep the process alive."""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class HandlerThreads:
    """At most ``count`` threads, started on demand."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._started = 0
        self._idle = 0
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def run(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``function`` on a thread and return its future on the running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: T | None, error: Exception | None) -> None:
            self._idle += 1
            if future.done():
                return  # the caller was cancelled
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # without an error there is a result

        def work() -> None:
            result: T | None = None
            error: Exception | None = None
            try:
                result = context.run(function)
            except StopIteration as odd:  # futures refuse it
                error = RuntimeError(f"the handler raised {odd!r}")
            except Exception as raised:  # noqa: BLE001  # it is raised to the waiting caller
                error = raised
            except BaseException as odd:  # noqa: BLE001  # SystemExit must not end the worker
                error = RuntimeError(f"the handler raised {odd!r}")
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:
                return  # the worker has ended and its loop is closed

        if self._idle:
            self._idle -= 1
        elif self._started < self._count:
            self._started += 1
            threading.Thread(target=self._serve, name=f"tenantq-worker-{self._started}", daemon=True).start()
        self._work.put(work)
        return future

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def close(self) -> None:
        """End every thread after its current handler."""
        for _ in range(self._started):
            self._work.put(None)
