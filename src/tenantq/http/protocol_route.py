"""Routes where another protocol is spoken over HTTP: all of the head is kept, the body is left as it is, and every answer is the protocol's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

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


class ProtocolHead(msgspec.Struct, frozen=True):
    """A request line and all headers, by their names in lower case; one that came several times has its values in one."""

    method: bytes
    target: bytes  # path and query, as sent
    headers: dict[bytes, bytes]
    is_secure: bool = False  # the client talks TLS to this very server

    @classmethod
    def of(
        cls,
        method: bytes,
        target: bytes,
        known: dict[bytes, bytes],
        others: list[tuple[bytes, bytes]],
        *,
        is_secure: bool,
    ) -> ProtocolHead:
        """Return the head of which some headers are known by name already."""
        headers = dict(known)
        for spelled, value in others:
            name = spelled.lower()
            before = headers.get(name)
            headers[name] = value if before is None else before + b"," + value
        return cls(method, target, headers, is_secure)


class ProtocolRoute(Route):
    """A method and path of another protocol."""

    __slots__ = ("serve",)

    def __init__(self, method: str, path: str, serve: Serve, summary: str) -> None:
        super().__init__(method, path, _nobody, summary, tag="foreign", body_bytes_max=LIST_BODY_BYTES_MAX)
        self.serve = serve


async def _nobody(service: Service, request: Request, body: object) -> Reply:  # noqa: ARG001  # it serves nobody
    raise AssertionError("a foreign route serves by itself")
