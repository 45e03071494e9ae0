"""A private event loop in a thread, and the way into it from ordinary code."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from tenantq.errors import Closed, Invalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Portal:
    """Runs coroutines on an event loop of another thread and waits for them here. Any number of threads may do so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread, *, owned: bool = False) -> None:
        """Lead into ``loop``, which runs in ``thread``; an owned thread ends with the portal."""
        self.loop = loop
        self._thread = thread
        self._owned = owned
        self._process = os.getpid()
        self._stopped = False

    @classmethod
    def start(cls, name: str = "tenantq-client") -> Portal:
        """Start a daemon thread with a loop of its own."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop,), name=name, daemon=True)
        thread.start()
        return cls(loop, thread, owned=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns. Who is interrupted meanwhile cancels it."""
        refusal = self.refusal()
        if refusal is not None:
            work.close()
            raise refusal
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # does nothing where it is the work's own error
            raise

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

    def refusal(self) -> Exception | None:
        """Return why nothing can be run from here, if so."""
        if self._stopped:
            return Closed("this client is closed")
        if self._process != os.getpid():
            return Invalid("this client was made before a fork: make one in each process")
        if threading.current_thread() is self._thread:
            return Invalid("the event loop's own thread must not wait for itself: use the asynchronous face there")
        return None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)


class Face(Generic[A_co]):
    """The blocking side of something asynchronous."""

    def __init__(self, inner: A_co, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Async", "<", 1)


def hop(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Face[A], P], R]:
    """Return the blocking twin of a coroutine method: the same arguments, the same result, the same text."""

    @functools.wraps(method)
    def call(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.run(method(self._inner, *args, **kwargs))

    return call
