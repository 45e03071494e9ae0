"""Targets, over real connections: a webhook receiver, an SMTP server, a tenantq server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.policy import default
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from standardwebhooks import Webhook as StandardWebhook

from tenantq.client import AsyncClient
from tenantq.errors import Invalid
from tenantq.runtime.clock import SystemClock
from tenantq.service.alerts import targets
from tenantq.service.alerts.active_alerts import Notification
from tenantq.service.alerts.settings import AlertQueue, AlertSettings, Email, Webhook
from tenantq.service.alerts.targets import DeliveryFailed, open_targets
from tests.contract.http.certificates import Authority
from tests.contract.http.real_server import ADMIN, real_server
from tests.redis_servers import free_port

SECRET = "whsec_" + base64.b64encode(b"a secret of this test only").decode()
NOTIFICATION = Notification(
    status="firing",
    kind="quota",
    severity="critical",
    tenant="acme",
    queue="mail",
    text="quota backlog: 10 of 10 in use (threshold 90 %)",
    since=1_700_000_000_000,
    at=1_700_000_000_000,
    server="tenantq",
)


@contextmanager
def receiver(status: int) -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """Serve a webhook that replies with ``status``; yields its URL and what it received."""
    got: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?team=ops", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def secret_file(directory: Path, text: str) -> str:
    """Write a secret to a file and return its path."""
    path = directory / "secret"
    path.write_text(text + "\n")
    return str(path)


def target(**fields: Any) -> Any:
    """Return the only target of these settings."""
    return open_targets(AlertSettings(**fields), SystemClock())["one"]


async def test_webhook_signature_follows_standard_webhooks(tmp_path: Path) -> None:
    """The reference implementation accepts it, and refuses another body and old times."""
    with receiver(204) as (url, got):
        webhook = target(webhooks={"one": Webhook(url=url, secret_file=secret_file(tmp_path, SECRET))})
        await webhook.send("msg_1", NOTIFICATION)  # from 2023: a delivery that was repeated, signed now
    [(headers, body)] = got
    assert headers["webhook-id"] == "msg_1"
    assert StandardWebhook(SECRET).verify(body, headers)["tenant"] == "acme"
    with pytest.raises(Exception, match="No matching signature"):
        StandardWebhook(SECRET).verify(body.replace(b"acme", b"evil"), headers)


async def test_failed_webhook_delivery_says_why(tmp_path: Path) -> None:
    """The receiver refuses it or is unreachable."""
    file = secret_file(tmp_path, "any text")
    with receiver(500) as (url, _):
        webhook = target(webhooks={"one": Webhook(url=url, secret_file=file)})
        with pytest.raises(DeliveryFailed, match=r"127\.0\.0\.1 answered with status 500"):
            await webhook.send("msg_1", NOTIFICATION)
    with pytest.raises(DeliveryFailed, match="does not answer"):
        await webhook.send("msg_1", NOTIFICATION)


@contextmanager
def endless(greeting: bytes) -> Iterator[tuple[int, threading.Event]]:
    """Accept connections, set an event, send ``greeting``, and then one byte before each timeout of the client."""
    stopped, accepted = threading.Event(), threading.Event()
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                accepted.set()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(greeting)
                    while not stopped.wait(0.05):
                        connection.sendall(b"a")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1], accepted
    finally:
        stopped.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@pytest.mark.parametrize("kind", ["webhook", "email"])
async def test_endless_reply_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A timeout per byte would wait as long as the other side wants."""
    monkeypatch.setattr(targets, "TIMEOUT_S", 0.3)
    with endless(b"HTTP/1.1 " if kind == "webhook" else b"220-") as (port, _):
        if kind == "webhook":
            url = f"http://127.0.0.1:{port}/"
            one = target(webhooks={"one": Webhook(url=url, secret_file=secret_file(tmp_path, SECRET))})
        else:
            sender, recipients = "q@example.org", ("ops@example.org",)
            email = Email(host="127.0.0.1", port=port, starttls=False, sender=sender, recipients=recipients)
            one = target(emails={"one": email})
        with pytest.raises(DeliveryFailed, match=r"127\.0\.0\.1 did not answer within 0\.3 s"):
            await asyncio.wait_for(one.send("msg_1", NOTIFICATION), 30)


async def test_stop_does_not_wait_for_a_target(tmp_path: Path) -> None:
    """Cancelling a delivery ends its thread."""
    with endless(b"HTTP/1.1 ") as (port, accepted):
        url = f"http://127.0.0.1:{port}/"
        one = target(webhooks={"one": Webhook(url=url, secret_file=secret_file(tmp_path, SECRET))})
        sending = asyncio.ensure_future(one.send("msg_1", NOTIFICATION))
        await asyncio.to_thread(accepted.wait)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 8)


class Mailbox:
    """Keeps what an SMTP server receives."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:  # noqa: N802  # aiosmtpd's name
        """Accept an e-mail."""
        self.received.append(envelope.content)
        return "250 OK"


async def test_email_reaches_its_recipients() -> None:
    """Subject and text say what happened, to whom, and since when."""
    mailbox = Mailbox()
    controller = Controller(mailbox, hostname="127.0.0.1", port=(port := free_port()))
    controller.start()
    email = Email(host="127.0.0.1", port=port, starttls=False, sender="q@example.org", recipients=("ops@example.org",))
    try:
        await target(emails={"one": email}).send("msg_1", NOTIFICATION)
    finally:
        controller.stop()
    [raw] = mailbox.received
    received = message_from_bytes(raw, policy=default)
    assert received["Subject"] == f"tenantq [critical] tenant acme queue mail: {NOTIFICATION.text}"
    assert (received["To"], received["From"]) == ("ops@example.org", "q@example.org")
    body = received.get_body()
    assert body is not None
    text = body.get_content()
    assert "tenant: acme" in text
    assert "since: 2023-11-14" in text
    with pytest.raises(DeliveryFailed, match=r"SMTP server 127\.0\.0\.1"):
        await target(emails={"one": email}).send("msg_1", NOTIFICATION)


async def test_email_is_encrypted_and_keeps_its_id_when_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate of the SMTP server is checked against its name."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("mail.example")  # and 127.0.0.1
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    mailbox = Mailbox()
    controller = Controller(
        mailbox, hostname="127.0.0.1", port=(port := free_port()), tls_context=context, require_starttls=True
    )
    controller.start()
    email = Email(host="127.0.0.1", port=port, sender="q@example.org", recipients=("ops@example.org",))
    other = Email(host="localhost", port=port, sender="q@example.org", recipients=("ops@example.org",))
    try:
        for _ in range(2):
            await target(emails={"one": email}).send("msg_1", NOTIFICATION)
        with pytest.raises(DeliveryFailed, match="certificate"):
            await target(emails={"one": other}).send("msg_1", NOTIFICATION)
    finally:
        controller.stop()
    assert [message_from_bytes(raw)["Message-ID"] for raw in mailbox.received] == ["<msg_1@example.org>"] * 2


async def test_queue_target_gets_a_notification_once(tmp_path: Path) -> None:
    """A repetition with the same ID adds nothing."""
    async with real_server(tmp_path / "data") as server:
        url, file = f"http://127.0.0.1:{server.port}", secret_file(tmp_path, ADMIN)
        one = target(queues={"one": AlertQueue(url=url, token_file=file, tenant="default", queue="alerts")})
        await one.send("msg_1", NOTIFICATION)
        await one.send("msg_1", NOTIFICATION)
        async with AsyncClient(url, token=ADMIN) as client:
            [message] = await client.tenant("default").queue("alerts").poll(max=10)
        assert message.json()["text"] == NOTIFICATION.text
    with pytest.raises(DeliveryFailed, match="queue alerts at"):
        await one.send("msg_2", NOTIFICATION)


def test_unreadable_secret_is_refused(tmp_path: Path) -> None:
    """The error names the setting."""
    missing = Webhook(url="http://127.0.0.1/", secret_file=str(tmp_path / "none"))
    with pytest.raises(Invalid, match=r"alerts\.webhooks\.one\.secret_file: cannot read"):
        target(webhooks={"one": missing})
    empty = Webhook(url="http://127.0.0.1/", secret_file=secret_file(tmp_path, ""))
    with pytest.raises(Invalid, match="is empty"):
        target(webhooks={"one": empty})
    wrong = Webhook(url="http://127.0.0.1/", secret_file=secret_file(tmp_path, "whsec_?"))
    with pytest.raises(Invalid, match="not base64 after whsec_"):
        target(webhooks={"one": wrong})
