"""A proxy that cuts connections at a chosen point."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal

Cut = Literal["request", "answer", "end of answer"]
READY_BYTES = 6
"""Length of the message that ends an answer."""


class CuttingProxy:
    """Passes bytes to a PostgreSQL server. ``cut`` makes the next request, its answer, or the end of the answer disappear."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._cut: Cut | None = None
        self.cuts = 0
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address as ``--store`` takes it."""
        return f"postgresql://test@127.0.0.1:{self.port}/postgres"

    def cut(self, what: Cut) -> None:
        """Cut the next exchange on any connection."""
        self._cut = what

    def close(self) -> None:
        """End everything."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one in self._open:
            _end(one)
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open += [client, server]
            threading.Thread(target=self._pass_requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self._pass_answers, args=(server, client), daemon=True).start()

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                if self._cut == "request":
                    self._done()
                    break
                server.sendall(data)
        _end(client, server)

    def _pass_answers(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                if self._cut in {"answer", "end of answer"}:
                    if self._cut == "end of answer":
                        client.sendall(data[:-READY_BYTES])
                    self._done()
                    break
                client.sendall(data)
        _end(client, server)

    def _done(self) -> None:
        self._cut = None
        self.cuts += 1


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
