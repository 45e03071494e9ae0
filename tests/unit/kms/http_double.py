"""A local HTTP server that replaces a key management service: it records every request and answers from a script."""

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


class RecordedRequest(NamedTuple):
    """A request that was received."""

    method: str
    path: str  # without the query
    query: str
    headers: dict[str, str]  # lower-case names
    body: bytes

    @property
    def json(self) -> Any:
        """The body, if it is JSON."""
        return json.loads(self.body) if self.body else None


class Answer(NamedTuple):
    """The response to send."""

    status: int
    body: Any = None  # bytes are sent unchanged, everything else as JSON
    headers: Mapping[str, str] = MappingProxyType({})


class HttpDouble:
    """A server whose ``answer`` is a function. ``faults`` come first, one for each request."""

    def __init__(self, answer: Callable[[RecordedRequest], Answer]) -> None:
        self.answer = answer
        self.faults: list[Answer | str] = []  # "reset" breaks the connection, "hang" gives no answer in time
        self.requests: list[RecordedRequest] = []
        self.wrong: list[str] = []  # errors in the received calls
        self.over = threading.Event()
        self.port = 0

    def respond(self, request: RecordedRequest) -> Answer | None:
        """Return the response to send; None means none."""
        self.requests.append(request)
        if self.faults:
            fault = self.faults.pop(0)
            if fault == "hang":
                self.over.wait(20)
                return None
            return fault if isinstance(fault, Answer) else None
        try:
            return self.answer(request)
        except AssertionError as error:
            self.wrong.append(f"{request.method} {request.path}: {error}")
            return None


@contextmanager
def serving(double: HttpDouble, tls: ssl.SSLContext | None = None) -> Iterator[HttpDouble]:
    """Serve on a free local port until the block ends, and then check that no call was invalid."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # otherwise a body waits until the client has confirmed the headers

        def log_message(self, *_: object) -> None:
            pass

        def _handle(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            path, _, query = self.path.partition("?")
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = double.respond(RecordedRequest(self.command, path, query, headers, self.rfile.read(length)))
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
