"""The calls of a session: how each is read, the method of the service, and how its reply is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Any, Final

import msgspec

from tenantq.domain.message import Result
from tenantq.rpc import replies, requests
from tenantq.service.call import Call
from tenantq.service.service import Service


class Method(msgspec.Struct, frozen=True):
    """One row of the table."""

    read: Callable[[Any], dict[str, Any] | Awaitable[dict[str, Any]]]
    ask: Callable[..., Awaitable[Any]]  # with the service, the call, and what ``read`` returns
    # Returns the approximate bytes of the reply if they can be many.
    write: Callable[[Any, Any, Any], int | Awaitable[int | None] | None]
    size: Callable[[dict[str, Any]], int] | None = None  # bytes of its arguments, if they can be many
    waits: bool = False  # it may wait, up to its ``wait_ms``
    interrupted: Any = None  # its reply when the listener closes


def _facet(path: str) -> Callable[..., Awaitable[Any]]:
    """Return what calls a method of a facet."""
    find = attrgetter(path)
    return lambda service, call, **arguments: find(service)(call, **arguments)


def _with_argument(path: str, name: str) -> Callable[..., Awaitable[tuple[Any, Any]]]:
    """Return the same for a result that comes with one of the arguments, which the reply repeats."""
    facet = _facet(path)

    async def ask(service: Service, call: Call, **arguments: Any) -> tuple[Any, Any]:
        return arguments[name], await facet(service, call, **arguments)

    return ask


METHODS: Final[dict[str, Method]] = {
    "add": Method(requests.add, _facet("messages.add"), replies.added, requests.add_bytes),
    "poll": Method(requests.poll, _facet("messages.poll"), replies.delivered, waits=True, interrupted=[]),
    "fleetPoll": Method(requests.fleet_poll, _facet("fleet.poll"), replies.delivered, waits=True, interrupted=[]),
    "ack": Method(requests.ack, _with_argument("settlement.ack", "receipts"), replies.settled, requests.ack_bytes),
    "nack": Method(requests.nack, _with_argument("settlement.nack", "receipts"), replies.settled),
    "release": Method(requests.settle, _with_argument("settlement.release", "receipts"), replies.settled),
    "extend": Method(requests.extend, _with_argument("settlement.extend", "receipts"), replies.settled),
    "remove": Method(requests.remove, _with_argument("settlement.remove", "ids"), replies.removed),
    "peek": Method(requests.peek, _facet("message_reads.peek"), replies.page),
    "message": Method(requests.message, _facet("message_reads.get"), replies.message),
    "result": Method(
        requests.result,
        _facet("message_reads.result"),
        replies.result,
        waits=True,
        interrupted=(Result("pending"), False),
    ),
    "trace": Method(requests.message, _facet("message_reads.trace"), replies.rows),
    "purge": Method(requests.purge, _facet("queues.purge"), replies.purged),
    "redrive": Method(requests.redrive, _facet("redrives.start"), replies.redrive),
    "redriveStatus": Method(requests.redrive_task, _facet("redrives.get"), replies.redrive),
    "cancelRedrive": Method(requests.redrive_task, _facet("redrives.cancel"), replies.redrive),
    "getQueue": Method(requests.place, _facet("queues.get"), replies.queue),
    "putQueue": Method(requests.put_queue, _facet("queues.put"), replies.put),
    "deleteQueue": Method(requests.delete_queue, _facet("queues.delete"), replies.done),
    "listQueues": Method(requests.list_queues, _with_argument("queues.list", "limit"), replies.queues),
    "pauseQueue": Method(requests.place, _facet("queues.pause"), replies.queue),
    "resumeQueue": Method(requests.place, _facet("queues.unpause"), replies.queue),
    "stats": Method(requests.place, _facet("queues.get"), replies.stats),
}
