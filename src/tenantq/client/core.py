"""The core of a client: requests as values, sent over a pool, errors mapped, tried again where that is safe."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable  # msgspec reads the fields' types
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

from tenantq.client.pool import HttpRequest
from tenantq.client.problems import from_reply
from tenantq.errors import BadAnswer, Closed, Invalid, Limited, TenantqError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tenantq.client.http1 import HttpReply
    from tenantq.client.settings import Settings

R = TypeVar("R")

LAST_TASKS_S: Final = 2.0
"""How long closing waits for messages that are just being given back."""

encode = msgspec.json.Encoder().encode


class Request(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """One call of the interface."""

    method: str
    target: str
    decode: Callable[[bytes], R]
    body: bytes | None = None
    repeatable: bool = True  # doing it twice is as good as once, so it is tried again when its answer was lost
    wait_ms: int = 0  # how long the server may take on purpose
    answer_ms: int | None = None  # for the answer, where that must not take as long as the client's timeout
    patient: bool = True  # tried again after a pause where a limit refused it
    gzip: bool = False
    stop: asyncio.Future[None] | None = None  # resolved when nobody waits for the answer any more
    sink: Callable[[bytes], None] | None = (
        None  # where the body of a success goes, piece by piece; ``decode`` gets none of it
    )
    shorten: Callable[[int], Request[R]] | None = None  # the same call, with so many ms left to wait, for a later try


class Answer(msgspec.Struct, Generic[R], frozen=True):
    """What a call returned, and whether an earlier try of it may have been done as well."""

    value: R
    doubtful: bool


class Transport(Protocol):
    """What carries requests to the server."""

    async def send(self, request: HttpRequest) -> HttpReply:
        """Return the reply. Raises BadAnswer, Closed, ConnectionFailed or TimedOut."""

    async def close(self) -> None:
        """Let go of everything."""


def closed(*, maybe_done: bool = False) -> Closed:
    """Return what those learn whose call was under way when the client was closed."""
    error = Closed("this client was closed")
    error.maybe_done = maybe_done
    return error


def new_key() -> str:
    """Return an idempotency key that nobody else has, also not another process that was forked from this one."""
    return os.urandom(16).hex()


class Core:
    """Calls the server. Belongs to the event loop of its first call."""

    def __init__(self, settings: Settings, transport: Transport) -> None:
        self.settings = settings
        self.clock = settings.clock
        self._transport = transport
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last_tasks: set[asyncio.Task[Any]] = set()
        self._sleeping: set[asyncio.Future[None]] = set()
        self.closed = False

    async def call(self, request: Request[R]) -> R:
        """Return the decoded reply, or raise the error that the server, or the way to it, gave."""
        return (await self.answer(request)).value

    async def answer(self, request: Request[R]) -> Answer[R]:
        """Return the decoded reply together with whether an earlier try may have been done."""
        self.check_open()
        wire = self._wire(request)
        doubtful = False
        retry = 0
        started_ms = self.clock.monotonic_ms()
        while True:
            error: TenantqError
            try:
                reply = await self._transport.send(wire)
            except Closed:
                raise
            except Unavailable as failure:
                if self.closed:
                    raise closed(maybe_done=doubtful or failure.maybe_done) from None
                error = failure
            else:
                if reply.status < 300:
                    return Answer(_decoded(request, reply), doubtful)
                error = from_reply(reply.status, reply.headers, reply.body)
                if isinstance(error, Unavailable):
                    error.maybe_done = True  # of a write that failed at the server it is not known what became
            doubtful = doubtful or error.maybe_done
            retry += 1
            pause_ms = self._pause_ms(request, retry, error, doubtful=doubtful)
            if pause_ms is None or (request.stop is not None and request.stop.done()):
                error.maybe_done = doubtful
                raise error
            await self.sleep(pause_ms)
            if self.closed:
                raise closed(maybe_done=doubtful)
            if request.shorten is not None:
                elapsed_ms = self.clock.monotonic_ms() - started_ms
                wire = self._wire(request.shorten(max(0, request.wait_ms - elapsed_ms)))

    def _wire(self, request: Request[R]) -> HttpRequest:
        timeout_ms = self.settings.timeout_ms
        if request.answer_ms is not None:
            timeout_ms = min(timeout_ms, request.answer_ms)
        return HttpRequest(
            request.method,
            request.target,
            request.body,
            timeout_ms=timeout_ms + request.wait_ms,
            waits=request.wait_ms > 0,
            fresh=not request.repeatable,
            gzip=request.gzip,
            stop=request.stop,
            sink=request.sink,
        )

    def _pause_ms(self, request: Request[R], retry: int, error: TenantqError, *, doubtful: bool) -> int | None:
        """Return how long to wait before trying again, or None where that is not safe or of no use.

        Once an earlier try may have been done, a limit is waited for in any case: only the same request tells what became of it.
        """
        if isinstance(error, Unavailable):
            if error.maybe_done and not request.repeatable:
                return None
        elif not (isinstance(error, Limited) and (request.patient or (doubtful and request.repeatable))):
            return None
        return self.pause_ms(retry, error)

    def pause_ms(self, retry: int, error: TenantqError) -> int | None:
        """Return the pause before retry number ``retry``, or None where the policy has no more."""
        return self.settings.retries.pause_ms(retry, error, self.settings.randomness)

    async def sleep(self, ms: int) -> None:
        """Pause on the client's clock; no longer than until the client is closed."""
        woken: asyncio.Future[None] = self.loop.create_future()
        timer = self.clock.call_later(ms, lambda: _wake(woken))
        self._sleeping.add(woken)
        try:
            await woken
        finally:
            self._sleeping.discard(woken)
            timer.cancel()

    def check_open(self) -> None:
        """Raise unless the client is open and belongs to the running loop."""
        self._check_loop()
        if self.closed:
            raise Closed("this client is closed")

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise Invalid(
                    "this client belongs to another event loop: make one, and close it, in each asyncio.run()"
                )
            self._loop = loop

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the client belongs to; to ask for the running one takes a system call, and is done once a call."""
        return self._loop if self._loop is not None else asyncio.get_running_loop()

    def spawn(self, work: Coroutine[Any, Any, None], *, last: bool = False) -> asyncio.Task[None]:
        """Run ``work`` beside its caller. When the client closes it is cancelled or, with ``last``, waited for a while."""
        task = self.loop.create_task(work)
        tasks = self._last_tasks if last else self._tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def close(self) -> None:
        """Stop what runs beside and drop the connections; calls that are under way end with Closed."""
        if self.closed:
            return
        self._check_loop()
        if self._last_tasks:
            await asyncio.wait(self._last_tasks, timeout=LAST_TASKS_S)
        self.closed = True
        for woken in self._sleeping:
            _wake(woken)
        await asyncio.sleep(0)  # who was just spawned has begun then, and can tell those who wait for it
        self._tasks |= self._last_tasks
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transport.close()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def _decoded(request: Request[R], reply: HttpReply) -> R:
    try:
        return request.decode(reply.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        bad = BadAnswer(f"the answer to {request.method} {request.target} is not understood: {error}")
        bad.maybe_done = True
        raise bad from error
