"""Every call of a session, once: how it is read, which call of the service it is, and how the answer is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.domain.message import Result
from tenantq.rpc import replies, requests
from tenantq.service import Service

if TYPE_CHECKING:
    from tenantq.domain.message import Outcome
    from tenantq.service import Call, QueueInfo


class Method(msgspec.Struct, frozen=True):
    """One row of the table."""

    read: Callable[[Any], dict[str, Any]]
    ask: Callable[..., Awaitable[Any]]
    write: Callable[[Any, Any, Any], int]
    size: Callable[[dict[str, Any]], int] | None = None  # bytes that its arguments hold, where they can be many
    waits: bool = False  # it may wait for long, up to its ``wait_ms``
    interrupted: Any = None  # its answer when it is told to stop


def _with_receipts(ask: Callable[..., Awaitable[list[Outcome]]]) -> Callable[..., Awaitable[Any]]:
    async def asked(service: Service, call: Call, *, receipts: list[str], **rest: Any) -> tuple[list[str], Any]:
        return receipts, await ask(service, call, receipts=receipts, **rest)

    return asked


async def _remove(service: Service, call: Call, *, ids: list[str], **rest: Any) -> tuple[list[str], list[Outcome]]:
    return ids, await service.remove(call, ids=ids, **rest)


async def _list_queues(service: Service, call: Call, *, limit: int, **rest: Any) -> tuple[int, list[QueueInfo]]:
    return limit, await service.list_queues(call, limit=limit, **rest)


METHODS: Final[dict[str, Method]] = {
    "add": Method(requests.add, Service.add, replies.added, requests.add_bytes),
    "poll": Method(requests.poll, Service.poll, replies.delivered, waits=True, interrupted=[]),
    "fleetPoll": Method(requests.fleet_poll, Service.fleet_poll, replies.delivered, waits=True, interrupted=[]),
    "ack": Method(requests.ack, _with_receipts(Service.ack), replies.settled, requests.ack_bytes),
    "nack": Method(requests.nack, _with_receipts(Service.nack), replies.settled),
    "release": Method(requests.settle, _with_receipts(Service.release), replies.settled),
    "extend": Method(requests.extend, _with_receipts(Service.extend), replies.settled),
    "remove": Method(requests.remove, _remove, replies.removed),
    "peek": Method(requests.peek, Service.peek, replies.page),
    "message": Method(requests.message, Service.get, replies.message),
    "result": Method(
        requests.result, Service.result, replies.result, waits=True, interrupted=(Result("pending"), False)
    ),
    "trace": Method(requests.message, Service.trace, replies.rows),
    "purge": Method(requests.purge, Service.purge, replies.purged),
    "redrive": Method(requests.redrive, Service.redrive, replies.redrive),
    "redriveStatus": Method(requests.redrive_task, Service.redrive_status, replies.redrive),
    "cancelRedrive": Method(requests.redrive_task, Service.cancel_redrive, replies.redrive),
    "getQueue": Method(requests.place, Service.get_queue, replies.queue),
    "putQueue": Method(requests.put_queue, Service.put_queue, replies.put),
    "deleteQueue": Method(requests.delete_queue, Service.delete_queue, replies.done),
    "listQueues": Method(requests.list_queues, _list_queues, replies.queues),
    "pauseQueue": Method(requests.place, Service.pause_queue, replies.queue),
    "resumeQueue": Method(requests.place, Service.resume_queue, replies.queue),
    "stats": Method(requests.place, Service.get_queue, replies.stats),
}
