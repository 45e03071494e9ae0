"""The session of a client: sends API requests, maps errors to exceptions and retries where that is safe."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine  # msgspec evaluates the annotations of the fields
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar
from urllib.parse import urlencode

import msgspec

from tenantq.client.connection_pool import ApiRequest
from tenantq.client.http_connection import HttpReply
from tenantq.client.problems import from_reply
from tenantq.client.settings import Settings
from tenantq.errors import BadAnswer, Closed, Invalid, Limited, TenantqError, Unavailable
from tenantq.runtime.futures import wake

if TYPE_CHECKING:
    from tenantq.client.tracing import ClientTracing

R = TypeVar("R")

PAGE: Final = 1_000
FINAL_TASKS_S: Final = 2.0
"""How long ``close`` waits for messages that are being released."""

encode = msgspec.json.Encoder().encode


class ApiReply(msgspec.Struct, Generic[R], frozen=True):
    """The decoded reply to a call."""

    value: R
    doubtful: bool  # an earlier attempt, whose reply was lost, may also have been executed


class Transport(Protocol):
    """Carries requests to the server."""

    async def send(self, request: ApiRequest[Any]) -> HttpReply:
        """Return the reply. Raises BadAnswer, Closed, ConnectionFailed or TimedOut."""

    async def close(self) -> None:
        """Close all connections."""


_DECODERS: Final[dict[Any, Callable[[bytes], Any]]] = {str: bytes.decode, NoneType: lambda _: None}


def decoder(reply: type[R]) -> Callable[[bytes], R]:
    """Return the function that decodes the body of a reply. ``str`` is plain text; ``NoneType`` ignores the body."""
    decode = _DECODERS.get(reply)
    if decode is None:
        decode = _DECODERS[reply] = msgspec.json.Decoder(reply).decode
    return decode


def api_request(method: str, target: str, reply: type[R], body: object = None, **options: Any) -> ApiRequest[R]:
    """Return a request with a JSON body, whose reply is decoded as ``reply``. ``options`` are further fields."""
    encoded = None if body is None else encode(body)
    return ApiRequest(method=method, target=target, decode=decoder(reply), body=encoded, **options)


def query(**parameters: object) -> str:
    """Return a query string of the parameters that are not None."""
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def closed(*, maybe_done: bool = False) -> Closed:
    """Return the error for calls that were in progress when the client was closed."""
    error = Closed("the client was closed")
    error.maybe_done = maybe_done
    return error


def new_key() -> str:
    """Return a unique idempotency key, also across processes forked from this one."""
    return os.urandom(16).hex()


def find_tracing() -> ClientTracing | None:
    """Return the tracing of a new client; None, at no cost, unless the application has set a tracer provider."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    from tenantq.client.tracing import ClientTracing  # noqa: PLC0415  # needs opentelemetry, which is an extra

    return ClientTracing()


class ClientSession:
    """Calls the server. Belongs to the event loop of its first call."""

    def __init__(self, settings: Settings, transport: Transport) -> None:
        self.settings = settings
        self.clock = settings.clock
        self.tracing = find_tracing()
        self._transport = transport
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._final_tasks: set[asyncio.Task[Any]] = set()
        self._sleeping: set[asyncio.Future[None]] = set()
        self.closed = False

    async def request(self, method: str, target: str, reply: type[R], body: object = None, **options: Any) -> R:
        """Send one request with a JSON body and return the reply, decoded as ``reply``. Raises the server's error.

        ``options`` are further fields of ApiRequest.
        """
        return await self.call(api_request(method, target, reply, body, **options))

    async def list_all(
        self, path: str, reply: type[Any], field: str, limit: int | None, *, page: int = PAGE, **parameters: object
    ) -> list[Any]:
        """Return the items in ``field`` of all pages at ``path``, or the first ``limit``."""
        items: list[Any] = []
        cursor: str | None = None
        while True:
            size = page if limit is None else min(page, limit - len(items))
            answer = await self.request("GET", path + query(limit=size, cursor=cursor, **parameters), reply, gzip=True)
            items += getattr(answer, field)
            cursor = answer.cursor
            if cursor is None or len(items) == limit:
                return items

    async def call(self, request: ApiRequest[R]) -> R:
        """Return the decoded reply. Raises the server's error, or the transport's."""
        return (await self.answer(request)).value

    async def answer(self, request: ApiRequest[R]) -> ApiReply[R]:
        """Return the decoded reply and whether an earlier attempt may have been executed."""
        self.check_open()
        if self.tracing is not None and request.traceparent is None:
            request = msgspec.structs.replace(request, traceparent=self.tracing.current_header())
        current = request
        doubtful = False
        retry = 0
        started_ms = self.clock.monotonic_ms()
        while True:
            error: TenantqError
            try:
                reply = await self._transport.send(current)
            except Closed:
                raise
            except Unavailable as failure:
                if self.closed:
                    raise closed(maybe_done=doubtful or failure.maybe_done) from None
                error = failure
            else:
                if reply.status < 300:
                    return ApiReply(_decoded(request, reply), doubtful)
                error = from_reply(reply.status, reply.headers, reply.body)
                if isinstance(error, Unavailable):
                    error.maybe_done = True  # a write that failed at the server may or may not have been stored
            doubtful = doubtful or error.maybe_done
            retry += 1
            delay_ms = self._delay_ms(request, retry, error, doubtful=doubtful)
            if delay_ms is None or (request.stop is not None and request.stop.done()):
                error.maybe_done = doubtful
                raise error
            await self.sleep(delay_ms)
            if self.closed:
                raise closed(maybe_done=doubtful)
            if request.shorten is not None:
                elapsed_ms = self.clock.monotonic_ms() - started_ms
                current = request.shorten(max(0, request.wait_ms - elapsed_ms))

    def _delay_ms(self, request: ApiRequest[R], retry: int, error: TenantqError, *, doubtful: bool) -> int | None:
        """Return the delay before the next attempt, or None if a retry is unsafe or pointless.

        Once an earlier attempt may have been executed, a limit is always waited for: only the same request can reveal its outcome.
        """
        if isinstance(error, Unavailable):
            if error.maybe_done and not request.repeatable:
                return None
        elif not (isinstance(error, Limited) and (request.patient or (doubtful and request.repeatable))):
            return None
        return self.retry_delay_ms(retry, error)

    def retry_delay_ms(self, retry: int, error: TenantqError) -> int | None:
        """Return the delay before retry number ``retry``, or None if the policy allows no more."""
        return self.settings.retries.pause_ms(retry, error, self.settings.randomness)

    async def sleep(self, ms: int) -> None:
        """Sleep on the client's clock, at most until the client is closed."""
        woken: asyncio.Future[None] = self.loop.create_future()
        timer = self.clock.call_later(ms, lambda: wake(woken))
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
            raise Closed("the client is closed")

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise Invalid("the client belongs to another event loop. Create and close one in each asyncio.run().")
            self._loop = loop

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The client's event loop, cached because asyncio.get_running_loop() costs a system call."""
        return self._loop if self._loop is not None else asyncio.get_running_loop()

    def spawn(self, work: Coroutine[Any, Any, None], *, final: bool = False) -> asyncio.Task[None]:
        """Run ``work`` in the background. ``close`` cancels it or, with ``final``, gives it some time to finish."""
        task = self.loop.create_task(work)
        tasks = self._final_tasks if final else self._tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def close(self) -> None:
        """Stop background tasks and close the connections. Calls in progress end with Closed."""
        if self.closed:
            return
        self._check_loop()
        if self._final_tasks:
            await asyncio.wait(self._final_tasks, timeout=FINAL_TASKS_S)
        self.closed = True
        for woken in self._sleeping:
            wake(woken)
        await asyncio.sleep(0)  # a task that was just spawned starts first, so that its callers get Closed
        self._tasks |= self._final_tasks
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transport.close()


def _decoded(request: ApiRequest[R], reply: HttpReply) -> R:
    try:
        return request.decode(reply.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        bad = BadAnswer(f"cannot decode the reply to {request.method} {request.target}: {error}")
        bad.maybe_done = True
        raise bad from error
