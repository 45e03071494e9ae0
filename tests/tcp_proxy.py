"""A proxy between a client and a server of this machine."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_RESET = struct.pack("ii", 1, 0)
"""Makes a close send an RST."""


class TcpProxy:
    """Accepts connections on loopback, and connects each to the server at ``target``."""

    def __init__(self, target: int, forward: Callable[[socket.socket, socket.socket, bool], None]) -> None:
        """Start. ``forward`` copies bytes from one socket to another until one ends; True: towards the server."""
        self.target = target
        self._forward = forward
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End everything."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        _reset(*self.open)
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            self.open += [client, server]
            for one, other, is_request in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._run, args=(one, other, is_request), daemon=True).start()

    def _run(self, one: socket.socket, other: socket.socket, is_request: bool) -> None:  # noqa: FBT001  # of a thread
        with contextlib.suppress(OSError):
            self._forward(one, other, is_request)
        _reset(one, other)


def _reset(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            one.shutdown(socket.SHUT_RDWR)
        one.close()
