"""The public interface as a type checker sees it: mypy checks this file, and nothing in it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, assert_type

import msgspec

from tenantq.client import (
    Added,
    AsyncClient,
    AsyncMessage,
    AsyncQueue,
    Client,
    JobResult,
    Message,
    Page,
    Queue,
    Received,
    StoredMessage,
    Tenant,
)
from tenantq.errors import TenantqError
from tenantq.wire.queues import QueueReply
from tenantq.wire.tenants import TenantReply

if TYPE_CHECKING:
    import tenantq
    from tenantq.worker import Task, Worker


class Mail(msgspec.Struct):
    to: str


def blocking(client: Client) -> None:
    """Every method of the blocking client returns a value of a known type."""
    queue = client.queue("mail")
    assert_type(queue, Queue)
    assert_type(queue.add({"a": 1}, priority=3, key="k"), Added)
    known_by_its_short_name: tenantq.Added = queue.add("x")
    assert_type(known_by_its_short_name, Added)
    assert_type(queue.add_many([b"a", "b"], errors="return"), list[Added])
    for message in queue.poll(10, wait_ms=1, lease_ms=5):
        assert_type(message, Message)
        with message as same:
            assert_type(same, Message)
        assert_type(message.body, bytes)
        assert_type(message.json(), Any)
        assert_type(message.json(Mail), Mail)
        assert_type(message.json(list[int]), list[int])
        assert_type(message.ack({"done": True}), None)
        assert_type(message.nack(delay_ms=5, reason="no"), None)
    assert_type(queue.ack_many(queue.poll()), list[TenantqError | None])
    assert_type(queue.result("id"), JobResult)
    assert_type(queue.wait_result("id", timeout_ms=5).json(Mail), Mail)
    assert_type(queue.iter_results(["id"]), Iterator[JobResult])
    assert_type(queue.peek(5), Page)
    assert_type(queue.get("id"), StoredMessage)
    assert_type(queue.stats(), QueueReply)
    assert_type(queue.remove("id"), list[bool])
    assert_type(queue.purge(confirm="mail", reason="because it is"), int)
    assert_type(client.tenant("acme"), Tenant)
    assert_type(client.tenant("acme").configure(weight=2), TenantReply)
    assert_type(client.tenant("acme").create_key("k", role="producer").token, str)
    assert_type(client.fleet("mail").poll(), list[Message])
    assert_type(client.tenants(), list[TenantReply])
    queue.add("x", no_such_option=1)  # type: ignore[call-arg]  # a wrong option is found by the checker
    queue.poll("ten")  # type: ignore[arg-type]  # and so is a wrong type


async def asynchronous(client: AsyncClient) -> None:
    """So does every method of the asynchronous client."""
    queue = client.queue("mail")
    assert_type(queue, AsyncQueue)
    assert_type(await queue.add(b"x"), Added)
    for message in await queue.poll(10):
        assert_type(message, AsyncMessage)
        async with message as same:
            assert_type(same, AsyncMessage)
    assert_type(queue.iter_results(["id"]), AsyncIterator[JobResult])
    assert_type(await client.tenant("acme").queue("mail").stats(), QueueReply)
    assert_type(await client.health(), dict[str, Any])


def working(worker: Worker) -> None:
    """Keep the signature of a task's function."""

    @worker.task("mail", result=True)
    def send(mail: Mail) -> int:
        return len(mail.to)

    assert_type(send(Mail("x")), int)
    assert_type(send.add(Mail("x")), Added)
    assert_type(worker.run(burst=True), bool)

    @worker.before
    def before(message: Received) -> None:
        message.json(Mail)

    @worker.failure
    async def failure(message: tenantq.Received, error: BaseException) -> None:
        assert_type(message.attempt, int)

    def rule(message: Received, error: Exception) -> int | None:
        return message.attempt if isinstance(error, TimeoutError) else None

    worker.task("again", retry=rule)
    some: Task[[Mail], int] = send
    some("x")  # type: ignore[arg-type]  # the wrong argument is found


def test_this_file_is_checked_by_mypy() -> None:
    """The checker does the work."""
    assert blocking is not None
    assert asynchronous is not None
    assert working is not None
