"""Heads that were parsed before. Clients send the same one again and again, so reading it twice is work for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.http.route import Route

if TYPE_CHECKING:
    from tenantq.http.request import Request

HEADS_MAX: Final = 1_024
HEAD_BYTES_MAX: Final = 1_024
HEAD_END: Final = b"\r\n\r\n"


class KnownHead(msgspec.Struct, frozen=True):
    """What a request line and its headers said, byte for byte the same ones; never one with an id of its own."""

    route: Route
    tenant: str | None
    queue: str
    name: str
    raw_query: bytes
    accept_encoding: bytes
    encoding: bytes
    head_only: bool
    bearer: str | None
    user_agent: str
    length: int  # of the body


class KnownHeads:
    """A bounded memory of heads, shared by the connections of a listener; when it is full it starts anew."""

    __slots__ = ("_heads", "get")

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}
        self.get = self._heads.get  # by the bytes up to the empty line, and including it

    def __len__(self) -> int:
        return len(self._heads)

    def remember(self, data: bytes, request: Request, length: int) -> None:
        """Keep the head of ``data`` if that is nothing but one whole request with a body of ``length``."""
        end = data.find(HEAD_END) + len(HEAD_END)
        if end > HEAD_BYTES_MAX or len(data) - end != length:
            return
        assert request.route is not None
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        self._heads[data[:end]] = KnownHead(
            request.route,
            request.tenant,
            request.queue,
            request.name,
            request.raw_query,
            request.accept_encoding,
            request.encoding,
            request.head_only,
            request.call.bearer,
            request.call.user_agent,
            length,
        )
