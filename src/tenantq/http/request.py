"""One request as the handlers see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from tenantq.errors import TenantqError
from tenantq.http.context import HttpContext
from tenantq.http.request_head import RequestHead
from tenantq.http.route import Route
from tenantq.service.call import Call
from tenantq.service.problems import no_room

Q = TypeVar("Q")


class Request:
    """A request: head, caller, body, and the state of its reply."""

    __slots__ = (
        "body", "call", "close", "context", "encoding", "head", "held_bytes", "is_unfinished", "parts", "query",
        "refusal",
    )  # fmt: skip

    def __init__(self, context: HttpContext, head: RequestHead, call: Call, body: bytes = b"") -> None:
        self.context = context
        self.head = head
        self.call = call
        self.query: Any = None  # of the route's query type
        self.body = body
        self.parts: Sequence[bytes] = ()  # a large body as it arrived, until ``unpack`` makes it ``body``
        self.encoding = head.encoding  # of ``body``; empty once it is inflated
        self.is_unfinished = False  # refused before all of it had arrived
        self.held_bytes = 0  # counted against the limit of buffered bytes
        self.close = False  # the connection ends with the reply
        self.refusal: TenantqError | None = None  # the error to reply with, without calling the service

    @property
    def route(self) -> Route | None:
        """The route; None if the request was refused before routing."""
        return self.head.route

    @property
    def tenant(self) -> str | None:
        """The tenant that the path names; None for the credential's own."""
        return self.head.tenant

    @property
    def queue(self) -> str:
        """The queue that the path names."""
        return self.head.queue

    @property
    def name(self) -> str:
        """The last name of the path: a message id, key id, principal or task."""
        return self.head.name

    @property
    def body_bytes_max(self) -> int:
        """The size limit of the body, as sent and as inflated."""
        most, route = self.context.settings.body_bytes_max, self.head.route
        return most if route is None else min(most, route.body_bytes_max)

    def hold(self, size: int) -> bool:
        """Count ``size`` more bytes as held for the request; False if the limit of all requests is reached."""
        context = self.context
        if context.buffered_bytes + size > context.settings.buffered_bytes_max and not context.make_room(
            self.call.connection, size, self.held_bytes
        ):
            return False
        context.buffered_bytes += size
        self.held_bytes += size
        return True

    def hold_inflated(self, size: int) -> None:
        """Count ``size`` more bytes as held for the request. Raises Unavailable if the limit is reached."""
        if not self.hold(size):
            raise no_room()

    def release(self) -> None:
        """Release the bytes counted for the request."""
        self.context.buffered_bytes -= self.held_bytes
        self.held_bytes = 0


class QueryRequest(Request, Generic[Q]):
    """The type of a request in the signature of a handler that has query parameters, for its route to read."""

    query: Q
