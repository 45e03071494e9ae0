"""One call in progress. It starts in its caller's turn. If the client cancels it, it still completes, unless it only waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from capnp import KjException

from tenantq.errors import Invalid, TenantqError
from tenantq.rpc.connection import RpcConnection
from tenantq.rpc.methods import Method
from tenantq.rpc.replies import write_error
from tenantq.runtime.log_context import served_request
from tenantq.service.call import Call
from tenantq.service.problems import fault, forget_frames, no_room, problem_of
from tenantq.service.request_ids import request_id_of

log = logging.getLogger("tenantq.rpc")


class RunningCall:
    """A call, from its request to its reply.

    The library frees request and reply when the client cancels the call. Touching them afterwards crashes the process. Only
    ``steps``, which the library runs and stops, touches them. The work runs in its own task and completes.
    """

    __slots__ = (
        "_bearer", "_connection", "_context", "_held_bytes", "_is_over", "_is_stopping", "_method", "_replied",
        "_request_id", "_task", "_turn", "_user_agent",
    )  # fmt: skip

    def __init__(
        self, connection: RpcConnection, method: Method, context: Any, bearer: str | None, user_agent: str
    ) -> None:
        loop = connection.context.loop
        self._connection = connection
        self._method = method
        self._context = context
        self._bearer = bearer
        self._user_agent = user_agent
        self._request_id = ""
        self._held_bytes = 0
        self._is_over = self._is_stopping = False
        self._task: asyncio.Task[None] | None = None
        self._turn: asyncio.Future[None] = loop.create_future()
        self._replied: asyncio.Future[tuple[Any, TenantqError | None]] = loop.create_future()
        connection.begun(self)
        connection.context.turns.enter(bearer, self._turn)

    def answer(self) -> Answer:
        """Return the coroutine that the library runs to get the reply."""
        return Answer(self)

    async def steps(self) -> None:
        """Wait for the call's turn and for its work, and write the reply.

        Errors are part of the reply, except where the schema has no place for them: the library sends exceptions with their traceback.
        """
        await self._turn
        if self._is_over:  # cancelled after its turn had come
            raise asyncio.CancelledError
        try:
            arguments = await self._read()
        except TenantqError as error:
            self._end()
            await self._write(None, error)
            return
        self._task = self._connection.context.loop.create_task(self._work(arguments))
        self._task.add_done_callback(self._worked)
        await self._write(*await self._replied)

    async def _read(self) -> dict[str, Any]:
        """Return the arguments of the service, and release the request."""
        connection, method = self._connection, self._method
        try:
            params = self._context.params
            self._request_id = self._id_of(params) or connection.context.next_request_id()
            read = method.read(params)
            arguments = read if isinstance(read, dict) else await read
        except (KjException, UnicodeDecodeError) as error:
            self._request_id = self._request_id or connection.context.next_request_id()
            raise _unreadable(error) from None
        except TenantqError:
            raise
        except Exception:
            log.exception("internal error while reading request %s", self._request_id)
            raise fault() from None
        self._context.release_params()
        if method.size is not None:
            size = method.size(arguments)
            if not connection.hold(size):
                raise no_room()
            self._held_bytes = size
        return arguments

    async def _write(self, value: Any, error: TenantqError | None) -> None:
        if error is None:
            try:
                self._connection.replies(await self._write_value(value))
            except TenantqError as refusal:
                error = refusal
            except Exception:
                log.exception("internal error in the reply to request %s", self._request_id)
                error = fault()
        if error is not None:
            forget_frames(error)
            codes = self._connection.context.metrics.errors_total
            codes[error.code] = codes.get(error.code, 0) + 1
            self._write_error(error)

    # ---- what depends on the version of the schema ----

    def _id_of(self, params: Any) -> str | None:
        """Return the caller's ID of the request; empty or None if there is none."""
        raw_id = params.requestId.encode()
        return request_id_of(raw_id) if raw_id else None

    async def _write_value(self, value: Any) -> int:
        """Write the reply, and return about its bytes if there can be many."""
        return await self._write_into(self._write_durability(), value)

    async def _write_into(self, results: Any, value: Any) -> int:
        written = self._method.write(results, value, self._connection)
        return (written if written is None or isinstance(written, int) else await written) or 0

    def _write_error(self, error: TenantqError) -> None:
        """Write an error in place of the reply."""
        try:
            write_error(self._write_durability(), problem_of(error, self._request_id))
        except Exception:
            log.exception("internal error in the error reply to request %s", self._request_id)

    def _write_durability(self) -> Any:
        results = self._context.results
        if self._connection.context.durability == "os":  # fsync is the default
            results.durability = "os"
        return results

    # ---- the work ----

    async def _work(self, arguments: dict[str, Any]) -> None:
        value, error = None, None
        try:
            value = await self._ask(arguments)
        except TenantqError as refusal:
            error = refusal
        except asyncio.CancelledError:
            if not self._is_stopping or self._replied.done():
                self._end()
                raise
            assert self._task is not None
            self._task.uncancel()
            value = self._method.interrupted
        except Exception:
            log.exception("internal error in request %s", self._request_id)
            error = fault()
        if not self._replied.done():
            self._replied.set_result((value, error))
        self._end()

    def _worked(self, _: asyncio.Task[None]) -> None:
        """End a call whose task was cancelled before its first step; every other ends itself."""
        if self._is_over:
            return
        if not self._replied.done():
            if self._is_stopping:
                self._replied.set_result((self._method.interrupted, None))
            else:
                self._replied.cancel()
        self._end()

    async def _ask(self, arguments: dict[str, Any]) -> Any:
        """Call the service and return its result."""
        connection, method = self._connection, self._method
        call = Call(
            bearer=self._bearer, certificate=connection.certificate, remote=connection.remote,
            request_id=self._request_id, user_agent=self._user_agent, connection=connection,
        )  # fmt: skip
        served_request.set(call)
        if method.waits and (connection.context.is_closing or self._is_stopping):
            arguments["wait_ms"] = 0
        return await method.ask(connection.context.service, call, **arguments)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            if self._held_bytes:
                self._connection.release(self._held_bytes)
            self._connection.ended(self)

    def give_up(self) -> None:
        """Drop the call because the client cancelled it. It does not start, or stops waiting; otherwise it is finished."""
        self._turn.cancel()
        self._replied.cancel()
        if self._task is None:
            self._end()
        elif self._method.waits and not self._is_over:
            self._task.cancel()

    def stop_waiting(self) -> None:
        """Answer a waiting call now, because the listener closes."""
        if self._method.waits and not self._is_stopping:
            self._is_stopping = True
            if self._task is not None and not self._is_over:
                self._task.cancel()


class Answer(Coroutine[Any, Any, None]):
    """The reply as a coroutine that notices when the library cancels it, even before its first step."""

    __slots__ = ("_call", "_steps")

    def __init__(self, call: RunningCall) -> None:
        self._call = call
        self._steps = call.steps()

    def send(self, value: Any, /) -> Any:
        """Continue."""
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error inside: the client has cancelled the call, or is gone."""
        self._call.give_up()
        return self._steps.throw(*error)

    def close(self) -> None:
        """End."""
        self._steps.close()

    def __await__(self) -> Any:
        return self._steps.__await__()


def _unreadable(error: Exception) -> Invalid:
    """Return the error for a malformed request. The library's text would name its internals."""
    if isinstance(error, UnicodeDecodeError):
        return Invalid("the request contains text that is not UTF-8")
    return Invalid("malformed request: a pointer is invalid, or leads to more data than a request may contain")
