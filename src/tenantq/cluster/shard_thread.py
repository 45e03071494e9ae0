"""A shard in a thread with its own event loop: a store that does not answer blocks this thread only."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from tenantq.cluster.error_codec import NotOwner
from tenantq.domain.message import LOCAL, Delivery
from tenantq.engine.shard import Shard
from tenantq.errors import StoreFailed
from tenantq.runtime.futures import first_of, wake
from tenantq.service.call import Call
from tenantq.service.service import Service
from tenantq.service.tenant_export import TenantExport
from tenantq.store.shard_lease import ReleaseSignal

log = logging.getLogger("tenantq.shards")

QUIET_MS: Final = 2_000
"""How long calls in progress may take when a shard is released. Later ones end with an error."""

PREPARE_MS: Final = 5_000
"""How long a shard that still serves may take to prepare its release."""

_STEP_S: Final = 0.002


class HostedShard(Protocol):
    """One shard with everything that serves it, used on the event loop of its thread."""

    @property
    def shard(self) -> Shard:
        """The engine."""

    @property
    def service(self) -> Service:
        """The service, once it is open."""

    @property
    def facets(self) -> Mapping[str, object]:
        """By name: the objects whose methods can be called, once it is open."""

    async def open(self) -> None:
        """Own the shard and start to work."""

    async def prepare_close(self) -> None:
        """Do, while the shard still serves, what a close without exports would wait for."""

    async def close(self, *, exports: bool) -> None:
        """Stop, and give the shard up. Without ``exports`` the next owner exports the rest of the journal."""


class HostedCall:
    """One call of a method of a shard. ``future`` is of the caller's event loop."""

    __slots__ = ("_caller", "_path", "_shard", "_stopped", "_task", "future")

    def __init__(self, shard: ShardThread, path: str) -> None:
        self._shard = shard
        self._path = path
        self._caller = asyncio.get_running_loop()
        self._task: asyncio.Future[Any] | None = None
        self._stopped = False
        self.future: asyncio.Future[Any] = self._caller.create_future()
        self.future.add_done_callback(self._caller_done)

    # ---- on the shard's loop ----

    def begin(self, call: Call | None, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Execute the method, unless the caller is gone."""
        if self._stopped:
            return
        shard = self._shard
        if not shard.is_open:
            self._reply(None, shard.not_owner())
            return
        try:
            result = shard.method(self._path)(*(arguments if call is None else (call, *arguments)), **options)
        except Exception as error:  # noqa: BLE001  # it is the caller's
            self._reply(None, error)
            return
        if not asyncio.iscoroutine(result):
            self._reply(result, None)
            return
        self._task = shard.loop.create_task(result)
        shard.calls_in_progress += 1
        self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Future[Any]) -> None:
        self._shard.calls_in_progress -= 1
        if task.cancelled():
            self._reply(None, self._shard.not_owner())
        else:
            error = task.exception()
            self._reply(None if error is not None else task.result(), error)

    def _reply(self, result: Any, error: BaseException | None) -> None:
        if isinstance(result, TenantExport):
            result = HostedExport(self._shard, result)
        try:
            self._caller.call_soon_threadsafe(self._deliver, result, error)
        except RuntimeError:
            self._shard.release_leases(result)  # the caller's loop is closed

    def _stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    # ---- on the caller's loop ----

    def _deliver(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():
            if isinstance(result, HostedExport):
                self._shard.run(result.stop)
            else:
                self._shard.run(lambda: self._shard.release_leases(result))
        elif error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def _caller_done(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._shard.run(self._stop)


class HostedExport:
    """An export of a shard, read from another event loop. Always close it."""

    def __init__(self, shard: ShardThread, export: TenantExport) -> None:
        self._shard = shard
        self._export = export
        self.tenant = export.tenant

    def __aiter__(self) -> HostedExport:
        return self

    async def __anext__(self) -> bytes:
        part = await self._shard.await_on_loop(lambda: anext(self._export, None))
        if part is None:
            raise StopAsyncIteration
        assert isinstance(part, bytes)
        return part

    async def aclose(self) -> None:
        """Stop the export."""
        await self._shard.await_on_loop(self._export.aclose)

    def stop(self) -> None:
        """Stop an export that nobody reads. On the shard's loop."""
        self._shard.loop.create_task(self._export.aclose())


class ShardThread:
    """Runs one shard. ``open``, ``call`` and ``close`` are for other event loops."""

    def __init__(
        self,
        number: int,
        make: Callable[[], HostedShard],
        new_loop: Callable[[], asyncio.AbstractEventLoop],
        released: ReleaseSignal,
    ) -> None:
        """Prepare. ``make`` is called in the thread; ``released`` wakes it when the last owner has released the shard."""
        self.number = number
        self.released = released
        self.is_open = False
        self.calls_in_progress = 0
        self.successor = ""  # the member that the shard was released to
        self.refused_at = 0.0  # since when calls are refused because of that, on the clock of the loop that created it
        self.failure: StoreFailed | None = None
        self.ended = asyncio.get_running_loop().create_future()  # of the loop that created it
        self.given_up = (
            asyncio.get_running_loop().create_future()
        )  # another process can own the shard: before it has ended
        self.hosted: HostedShard
        self.loop: asyncio.AbstractEventLoop
        self._make = make
        self._new_loop = new_loop
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._main = asyncio.get_running_loop()
        self._closing: asyncio.Event
        self._is_closing = False
        self._exports = True
        self._methods: dict[str, Callable[..., Any]] = {}
        self._thread = threading.Thread(target=self._run, name=f"tenantq-shard-{number}", daemon=True)

    @property
    def shard(self) -> Shard:
        """The engine, once it is open."""
        return self.hosted.shard

    @property
    def service(self) -> Service:
        """The service, once it is open."""
        return self.hosted.service

    @property
    def epoch(self) -> int:
        """The epoch of its ownership, once it is open."""
        return self.shard.state.store.ownership.epoch

    @property
    def is_opening(self) -> bool:
        """Whether it is being opened."""
        return not self._opened.done()

    def not_owner(self) -> NotOwner:
        """Return the error for calls that came too late."""
        error = NotOwner(f"shard {self.number} is moving to another server. Try again later.")
        error.shard, error.owner = self.number, self.successor
        return error

    async def open(self) -> None:
        """Open the shard. Raises why it cannot be opened; then its thread has ended."""
        self._thread.start()
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self._opened.add_done_callback(self._close_unwanted)
            raise

    def _close_unwanted(self, opened: asyncio.Future[None]) -> None:
        if not opened.cancelled() and opened.exception() is None:
            self.begin_close(exports=False)

    def call(self, path: str, call: Call | None, /, *arguments: Any, **options: Any) -> asyncio.Future[Any]:
        """Call a method, ``facet.method``. The future raises what the method raises, or NotOwner if it was not begun."""
        hosted = HostedCall(self, path)
        if not self.is_open or not self.run(lambda: hosted.begin(call, arguments, options)):
            hosted.future.set_exception(self.not_owner())
        return hosted.future

    def run(self, work: Callable[[], object]) -> bool:
        """Run ``work`` soon on the shard's loop. Return False if that has ended."""
        try:
            self.loop.call_soon_threadsafe(work)
        except RuntimeError:
            return False
        return True

    async def await_on_loop(self, work: Callable[[], Any]) -> Any:
        """Await ``work`` on the shard's loop. Raises NotOwner if that has ended, or ends before ``work``."""

        async def run() -> Any:
            return await work()

        running = run()
        try:
            result = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(running, self.loop))
        except RuntimeError:
            running.close()
            raise self.not_owner() from None
        try:
            await asyncio.wait([result, self.ended], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not self.ended.done():
                result.cancel()
            raise
        if not result.done() or result.cancelled():  # a loop that ends may leave out what was begun last
            raise self.not_owner()
        return result.result()

    def method(self, path: str) -> Callable[..., Any]:
        """Return a method of the open shard."""
        found = self._methods.get(path)
        if found is None:
            facet, _, name = path.partition(".")
            found = self._methods[path] = getattr(self.hosted.facets[facet], name)
        return found

    def release_leases(self, result: object) -> None:
        """Release the messages of a poll whose caller is gone. On the shard's loop."""
        if isinstance(result, list) and result and isinstance(result[0], Delivery):
            self.hosted.shard.loop.release_undelivered(result, LOCAL)

    def begin_close(self, *, exports: bool = True, successor: str = "") -> None:
        """Start to close the shard: calls that have not begun get NotOwner, those in progress finish.

        A second call changes nothing: a successor that waits for the shard does not wait for exports.
        """
        if self._is_closing:
            return
        self._is_closing = True
        self.refused_at = self._main.time()
        self._exports, self.successor = exports, successor
        self.is_open = False
        self.run(self._closing.set)

    async def close(self, *, exports: bool = True, successor: str = "") -> None:
        """Close the shard, and return when another process can own it. Its thread ends soon afterwards."""
        if self.is_open and not exports:
            with contextlib.suppress(NotOwner, TimeoutError):
                async with asyncio.timeout(PREPARE_MS / 1_000):
                    await self.await_on_loop(self.hosted.prepare_close)
        self.begin_close(exports=exports, successor=successor)
        await asyncio.shield(self.given_up)

    # ---- in the thread ----

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # of the opening: its caller gets it
            if self._opened.done():
                log.critical("shard %d has stopped after an internal error", self.number, exc_info=error)
            self._tell(functools.partial(_fail, self._opened, error))
        self._tell(functools.partial(wake, self.given_up))
        self._tell(functools.partial(wake, self.ended))

    def _tell(self, work: Callable[[], object]) -> None:
        try:
            self._main.call_soon_threadsafe(work)
        except RuntimeError:
            log.debug("the process ends before shard %d", self.number)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self.hosted = hosted = self._make()
        try:
            await hosted.open()
        except BaseException:
            await hosted.close(exports=False)
            raise
        try:
            await self._serve_until_closed()
        finally:
            self.is_open = False
            self.failure = hosted.shard.failure
            try:
                await hosted.close(exports=self._exports)  # in any case: a thread that has ended must not own the shard
            except (StoreFailed, OSError) as error:
                log.warning("shard %d was not closed cleanly: %s", self.number, error)
            finally:
                self._tell(functools.partial(wake, self.given_up))

    async def _serve_until_closed(self) -> None:
        self.is_open = True
        self._tell(functools.partial(wake, self._opened))
        await first_of(self._closing.wait(), self.shard.loop.stopped.wait())
        self.is_open = False
        await self._finish_calls()

    async def _finish_calls(self) -> None:
        """Wait for the calls in progress. Those that only wait for messages end at once."""
        rounds = self.hosted.shard.loop
        ends = self.loop.time() + QUIET_MS / 1_000
        while self.calls_in_progress and rounds.failure is None and self.loop.time() < ends:
            rounds.end_waits()
            await asyncio.sleep(_STEP_S)


def _fail(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
