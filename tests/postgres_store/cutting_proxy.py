"""A proxy that cuts connections at a chosen point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    import socket

Cut = Literal["request", "answer", "end of answer"]
READY_BYTES = 6
"""Length of the message that ends an answer."""


class CuttingProxy:
    """Passes bytes to a PostgreSQL server. ``cut`` makes the next request, its answer, or the end of the answer disappear."""

    def __init__(self, port: int) -> None:
        self._cut: Cut | None = None
        self.cuts = 0
        self._proxy = TcpProxy(port, self._forward)

    @property
    def url(self) -> str:
        """The address as ``--store`` takes it."""
        return f"postgresql://test@127.0.0.1:{self._proxy.port}/postgres"

    def cut(self, what: Cut) -> None:
        """Cut the next exchange on any connection."""
        self._cut = what

    def close(self) -> None:
        """End everything."""
        self._proxy.close()

    def _forward(self, one: socket.socket, other: socket.socket, is_request: bool) -> None:  # noqa: FBT001  # as called
        while data := one.recv(1 << 20):
            cut = self._cut
            if cut is not None and (cut == "request") == is_request:
                if cut == "end of answer":
                    other.sendall(data[:-READY_BYTES])
                self._cut = None
                self.cuts += 1
                return
            other.sendall(data)
