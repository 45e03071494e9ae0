"""One message in progress: runs its handler, settles its lease, logs the outcome."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tenantq.client.async_message import AsyncMessage
from tenantq.client.bodies import Unset, to_bytes
from tenantq.client.loop_thread import LoopThread
from tenantq.client.received import Received, reason_of
from tenantq.client.sync_client import Message
from tenantq.domain import limits
from tenantq.domain.validation import check_field
from tenantq.errors import LeaseLost, TenantqError
from tenantq.worker.handler_threads import HandlerThreads
from tenantq.worker.plan import WorkerPlan
from tenantq.worker.retry import Retry
from tenantq.worker.task import Task

log = logging.getLogger("tenantq.worker")

TIMEOUT_REASON: Final = "timeout"


class TaskTimedOut(Exception):
    """A handler took longer than its ``timeout_ms``."""


@dataclass(slots=True, eq=False)
class Job:
    """One message and the task that handles it."""

    task: Task[Any, Any]
    message: AsyncMessage
    _plan: WorkerPlan
    _threads: HandlerThreads
    _loop_thread: LoopThread
    _free_slot: Callable[[asyncio.Future[Any] | None], None]
    """Called once, when the handler has ended or, with its thread, has timed out."""
    _is_stopping: Callable[[], bool]
    """Distinguishes a handler that the worker cancelled from one that cancelled itself."""
    has_ended: bool = False  # the handler ended or timed out; the message may not be settled yet
    _thread: asyncio.Future[Any] | None = None  # still running after its timeout

    async def handle(self) -> None:
        """Run the handler and settle the message, in a span if the application is traced.

        Errors of handlers and hooks never propagate.
        """
        tracing = self.message.tracing
        if tracing is None:
            await self._handle()
            return
        with tracing.processing(self.message.lease_state.item) as span:
            tracing.finish(span, *await self._handle())

    async def _handle(self) -> tuple[str, BaseException | None]:
        """Return the outcome and the handler's error. The slot is free as soon as the handler has ended."""
        task, message = self.task, self.message
        loop = asyncio.get_running_loop()
        started = loop.time()
        result: Any = None
        error: BaseException | None = None
        try:
            for hook in self._plan.before:
                await _call_hook(hook, message)
            result = await self._call()
            if task.result and isinstance(message.result, Unset):
                message.result = result
            if not isinstance(message.result, Unset):
                message.result = to_bytes(message.result, "result")  # a result that cannot be encoded fails the message
        except Exception as failed:  # noqa: BLE001  # any error of a handler fails the message
            error = failed
        except BaseException as odd:
            if isinstance(odd, GeneratorExit) and loop.is_closed():
                raise  # the coroutine is being destroyed
            error = odd
        finally:
            self.has_ended = True
            self._free_slot(self._thread)
        if _is_cancelled():
            await _clear_cancellation()
        if error is not None and not isinstance(error, Exception):
            error = self._cause(error)
        outcome = await self._settle(error)
        await self._report(result, error, outcome, int((loop.time() - started) * 1_000))
        return outcome, error

    def _cause(self, odd: BaseException) -> BaseException:
        """Return the error for an exception that is not an Exception: a cancellation by the worker, or else a failure."""
        if not isinstance(odd, asyncio.CancelledError):
            return RuntimeError(f"the handler raised {odd!r}")
        return odd if self._is_stopping() else RuntimeError("the handler cancelled itself")

    async def _call(self) -> Any:
        """Call the handler within its timeout and return its result."""
        task = self.task
        if not task.is_async:
            return await self._call_in_thread()
        arguments = task.arguments(self.message)
        if task.timeout_ms is None:
            return await task.function(*arguments)
        scope = asyncio.timeout(task.timeout_ms / 1_000)
        try:
            async with scope:
                return await task.function(*arguments)
        except TimeoutError:
            if scope.expired():
                raise _timed_out(task) from None
            raise

    async def _call_in_thread(self) -> Any:
        task = self.task
        arguments = task.arguments(Message(self.message, self._loop_thread))
        future = self._threads.run(lambda: task.function(*arguments))
        try:
            await asyncio.wait([future], timeout=None if task.timeout_ms is None else task.timeout_ms / 1_000)
        finally:
            if not future.done():
                self._thread = future
        if not future.done():
            raise _timed_out(task)
        return future.result()

    async def _settle(self, error: BaseException | None) -> str:
        """Ack, nack or release the message unless the handler did. Returns the outcome for the log."""
        task, message = self.task, self.message
        if message.settled:
            return "settled"
        try:
            if error is None:
                await message.ack(message.result)
                return "acked"
            if isinstance(error, asyncio.CancelledError):
                await message.release()
                return "released"
            reason = TIMEOUT_REASON if isinstance(error, TaskTimedOut) else reason_of(error)
            await message.nack(self._delay_ms(error), reason)
        except LeaseLost:
            return "lost"
        except TenantqError as trouble:
            log.warning("%r: cannot settle the message: %s", message, trouble, extra=_fields(task, message))
            return "unknown"
        return "nacked"

    def _delay_ms(self, error: BaseException) -> int | None:
        task, message = self.task, self.message
        rule = task.retry
        if rule is None:
            return None
        if isinstance(rule, Retry):
            return rule.delay_ms(message.attempt, self._plan.randomness)
        try:
            delay_ms = rule(message, error)  # type: ignore[arg-type]  # cancellations are handled before
            return None if delay_ms is None else check_field("delay_ms", delay_ms, limits.DelayMs)
        except BaseException:  # also SystemExit, which must not end the worker
            log.exception("%s: the retry rule failed", task.queue, extra=_fields(task, message))
            return None

    async def _report(self, result: Any, error: BaseException | None, outcome: str, took_ms: int) -> None:
        """Log the outcome and call the hooks. An error in a hook is only logged."""
        task, message = self.task, self.message
        fields = {**_fields(task, message), "outcome": outcome, "duration_ms": took_ms}
        if isinstance(error, asyncio.CancelledError):
            log.warning("%s: interrupted because the worker stops", task.name, extra=fields)
            return
        if outcome == "lost":
            log.warning("%s: the lease expired; the message will be delivered again", task.name, extra=fields)
        elif error is None:
            log.info("%s: done", task.name, extra=fields)
        else:
            fields["error"] = type(error).__name__
            log.error("%s: failed: %s", task.name, reason_of(error), exc_info=error, extra=fields)
        hooks = self._plan.after if error is None else self._plan.failure
        for hook in hooks:
            try:
                await _call_hook(hook, message, result if error is None else error)
            except BaseException as odd:
                if self._is_stopping() and isinstance(odd, asyncio.CancelledError):
                    raise
                log.exception("%s: a hook failed", task.name, extra=fields)
                if _is_cancelled():
                    await _clear_cancellation()


async def _call_hook(hook: Callable[..., Any], message: Received, *arguments: Any) -> None:
    outcome = hook(message, *arguments)
    if inspect.isawaitable(outcome):
        await outcome


def _is_cancelled() -> bool:
    """Return whether the running task was cancelled, by the worker or by the handler itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _clear_cancellation() -> None:
    """Clear the cancellation of the running task, so that its message can be settled."""
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # a cancellation that was not raised yet is raised here


def _timed_out(task: Task[Any, Any]) -> TaskTimedOut:
    return TaskTimedOut(f"{task.name} took longer than {task.timeout_ms} ms")


def _fields(task: Task[Any, Any], message: Received) -> dict[str, Any]:
    """Return the log fields of a message."""
    fields = {
        "task": task.name,
        "tenant": message.tenant,
        "queue": message.queue,
        "message_id": message.id,
        "attempt": message.attempt,
    }
    trace = message.attributes.get("traceparent", "").split("-")
    return {**fields, "trace_id": trace[1]} if len(trace) > 1 else fields
