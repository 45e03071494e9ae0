"""One message at work: its handler is run, its lease settled, its story told."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from typing import TYPE_CHECKING, Any, Final

from tenantq.client.bodies import Unset, to_bytes
from tenantq.client.received import reason_of
from tenantq.client.sync_client import Message
from tenantq.domain import limits
from tenantq.domain.message import check_int
from tenantq.errors import LeaseLost, TenantqError
from tenantq.worker.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.client.async_message import AsyncMessage
    from tenantq.client.loop_thread import LoopThread
    from tenantq.client.received import Received
    from tenantq.worker.plan import Plan
    from tenantq.worker.task import Task
    from tenantq.worker.threads import Threads

log = logging.getLogger("tenantq.worker")

TIMEOUT_REASON: Final = "timeout"


class TaskTimedOut(Exception):
    """A handler took longer than its ``timeout_ms``."""


class Job:
    """A message, its task, and what runs the one on the other."""

    __slots__ = (
        "_is_stopping",
        "_leave_place",
        "_loop_thread",
        "_plan",
        "_thread",
        "_threads",
        "has_ended",
        "message",
        "task",
    )  # fmt: skip

    def __init__(
        self,
        task: Task[Any, Any],
        message: AsyncMessage,
        plan: Plan,
        threads: Threads,
        loop_thread: LoopThread,
        leave_place: Callable[[asyncio.Future[Any] | None], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        """Prepare it. ``leave_place`` is called once, when its handler has ended or, with its thread, is not waited for any more.

        Whether the worker ``is_stopping`` tells who has cancelled a handler: the worker, or the handler itself.
        """
        self.task = task
        self.message = message
        self.has_ended = False  # the handler, or the waiting for it; the message may not be settled yet
        self._plan = plan
        self._threads = threads
        self._loop_thread = loop_thread
        self._leave_place = leave_place
        self._is_stopping = is_stopping
        self._thread: asyncio.Future[Any] | None = None  # goes on, though nobody waits for it

    async def handle(self) -> None:
        """Run the handler and settle the message; the place is free as soon as the handler has ended.

        Nothing that a handler or a hook raises gets out of here.
        """
        task, message = self.task, self.message
        loop = asyncio.get_running_loop()
        started = loop.time()
        result: Any = None
        error: BaseException | None = None
        try:
            for hook in self._plan.before:
                await _called(hook, message)
            result = await self._call()
            if task.result and isinstance(message.result, Unset):
                message.result = result
            if not isinstance(message.result, Unset):
                message.result = to_bytes(message.result, "result")  # what cannot be written has failed
        except Exception as failed:  # noqa: BLE001  # whatever a handler raises is the message's fate
            error = failed
        except BaseException as odd:
            if isinstance(odd, GeneratorExit) and loop.is_closed():
                raise  # nobody raised it: this is being thrown away
            error = odd
        finally:
            self.has_ended = True
            self._leave_place(self._thread)
        if _is_cancelled():
            await _forget_cancels()
        if error is not None and not isinstance(error, Exception):
            error = self._what_ended_it(error)
        outcome = await self._settle(error)
        await self._tell(result, error, outcome, int((loop.time() - started) * 1_000))

    def _what_ended_it(self, odd: BaseException) -> BaseException:
        """Return what an exception stands for that would end more than the handler: the end of the worker, or just a failure."""
        if not isinstance(odd, asyncio.CancelledError):
            return RuntimeError(f"the handler raised {odd!r}")
        return odd if self._is_stopping() else RuntimeError("the handler was cancelled by its own doing")

    async def _call(self) -> Any:
        """Return what the handler returns, within its time."""
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
                raise _late(task) from None
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
            raise _late(task)
        return future.result()

    async def _settle(self, error: BaseException | None) -> str:
        """Ack, nack or release, unless the handler has done so; return what became of the message."""
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
            log.warning("%r could not be settled: %s", message, trouble, extra=_fields(task, message))
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
            delay_ms = rule(message, error)  # type: ignore[arg-type]  # a cancelled handler does not come here
            return None if delay_ms is None else check_int("delay_ms", delay_ms, 0, limits.DELAY_MS_MAX)
        except BaseException:  # also one that would end the worker
            log.exception("the retry rule of %s failed", task.queue, extra=_fields(task, message))
            return None

    async def _tell(self, result: Any, error: BaseException | None, outcome: str, took_ms: int) -> None:
        """Log what happened and call the hooks; an error in a hook is logged and changes nothing."""
        task, message = self.task, self.message
        fields = {**_fields(task, message), "outcome": outcome, "duration_ms": took_ms}
        if isinstance(error, asyncio.CancelledError):
            log.warning("%s: cut off by the end of the worker", task.name, extra=fields)
            return
        if outcome == "lost":
            log.warning("%s: its lease had ended: it is done again elsewhere", task.name, extra=fields)
        elif error is None:
            log.info("%s: done", task.name, extra=fields)
        else:
            fields["error"] = type(error).__name__
            log.warning("%s: failed: %s", task.name, reason_of(error), extra=fields)
            log.debug("%s: where it failed", task.name, exc_info=error, extra=fields)
        hooks = self._plan.after if error is None else self._plan.failure
        for hook in hooks:
            try:
                await _called(hook, message, result if error is None else error)
            except BaseException as odd:
                if self._is_stopping() and isinstance(odd, asyncio.CancelledError):
                    raise
                log.exception("a hook failed", extra=fields)
                if _is_cancelled():
                    await _forget_cancels()


async def _called(hook: Callable[..., Any], message: Received, *arguments: Any) -> None:
    outcome = hook(message, *arguments)
    if inspect.isawaitable(outcome):
        await outcome


def _is_cancelled() -> bool:
    """Tell whether somebody has cancelled the running task: the worker, or the handler itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _forget_cancels() -> None:
    """Have the running task go on, so that its message can be settled."""
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # where it has not been raised yet, it is now


def _late(task: Task[Any, Any]) -> TaskTimedOut:
    return TaskTimedOut(f"{task.name} took longer than {task.timeout_ms} ms")


def _fields(task: Task[Any, Any], message: Received) -> dict[str, Any]:
    """Return the fields that every line about a message has."""
    return {
        "task": task.name,
        "tenant": message.tenant,
        "queue": message.queue,
        "message_id": message.id,
        "attempt": message.attempt,
    }
