"""Routes where another protocol is spoken over HTTP: all of the head is kept, the body is left as it is, and every answer is the protocol's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from tenantq.http.route import LIST_BODY_BYTES_MAX, Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.http.reply import Reply
    from tenantq.http.request import Request
    from tenantq.service import Service

    Serve = Callable[["Request", "Waiting"], Awaitable[Reply]]

_T = TypeVar("_T")


class Waiting(Protocol):
    """What a protocol may ask of the connection."""

    async def unless_told_to_stop(self, work: Awaitable[_T], instead: _T) -> _T:
        """Return what comes of ``work`` that may wait for long; ``instead``, if the listener closes meanwhile."""


class ProtocolRoute(Route):
    """A method and path of another protocol."""

    __slots__ = ("serve",)

    def __init__(self, method: str, path: str, serve: Serve, summary: str) -> None:
        super().__init__(method, path, _nobody, summary, tag="foreign", body_bytes_max=LIST_BODY_BYTES_MAX)
        self.serve = serve


async def _nobody(service: Service, request: Request, body: object) -> Reply:  # noqa: ARG001  # it serves nobody
    raise AssertionError("a foreign route serves by itself")
