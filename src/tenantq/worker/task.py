"""A task: a queue and the handler of its messages."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any, Generic, Literal, ParamSpec, Protocol, TypeVar

from tenantq.client.async_message import AsyncMessage
from tenantq.client.bodies import from_json
from tenantq.client.received import Received
from tenantq.client.sync_client import Message
from tenantq.client.values import Added
from tenantq.domain.names import check_queue_name
from tenantq.domain.validation import between, check_field
from tenantq.errors import Invalid
from tenantq.worker.retry import Retry, RetryRule

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT_MS_MAX = 24 * 3_600_000
_WHOLE_MESSAGE = "message"


class Producer(Protocol):
    """Adds messages to queues."""

    def enqueue(self, task: str, body: object, *, tenant: str | None = None, **options: Any) -> Added:
        """Add a message. Blocks; not for coroutines."""

    async def enqueue_async(self, task: str, body: object, *, tenant: str | None = None, **options: Any) -> Added:
        """Add a message, from a coroutine."""


class Task(Generic[P, R]):
    """The result of ``@worker.task``. Calling it calls the function; ``add`` adds a message for it."""

    def __init__(
        self,
        producer: Producer,
        queue: str,
        function: Callable[P, R],
        *,
        timeout_ms: int | None,
        retry: Retry | RetryRule | None,
        result: bool,
    ) -> None:
        self.queue = check_queue_name(queue)
        if not callable(function):
            raise Invalid(f"task {queue}: the handler must be callable")
        inner = _inner(function)
        self.name = getattr(inner, "__name__", type(inner).__name__)
        if timeout_ms is not None:
            check_field("timeout_ms", timeout_ms, Annotated[int, between(1, TIMEOUT_MS_MAX)])
        self.function = function
        self.is_async = inspect.iscoroutinefunction(_code(inner))
        self.timeout_ms = timeout_ms
        self.retry = retry
        self.result = result
        self.takes, self.takes_message_too = _parameters(self)
        self._producer = producer
        self.__doc__ = inner.__doc__

    def __repr__(self) -> str:
        return f"<Task {self.name} of {self.queue}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the handler directly, for example in a test."""
        return self.function(*args, **kwargs)

    def add(self, body: object, **options: Any) -> Added:
        """Add a message for this task, with the options of ``Queue.add`` and ``tenant``. Blocks; not for coroutines."""
        return self._producer.enqueue(self.queue, body, **options)

    async def add_async(self, body: object, **options: Any) -> Added:
        """Add a message for this task, from a coroutine."""
        return await self._producer.enqueue_async(self.queue, body, **options)

    def arguments(self, message: Received) -> tuple[Any, ...]:
        """Return the arguments for the handler. Raises Invalid if the body does not match its type."""
        kind = self.takes
        first: Any
        if kind == _WHOLE_MESSAGE:
            first = message
        elif kind is bytes:
            first = message.body
        elif kind is str:
            try:
                first = message.text
            except UnicodeDecodeError as error:
                raise Invalid("the body is not UTF-8 text") from error
        else:
            first = from_json(message.body, kind)
        return (first, message) if self.takes_message_too else (first,)


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside ``functools.partial`` objects."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what carries the parameter types: the function itself, or the object's ``__call__``."""
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__


def _parameters(task: Task[P, R]) -> tuple[Any | Literal["message"], bool]:
    """Return the type of the handler's first parameter, and whether a second one takes the message."""
    where = f"task {task.queue}: {task.name}"
    signature = inspect.signature(task.function)
    positional = [
        one
        for one in signature.parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
    ]
    needed = [one for one in signature.parameters.values() if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    if not 1 <= len(positional) <= 2 or needed:
        raise Invalid(f"{where} must take one parameter (the body or the message) or two (the body and the message)")
    try:
        hints = typing.get_type_hints(_code(_inner(task.function)))
    except (NameError, TypeError) as error:
        raise Invalid(f"{where}: cannot resolve the parameter types: {error}") from error
    kind = hints.get(positional[0].name, _WHOLE_MESSAGE)
    if isinstance(kind, type) and issubclass(kind, Received):
        _check_message_type(task, kind, where)
        kind = _WHOLE_MESSAGE
    if len(positional) == 2:
        second = hints.get(positional[1].name, Received)
        if not (isinstance(second, type) and issubclass(second, Received)):
            raise Invalid(f"{where}: the second parameter must be the message (Message or AsyncMessage)")
        _check_message_type(task, second, where)
    return kind, len(positional) == 2


def _check_message_type(task: Task[P, R], kind: type, where: str) -> None:
    wanted = AsyncMessage if task.is_async else Message
    if not issubclass(wanted, kind):
        raise Invalid(
            f"{where} gets a {wanted.__name__}, not a {kind.__name__}: coroutines get AsyncMessage, functions Message"
        )
