"""An event loop in its own thread, and blocking wrappers of asynchronous objects that live on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from tenantq.errors import Closed, Invalid

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


CANCELLED_TASKS_S: Final = 1.0
"""How long cancelled tasks may take to clean up when the loop ends."""


class LoopThread:
    """Runs coroutines on the event loop of another thread and waits for them. Any number of threads may use it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread, *, owned: bool = False) -> None:
        """Use ``loop``, which runs in ``thread``. ``stop`` ends an owned thread."""
        self.loop = loop
        self._thread = thread
        self._owned = owned
        self._process = os.getpid()
        self._stopped = False
        self._awaited: set[concurrent.futures.Future[Any]] = set()

    @classmethod
    def start(cls, name: str = "tenantq-client") -> LoopThread:
        """Start a daemon thread with a new event loop."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop,), name=name, daemon=True)
        thread.start()
        return cls(loop, thread, owned=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns. An interrupted caller cancels it. Raises Closed if the loop is stopped first."""
        refusal = self.refusal()
        if refusal is not None:
            work.close()
            raise refusal
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:  # the loop was closed just now
            work.close()
            raise _closed() from None
        self._awaited.add(future)
        try:
            if self._stopped:  # also just now: the loop may never run the future
                future.cancel()
            return future.result()
        except concurrent.futures.CancelledError:
            if self._stopped:
                raise _closed() from None
            raise
        except BaseException:
            future.cancel()  # has no effect on the work's own error
            raise
        finally:
            self._awaited.discard(future)

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
        """Run ``callback`` on the loop without waiting for it."""
        if self.refusal() is None:
            self.loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Refuse further work and end the thread if it is owned. May be called again."""
        if self._stopped:
            return
        self._stopped = True
        if self._owned and self._process == os.getpid() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join(5)
            for future in list(self._awaited):
                future.cancel()  # it reached the loop after its end

    def refusal(self) -> Exception | None:
        """Return why nothing can be run from here, or None."""
        if self._stopped:
            return _closed()
        if self._process != os.getpid():
            return Invalid("the client was created before a fork. Create one in each process.")
        if threading.current_thread() is self._thread:
            return Invalid("blocking call on the event loop's own thread. Use the asynchronous client there.")
        return None


def _closed() -> Closed:
    return Closed("the client is closed")


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=CANCELLED_TASKS_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)


class BlockingWrapper(Generic[A_co]):
    """The blocking side of an asynchronous object."""

    def __init__(self, inner: A_co, loop_thread: LoopThread, owner: object = None) -> None:
        """Wrap ``inner``. ``owner`` is the client it came from, which stays alive as long as its objects do."""
        self._inner = inner
        self._loop_thread = loop_thread
        self._owner = owner

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Async", "<", 1)


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[BlockingWrapper[A], P], R]:
    """Return the blocking twin of a coroutine method, with the same signature and docstring."""

    @functools.wraps(method)
    def call(self: BlockingWrapper[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop_thread.run(method(self._inner, *args, **kwargs))

    return call


def blocking_part(
    part: str, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
) -> Callable[Concatenate[BlockingWrapper[Any], P], R]:
    """Like ``blocking``, for a method of an attribute of the asynchronous object."""

    @functools.wraps(method)
    def call(self: BlockingWrapper[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop_thread.run(method(getattr(self._inner, part), *args, **kwargs))

    return call


def like(
    method: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Give a method the parameters and the docstring of another one. It keeps its own return type."""

    def decorate(function: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        returns = inspect.signature(function).return_annotation
        twin = functools.wraps(method)(function)
        twin.__signature__ = inspect.signature(method).replace(return_annotation=returns)  # type: ignore[attr-defined]  # for help()
        return twin

    return decorate
