"""Local endpoints that check usage events like OpenMeter's and Lago's do: fields, types, unique IDs, and values to sum up."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

METRICS = ("operations", "messages_in", "messages_out", "bytes_in", "bytes_out", "byte_hours")


class BillingServices:
    """What the services have accepted."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.known: set[tuple[str, ...]] = set()
        self.openmeter: Counter[tuple[str, str, str]] = Counter()  # by tenant, metric and month: the sum
        self.lago: Counter[tuple[str, str, str]] = Counter()

    def send(self, kind: str, lines: Iterable[str]) -> list[int]:
        """Send an export, a request per line, and return the answers' codes."""
        path, content = {
            "openmeter": ("/api/v1/events", "application/cloudevents+json"),
            "lago": ("/api/v1/events/batch", "application/json"),
        }[kind]
        found = []
        for line in lines:
            connection = http.client.HTTPConnection("127.0.0.1", self._port)
            connection.request("POST", path, line.encode(), {"Content-Type": content})
            found.append(connection.getresponse().status)
            connection.close()
        return found

    def ingest(self, event: dict[str, Any]) -> int:
        """Accept a CloudEvent. One with a known source and ID is accepted too, but does not count."""
        if not all(event.get(name) for name in ("id", "source", "specversion", "type", "subject")):
            return 400
        if event["specversion"] != "1.0" or not isinstance(event.get("data"), dict):
            return 400
        month = _month(datetime.fromisoformat(event["time"]))
        values = {name: float(event["data"][name]) for name in METRICS}  # a meter needs its property in every event
        if ("openmeter", event["source"], event["id"]) not in self.known:
            self.known.add(("openmeter", event["source"], event["id"]))
            for name, value in values.items():
                self.openmeter[event["subject"], name, month] += Decimal(str(value))  # type: ignore[assignment]
        return 204

    def ingest_batch(self, body: dict[str, Any]) -> int:
        """Accept a batch for Lago, or refuse it as a whole."""
        events = body["events"]
        if not 1 <= len(events) <= 100:
            return 422
        ids = [("lago", one["external_subscription_id"], one["transaction_id"]) for one in events]
        wrong = [
            one for one in events
            if one["code"] not in METRICS or not isinstance(one["timestamp"], int)
            or not all(isinstance(value, str) for value in one["properties"].values())
        ]  # fmt: skip
        if wrong or len(set(ids)) < len(ids) or self.known & set(ids):
            return 422
        self.known.update(ids)
        for one in events:
            month = _month(datetime.fromtimestamp(one["timestamp"], UTC))
            self.lago[one["external_subscription_id"], one["code"], month] += Decimal(one["properties"]["value"])  # type: ignore[assignment]
        return 200


def _month(at: datetime) -> str:
    return f"{at:%Y-%m}"


@contextmanager
def billing_services() -> Iterator[BillingServices]:
    """Serve both endpoints."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that http.server calls
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                code = services.ingest_batch(body) if self.path.endswith("/batch") else services.ingest(body)
            except (KeyError, TypeError, ValueError):
                code = 400
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    services = BillingServices(server.server_port)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield services
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
