"""An HTTP server on this machine that stands in for a key management's: it notes every request and answers as it is told."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping


class Asked(NamedTuple):
    """A request that came in."""

    method: str
    path: str  # without the query
    query: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        """The body, if it is JSON."""
        return json.loads(self.body) if self.body else None


class Answer(NamedTuple):
    """What goes back."""

    status: int
    body: Any = None  # bytes as they are, everything else as JSON
    headers: Mapping[str, str] = MappingProxyType({})


class Double:
    """A server whose ``answer`` is a function. ``faults`` come first, one for each request."""

    def __init__(self, answer: Callable[[Asked], Answer]) -> None:
        self.answer = answer
        self.faults: list[Answer | str] = []  # "reset" breaks the connection, "hang" gives no answer in time
        self.asked: list[Asked] = []
        self.wrong: list[str] = []  # what a call did not do as it has to
        self.over = threading.Event()
        self.port = 0

    def respond(self, asked: Asked) -> Answer | None:
        """Return what goes back; None: nothing."""
        self.asked.append(asked)
        if self.faults:
            fault = self.faults.pop(0)
            if fault == "hang":
                self.over.wait(20)
                return None
            return fault if isinstance(fault, Answer) else None
        try:
            return self.answer(asked)
        except AssertionError as error:
            self.wrong.append(f"{asked.method} {asked.path}: {error}")
            return None


@contextmanager
def serving(double: Double, tls: ssl.SSLContext | None = None) -> Iterator[Double]:
    """Serve on a free port of this machine until the block ends; then no call may have been wrong."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits until the client has confirmed the headers

        def log_message(self, *_: object) -> None:
            pass

        def _handle(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            path, _, query = self.path.partition("?")
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = double.respond(Asked(self.command, path, query, headers, self.rfile.read(length)))
            if answer is None:
                self.close_connection = True
                return
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _handle  # noqa: N815  # the server looks for these names

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    double.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield double
    finally:
        double.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
    assert double.wrong == []
