"""Tasks: handlers get what their types ask for, and their outcome settles the message."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import re
import threading
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tenantq.client import AsyncMessage, Message
from tenantq.errors import Invalid
from tenantq.worker import Retry, TaskTimedOut, Worker
from tests.unit.client.doubles import MidpointRandom

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.client import Client
    from tenantq.client.received import Received
    from tenantq.testing import FakeServer

    Make = Callable[..., Worker]


class Mail(msgspec.Struct):
    to: str


@dataclasses.dataclass
class Job:
    name: str


class Model:
    """An object with the interface of a pydantic model."""

    def __init__(self, to: str) -> None:
        self.to = to

    @classmethod
    def model_validate_json(cls, data: bytes) -> Model:
        """Return an instance from JSON."""
        return cls(msgspec.json.decode(data)["to"])


def test_a_handler_gets_what_its_first_parameter_asks_for(make_worker: Make, client: Client) -> None:
    """Bytes, text, JSON of any type, a model, or the message."""
    worker = make_worker()
    got: dict[str, Any] = {}

    @worker.task("bytes")
    def take_bytes(body: bytes) -> None:
        got["bytes"] = body

    @worker.task("text")
    def take_text(body: str) -> None:
        got["text"] = body

    @worker.task("dict")
    async def take_dict(body: dict[str, int]) -> None:
        got["dict"] = body

    @worker.task("struct")
    def take_struct(body: Mail) -> None:
        got["struct"] = body

    @worker.task("dataclass")
    async def take_dataclass(body: Job) -> None:
        got["dataclass"] = body

    @worker.task("model")
    def take_model(body: Model) -> None:
        got["model"] = body.to

    @worker.task("any")
    def take_any(body: Any) -> None:
        got["any"] = body

    @worker.task("sync")
    def take_message(message: Message) -> None:
        got["sync"] = (type(message), message.attempt)

    @worker.task("async")
    async def take_async_message(message: AsyncMessage) -> None:
        got["async"] = (type(message), message.attempt)

    @worker.task("plain")
    def take_untyped(message) -> None:  # type: ignore[no-untyped-def]  # that is the point
        got["plain"] = type(message)

    @worker.task("both")
    def take_both(body: Mail, message: Message) -> None:
        got["both"] = (body, message.queue)

    bodies = {
        "bytes": b"\xff", "text": "hi", "dict": {"a": 1}, "struct": {"to": "x"}, "dataclass": {"name": "x"},
        "model": {"to": "y"}, "any": [1, None], "sync": "m", "async": "m", "plain": "m", "both": {"to": "z"},
    }  # fmt: skip
    for queue, body in bodies.items():
        client.queue(queue).add(body)
    assert worker.run(burst=True)
    assert got == {
        "bytes": b"\xff", "text": "hi", "dict": {"a": 1}, "struct": Mail("x"), "dataclass": Job("x"), "model": "y",
        "any": [1, None], "sync": (Message, 1), "async": (AsyncMessage, 1), "plain": Message, "both": (Mail("z"), "both"),
    }  # fmt: skip


def test_a_body_of_the_wrong_type_fails_the_message(make_worker: Make, client: Client) -> None:
    """The reason says what was expected."""
    worker = make_worker()

    @worker.task("mail")
    def send(body: Mail) -> None:
        pytest.fail("it must not be called")

    @worker.task("text")
    def read(body: str) -> None:
        pytest.fail("it must not be called")

    wrong, bytes_ = client.queue("mail").add({"to": 1}), client.queue("text").add(b"\xff")
    worker.run(burst=True)
    assert "expected" in client.queue("mail").get(wrong.id).history[0].reason
    assert "not UTF-8 text" in client.queue("text").get(bytes_.id).history[0].reason


def test_invalid_handlers_are_refused_at_registration(make_worker: Make) -> None:
    """Too many parameters, a second one that is not a message, the other client's message type, or a queue that already has a handler."""
    worker = make_worker()

    def none() -> None: ...
    def three(a: str, b: Message, c: int) -> None: ...
    def keyword(a: str, *, b: int) -> None: ...
    def second(a: str, b: int) -> None: ...
    def other_face(a: AsyncMessage) -> None: ...
    async def other_face_too(a: str, message: Message) -> None: ...

    wrong: list[Any] = [none, three, keyword, second, other_face, other_face_too, "text"]
    for handler in wrong:
        with pytest.raises(Invalid, match="task mail"):
            worker.task("mail")(handler)
    worker.task("mail")(lambda _: None)
    with pytest.raises(Invalid, match="already"):
        worker.task("mail")(lambda _: None)
    with pytest.raises(Invalid, match="queue"):
        worker.task("no/such")(lambda _: None)
    with pytest.raises(Invalid, match="timeout_ms"):
        worker.task("other", timeout_ms=0)(lambda _: None)


def test_a_task_can_be_called_and_enqueued(make_worker: Make, client: Client) -> None:
    """Directly, as in a test of the handler; with add, from anywhere; and from another handler."""
    worker = make_worker()
    seen: list[str] = []

    @worker.task("first", result=True)
    async def first(name: str) -> str:
        """Forward the message."""
        await second.add_async(f"{name}!", priority=3)
        return name.upper()

    @worker.task("second")
    def second(name: str) -> None:
        seen.append(name)

    assert first.__doc__ == "Forward the message."
    second("direct")
    added = first.add("x", key="once")
    worker.enqueue("second", "by name")
    asyncio.run(_add_async(second))
    worker.run(burst=True)
    assert client.queue("first").result(added.id).text == "X"
    assert sorted(seen) == ["by name", "direct", "from a loop", "x!"]


async def _add_async(task: Any) -> None:
    await task.add_async("from a loop")


def test_results_are_stored_on_request(make_worker: Make, client: Client) -> None:
    """The return value with result=True, or a result set on the message. None is a result too."""
    worker = make_worker()

    @worker.task("returned", result=True)
    def returned(body: str) -> dict[str, int] | None:
        return {"length": len(body)} if body else None

    @worker.task("set")
    async def sets(message: AsyncMessage) -> str:
        message.result = b"set"
        return "not this"

    @worker.task("odd", result=True)
    def odd(body: str) -> object:
        return object()

    one, two = client.queue("returned").add("abc"), client.queue("returned").add("")
    three, four = client.queue("set").add("x"), client.queue("odd").add("x")
    worker.run(burst=True)
    assert client.queue("returned").result(one.id).json() == {"length": 3}
    assert client.queue("returned").result(two.id).json() is None
    assert client.queue("set").result(three.id).value == b"set"
    assert "JSON" in client.queue("odd").get(four.id).history[0].reason


def test_a_failed_handler_nacks_with_its_reason_and_its_delay(
    make_worker: Make, client: Client, server: FakeServer
) -> None:
    """By a policy, by a custom rule, or by the queue's lease_ms."""
    worker = make_worker()

    @worker.task("policy", retry=Retry(base_ms=40_000, max_ms=60_000))
    def policy(body: str) -> None:
        raise ValueError("no luck")

    @worker.task("rule", retry=lambda message, error: 70_000 * message.attempt if isinstance(error, KeyError) else None)
    async def rule(body: str) -> None:
        raise KeyError(body)

    @worker.task("broken", retry=lambda _, __: -1)
    def broken(body: str) -> None:
        raise ValueError

    added = {name: client.queue(name).add("x").id for name in ("policy", "rule", "broken")}
    worker.run(burst=True)
    facts = {name: client.queue(name).get(id) for name, id in added.items()}
    assert facts["policy"].history[0].reason == "ValueError: no luck"
    assert facts["rule"].history[0].reason == "KeyError: 'x'"
    assert 20_000 <= facts["policy"].visible_at - facts["policy"].history[0].at <= 40_000
    assert abs(facts["rule"].visible_at - facts["rule"].history[0].at - 70_000) < 1_000
    assert facts["broken"].history[0].reason == "ValueError"
    server.clock.advance(80_000)
    worker.run(burst=True)
    assert client.queue("policy").get(added["policy"]).attempts == 2


def test_retry_delays_grow_up_to_their_maximum() -> None:
    """Between half and all of base * factor^n, for any attempt."""
    retry = Retry(base_ms=100, max_ms=1_000, factor=3)
    assert [retry.delay_ms(attempt, MidpointRandom()) for attempt in (1, 2, 3, 4, 5_000)] == [75, 225, 675, 750, 750]


@pytest.mark.parametrize("wrong", [{"base_ms": -5}, {"max_ms": -1}, {"factor": 0.5}, {"factor": float("nan")}])
def test_invalid_retry_delays_are_refused(wrong: dict[str, Any]) -> None:
    """At creation, not when the first message fails."""
    with pytest.raises(Invalid, match=next(iter(wrong))):
        Retry(**wrong)


def test_a_coroutine_that_takes_too_long_is_cancelled(make_worker: Make, client: Client) -> None:
    """Its message is nacked with the reason "timeout"."""
    worker = make_worker()
    errors: list[BaseException] = []
    cancelled = threading.Event()

    @worker.task("slow", timeout_ms=30)
    async def slow(body: str) -> None:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    @worker.failure
    def note(message: Received, error: BaseException) -> None:
        errors.append(error)

    added = client.queue("slow").add("x")
    worker.run(burst=True)
    assert cancelled.is_set()
    assert client.queue("slow").get(added.id).history[0].reason == "timeout"
    assert [type(error) for error in errors] == [TaskTimedOut]


def test_a_timed_out_thread_keeps_its_slot_until_it_ends(make_worker: Make, client: Client) -> None:
    """Its message is nacked at once, and no more threads than allowed ever run."""
    worker = make_worker(concurrency=1, prefetch=0)
    go = threading.Event()
    running = most = 0
    lock = threading.Lock()

    @worker.task("slow", timeout_ms=30, retry=Retry(base_ms=600_000))
    def slow(body: str) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(30)
        with lock:
            running -= 1

    @worker.failure
    def note(message: Received, error: BaseException) -> None:
        go.set()

    ids = [client.queue("slow").add(f"{n}").id for n in range(2)]
    worker.run(burst=True)
    assert most == 1
    assert client.queue("slow").get(ids[0]).history[0].reason == "timeout"


def test_a_timeout_inside_the_handler_is_an_ordinary_failure(make_worker: Make, client: Client) -> None:
    """Only the task's own timeout has the reason "timeout"."""
    worker = make_worker()

    @worker.task("slow", timeout_ms=60_000)
    async def slow(body: str) -> None:
        raise TimeoutError("mine")

    @worker.task("cancels")
    async def cancels(body: str) -> None:
        raise asyncio.CancelledError

    @worker.task("exits")
    def exits(body: str) -> None:
        raise SystemExit(3)

    @worker.task("exits-too")
    async def exits_too(body: str) -> None:
        raise SystemExit(3)

    ids = {name: client.queue(name).add("x").id for name in ("slow", "cancels", "exits", "exits-too")}
    worker.run(burst=True)
    reasons = {name: client.queue(name).get(id).history[0].reason for name, id in ids.items()}
    assert reasons["slow"] == "TimeoutError: mine"
    assert "cancelled" in reasons["cancels"]
    assert "SystemExit" in reasons["exits"]
    assert "SystemExit" in reasons["exits-too"]


def test_any_callable_can_be_a_handler(make_worker: Make, client: Client) -> None:
    """An object with a plain or coroutine __call__, a method, or a partial function."""
    worker = make_worker()
    got: list[tuple[str, object]] = []

    class CallableHandler:
        """Records mail."""

        def __call__(self, body: Mail) -> None:
            got.append(("object", body))

        def method(self, body: str) -> None:
            got.append(("method", body))

    class AsyncCallableHandler:
        async def __call__(self, body: Mail, message: AsyncMessage) -> None:
            got.append((message.queue, body))

    def both(name: str, body: Mail, *, extra: int) -> None:
        got.append((name, body))

    task = worker.task("object")(CallableHandler())
    assert (task.name, task.__doc__) == ("CallableHandler", "Records mail.")
    worker.task("coroutine")(AsyncCallableHandler())
    worker.task("method")(CallableHandler().method)
    assert worker.task("partial")(functools.partial(functools.partial(both, "partial"), extra=1)).name == "both"
    worker.task("partial-coroutine")(functools.partial(AsyncCallableHandler()))
    for queue in ("object", "coroutine", "method", "partial", "partial-coroutine"):
        client.queue(queue).add({"to": "x"})
    assert worker.run(burst=True)
    names = ("coroutine", "object", "partial", "partial-coroutine")
    assert sorted(got, key=str) == sorted([*((name, Mail("x")) for name in names), ("method", '{"to":"x"}')], key=str)


def test_a_message_settled_by_its_handler_is_not_settled_again(make_worker: Make, client: Client) -> None:
    """In both kinds of handler."""
    worker = make_worker()

    @worker.task("sync")
    def later(message: Message) -> None:
        message.extend(60_000)
        message.nack(delay_ms=500_000, reason="later")

    @worker.task("async")
    async def later_too(message: AsyncMessage) -> None:
        await message.nack(delay_ms=500_000, reason="later")
        raise ValueError("too late to matter")

    for queue in ("sync", "async"):
        client.queue(queue).add("x")
    worker.run(burst=True)
    assert [client.queue(queue).stats().delayed for queue in ("sync", "async")] == [1, 1]
    assert client.queue("async").stats().nacked_total == 1


def test_hooks_are_called_around_every_handler(make_worker: Make, client: Client) -> None:
    """In order, plain or coroutine. An error before the handler fails the message; one afterwards changes nothing."""
    told: list[str] = []

    async def before(message: Received) -> None:
        told.append(f"before {message.text}")
        if message.text == "stop":
            raise PermissionError("not today")

    def after(message: Received, result: Any) -> None:
        told.append(f"after {result}")
        raise RuntimeError("nobody minds")

    worker = make_worker(concurrency=1, before=[before], after=[after])

    @worker.failure
    async def failure(message: Received, error: BaseException) -> None:
        told.append(f"failure {error}")

    @worker.task("mail")
    def send(body: str) -> str:
        if body == "bad":
            raise ValueError("bad mail")
        return body.upper()

    client.queue("mail").add_many(["good", "bad", "stop"])
    worker.run(burst=True)
    assert sorted(told) == [
        "after GOOD", "before bad", "before good", "before stop", "failure bad mail", "failure not today",
    ]  # fmt: skip
    for first, then in (("before good", "after GOOD"), ("before bad", "failure bad mail")):
        assert told.index(first) < told.index(then)
    assert client.queue("mail").stats().acked_total == 1


def test_outcomes_are_logged_with_fields(make_worker: Make, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Task, tenant, queue, ID, attempt, outcome and duration, for any formatter. No bodies."""
    worker = make_worker()

    @worker.task("mail")
    def send(body: str) -> None:
        if body.startswith("bad"):
            raise ValueError("no")

    added = [client.queue("mail").add(body).id for body in ("good secret", "bad secret")]
    with caplog.at_level(logging.INFO, logger="tenantq.worker"):
        worker.run(burst=True)
    records = {record.__dict__["message_id"]: record for record in caplog.records if hasattr(record, "message_id")}
    good, bad = (records[id].__dict__ for id in added)
    wanted = {"task": "send", "tenant": "default", "queue": "mail", "attempt": 1}
    assert {name: good[name] for name in wanted} == wanted
    assert (good["outcome"], bad["outcome"], bad["error"]) == ("acked", "nacked", "ValueError")
    assert good["duration_ms"] >= 0
    assert "secret" not in caplog.text


def test_a_failure_is_logged_once_as_an_error_with_its_traceback(
    make_worker: Make, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """With the trace ID if the producer sent one."""
    worker = make_worker()

    @worker.task("mail")
    def send(body: str) -> None:
        raise ValueError(body[:3])

    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    client.queue("mail").add("bad", attributes=trace)
    with caplog.at_level(logging.DEBUG, logger="tenantq.worker"):
        worker.run(burst=True)
    (failed,) = [record for record in caplog.records if "failed" in record.message or record.exc_info]
    assert failed.levelname == "ERROR"
    assert failed.exc_info is not None
    assert isinstance(failed.exc_info[1], ValueError)
    assert failed.__dict__["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_running_worker_is_listed_with_its_name_and_version(make_worker: Make, client: Client) -> None:
    """The default name consists of host and process."""
    worker = make_worker(name="mailer-7")
    seen: list[tuple[str, str, str]] = []

    @worker.task("mail")
    def send(body: str) -> None:
        del body
        seen.extend((one.queue, one.worker, one.version) for one in client.tenant("default").workers())

    client.queue("mail").add("x")
    worker.run(burst=True)
    assert seen == [("mail", "mailer-7", f"tenantq-python/{version('tenantq')}")]
    assert re.fullmatch(r"[!-~]+-\d+", make_worker().name)
    with pytest.raises(Invalid):
        make_worker(name="two words")
