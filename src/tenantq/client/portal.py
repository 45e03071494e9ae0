"""A private event loop in a thread, and the way into it from ordinary code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from tenantq.errors import Closed, Invalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


LAST_TASKS_S: Final = 1.0
"""How long what is cancelled when a loop ends may take to clean up."""


class Portal:
    """Runs coroutines on an event loop of another thread and waits for them here. Any number of threads may do so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread, *, owned: bool = False) -> None:
        """Lead into ``loop``, which runs in ``thread``; an owned thread ends with the portal."""
        self.loop = loop
        self._thread = thread
        self._owned = owned
        self._process = os.getpid()
        self._stopped = False
        self._waited_for: set[concurrent.futures.Future[Any]] = set()

    @classmethod
    def start(cls, name: str = "tenantq-client") -> Portal:
        """Start a daemon thread with a loop of its own."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop,), name=name, daemon=True)
        thread.start()
        return cls(loop, thread, owned=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns. Who is interrupted meanwhile cancels it. Raises Closed where the portal is stopped first."""
        refusal = self.refusal()
        if refusal is not None:
            work.close()
            raise refusal
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:  # the loop was closed a moment ago
            work.close()
            raise _closed() from None
        self._waited_for.add(future)
        try:
            if self._stopped:  # also a moment ago: nobody may look at the future any more
                future.cancel()
            return future.result()
        except concurrent.futures.CancelledError:
            if self._stopped:
                raise _closed() from None
            raise
        except BaseException:
            future.cancel()  # does nothing where it is the work's own error
            raise
        finally:
            self._waited_for.discard(future)

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Yield what ``source`` yields."""
        try:
            while True:
                try:
                    yield self.run(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            close = getattr(source, "aclose", None)
            if close is not None and not self._stopped:
                self.run(close())

    def soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the loop, without waiting for it."""
        if self.refusal() is None:
            self.loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Let nobody through any more, and end the thread if it is the portal's own; may be called again."""
        if self._stopped:
            return
        self._stopped = True
        if self._owned and self._process == os.getpid() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join(5)
            for future in list(self._waited_for):
                future.cancel()  # what came to the loop when it had ended

    def refusal(self) -> Exception | None:
        """Return why nothing can be run from here, if so."""
        if self._stopped:
            return _closed()
        if self._process != os.getpid():
            return Invalid("this client was made before a fork: make one in each process")
        if threading.current_thread() is self._thread:
            return Invalid("the event loop's own thread must not wait for itself: use the asynchronous face there")
        return None


def _closed() -> Closed:
    return Closed("this client is closed")


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=LAST_TASKS_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)


class Face(Generic[A_co]):
    """The blocking side of something asynchronous."""

    def __init__(self, inner: A_co, portal: Portal, owner: object = None) -> None:
        """Show ``inner``; ``owner`` is the client it came from, which lives as long as anything that did."""
        self._inner = inner
        self._portal = portal
        self._owner = owner

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Async", "<", 1)


def hop(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Face[A], P], R]:
    """Return the blocking twin of a coroutine method: the same arguments, the same result, the same text."""

    @functools.wraps(method)
    def call(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.run(method(self._inner, *args, **kwargs))

    return call
