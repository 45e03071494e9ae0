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
    facet_method: Callable[[Service], Callable[..., Awaitable[Any]]]
    write: Callable[
        [Any, Any, Any], int | Awaitable[int | None] | None
    ]  # returns about its bytes, if there can be many
    size: Callable[[dict[str, Any]], int] | None = None  # bytes of its arguments, if they can be many
    waits: bool = False  # it may wait, up to its ``wait_ms``
    interrupted: Any = None  # its reply when the listener closes


def _with_argument(path: str, name: str) -> Callable[[Service], Callable[..., Awaitable[Any]]]:
    """Return a facet method whose result comes with one of its arguments, which the reply repeats."""
    find = attrgetter(path)

    def bound(service: Service) -> Callable[..., Awaitable[Any]]:
        async def ask(call: Call, **arguments: Any) -> tuple[Any, Any]:
            return arguments[name], await find(service)(call, **arguments)

        return ask

    return bound


def _settles(verb: str) -> Callable[[Service], Callable[..., Awaitable[Any]]]:
    return _with_argument(f"settlement.{verb}", "receipts")


METHODS: Final[dict[str, Method]] = {
    "add": Method(requests.add, attrgetter("messages.add"), replies.added, requests.add_bytes),
    "poll": Method(requests.poll, attrgetter("messages.poll"), replies.delivered, waits=True, interrupted=[]),
    "fleetPoll": Method(requests.fleet_poll, attrgetter("fleet.poll"), replies.delivered, waits=True, interrupted=[]),
    "ack": Method(requests.ack, _settles("ack"), replies.settled, requests.ack_bytes),
    "nack": Method(requests.nack, _settles("nack"), replies.settled),
    "release": Method(requests.settle, _settles("release"), replies.settled),
    "extend": Method(requests.extend, _settles("extend"), replies.settled),
    "remove": Method(requests.remove, _with_argument("settlement.remove", "ids"), replies.removed),
    "peek": Method(requests.peek, attrgetter("message_reads.peek"), replies.page),
    "message": Method(requests.message, attrgetter("message_reads.get"), replies.message),
    "result": Method(
        requests.result,
        attrgetter("message_reads.result"),
        replies.result,
        waits=True,
        interrupted=(Result("pending"), False),
    ),
    "trace": Method(requests.message, attrgetter("message_reads.trace"), replies.rows),
    "purge": Method(requests.purge, attrgetter("queues.purge"), replies.purged),
    "redrive": Method(requests.redrive, attrgetter("redrives.start"), replies.redrive),
    "redriveStatus": Method(requests.redrive_task, attrgetter("redrives.get"), replies.redrive),
    "cancelRedrive": Method(requests.redrive_task, attrgetter("redrives.cancel"), replies.redrive),
    "getQueue": Method(requests.place, attrgetter("queues.get"), replies.queue),
    "putQueue": Method(requests.put_queue, attrgetter("queues.put"), replies.put),
    "deleteQueue": Method(requests.delete_queue, attrgetter("queues.delete"), replies.done),
    "listQueues": Method(requests.list_queues, _with_argument("queues.list", "limit"), replies.queues),
    "pauseQueue": Method(requests.place, attrgetter("queues.pause"), replies.queue),
    "resumeQueue": Method(requests.place, attrgetter("queues.resume"), replies.queue),
    "stats": Method(requests.place, attrgetter("queues.get"), replies.stats),
}
