"""Targets of notifications: webhooks, e-mail, and queues of tenantq servers."""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import http.client
import smtplib
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from tenantq.client import AsyncClient
from tenantq.domain.formatting import show_time
from tenantq.errors import Invalid, TenantqError
from tenantq.runtime.clock import Clock
from tenantq.service.alerts.active_alerts import Notification
from tenantq.service.alerts.settings import AlertQueue, AlertSettings, Email, Webhook

TIMEOUT_S: Final[float] = 10
"""The longest attempt, however slowly the other side answers."""
_CUT_EVERY_S: Final = 0.1
_SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # the mark of Standard Webhooks, not a secret


class DeliveryFailed(Exception):
    """A target did not accept a notification."""


class Target(Protocol):
    """Delivers notifications."""

    async def send(self, id: str, notification: Notification) -> None:
        """Deliver a notification. ``id`` stays the same when it is sent again. Raises DeliveryFailed."""


def open_targets(settings: AlertSettings, clock: Clock) -> dict[str, Target]:
    """Return all targets by name. Raises Invalid if the file of a secret cannot be read."""
    targets: dict[str, Target] = {}
    for name, webhook in settings.webhooks.items():
        targets[name] = WebhookTarget(webhook, f"alerts.webhooks.{name}", clock)
    for name, email in settings.emails.items():
        targets[name] = EmailTarget(email, f"alerts.emails.{name}")
    for name, queue in settings.queues.items():
        targets[name] = QueueTarget(queue, f"alerts.queues.{name}")
    return targets


def sentence(notification: Notification) -> str:
    """Return a notification as one line for people."""
    names = {"tenant": notification.tenant, "queue": notification.queue}
    place = " ".join(f"{what} {name}" for what, name in names.items() if name)
    state = {"firing": notification.severity, "resolved": "resolved", "test": "test"}[notification.status]
    return f"[{state}] {f'{place}: ' if place else ''}{notification.text}"


class WebhookTarget:
    """Posts JSON with the three headers of Standard Webhooks: ID, time and signature."""

    def __init__(self, settings: Webhook, place: str, clock: Clock) -> None:
        self._url, self._clock = urlsplit(settings.url), clock
        self._secret = _signing_key(_read_secret(settings.secret_file, f"{place}.secret_file"), place)

    async def send(self, id: str, notification: Notification) -> None:
        """Post a notification. Every status from 200 to 299 is a success.

        It is signed with the time of the attempt: receivers refuse signatures that are older than a few minutes.
        """
        body = msgspec.json.encode(notification)
        headers = self._headers(id, self._clock.wall_ms() // 1_000, body)
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=TIMEOUT_S)
        await _in_time(connection.host, connection, lambda: self._post(connection, body, headers))

    def _headers(self, id: str, at_s: int, body: bytes) -> dict[str, str]:
        signed = hmac.digest(self._secret, b"%s.%d.%s" % (id.encode(), at_s, body), hashlib.sha256)
        return {
            "Content-Type": "application/json",
            "User-Agent": "tenantq",
            "webhook-id": id,
            "webhook-timestamp": str(at_s),
            "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
        }

    def _post(self, connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]) -> None:
        url, host = self._url, connection.host
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        try:
            connection.request("POST", path, body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise DeliveryFailed(f"{host} does not answer: {error}") from error
        finally:
            connection.close()
        if not 200 <= status < 300:
            raise DeliveryFailed(f"{host} answered with status {status}")


class EmailTarget:
    """Sends one e-mail per notification."""

    def __init__(self, settings: Email, place: str) -> None:
        self._settings = settings
        file = settings.password_file
        self._password = _read_secret(file, f"{place}.password_file") if file is not None else None

    async def send(self, id: str, notification: Notification) -> None:
        """Hand the e-mail to the SMTP server."""
        email, server = self._email(id, notification), smtplib.SMTP(timeout=TIMEOUT_S)
        await _in_time(self._settings.host, server, lambda: self._send(server, email))

    def _email(self, id: str, notification: Notification) -> EmailMessage:
        settings, email = self._settings, EmailMessage()
        email["Subject"] = f"tenantq {sentence(notification)}"[:200]
        email["From"], email["To"] = settings.sender, ", ".join(settings.recipients)
        email["Date"] = format_datetime(datetime.fromtimestamp(notification.at / 1_000, UTC))
        email["Message-ID"] = f"<{id}@{settings.sender.rpartition('@')[2]}>"  # mail servers drop repetitions
        email["Auto-Submitted"] = "auto-generated"
        lines = {
            "alert": notification.kind,
            "tenant": notification.tenant,
            "queue": notification.queue,
            "since": show_time(notification.since),
            "server": notification.server,
        }
        facts = [f"{name}: {value}" for name, value in lines.items() if value]
        email.set_content("\n".join([sentence(notification), "", *facts]))
        return email

    def _send(self, server: smtplib.SMTP, email: EmailMessage) -> None:
        settings = self._settings
        try:
            server._host = settings.host  # type: ignore[attr-defined]  # noqa: SLF001  # whose certificate starttls checks; connect leaves it out
            server.connect(settings.host, settings.port)
            with server:
                if settings.starttls:
                    server.starttls(context=ssl.create_default_context())
                if settings.user is not None and self._password is not None:
                    server.login(settings.user, self._password)
                server.send_message(email)
        except (OSError, smtplib.SMTPException) as error:
            raise DeliveryFailed(f"SMTP server {settings.host}: {error}") from error


class QueueTarget:
    """Adds each notification to a queue. The ID is the idempotency key, so that a repetition adds nothing."""

    def __init__(self, settings: AlertQueue, place: str) -> None:
        self._settings = settings
        self._token = _read_secret(settings.token_file, f"{place}.token_file")

    async def send(self, id: str, notification: Notification) -> None:
        """Add the notification as JSON."""
        settings = self._settings
        try:
            async with AsyncClient(settings.url, token=self._token) as client:
                scope = client.tenant(settings.tenant) if settings.tenant is not None else client
                await scope.queue(settings.queue).add(msgspec.to_builtins(notification), key=id)
        except (OSError, TenantqError) as error:
            raise DeliveryFailed(f"queue {settings.queue} at {settings.url}: {error}") from error


async def _in_time(host: str, connection: http.client.HTTPConnection | smtplib.SMTP, work: Callable[[], None]) -> None:
    """Run ``work`` on a thread. Cut its connection, which ends it, after ``TIMEOUT_S`` or if the caller is cancelled."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    timeout_s, is_cut, cancelled = TIMEOUT_S, False, False
    while not working.done():
        try:
            await asyncio.wait({working}, timeout=timeout_s)
        except asyncio.CancelledError:
            cancelled = True
        if not working.done():
            _cut(connection)
            timeout_s, is_cut = _CUT_EVERY_S, True  # it may not have been connected yet
    error = working.exception()
    if cancelled:
        raise asyncio.CancelledError
    if is_cut and isinstance(error, DeliveryFailed):
        raise DeliveryFailed(f"{host} did not answer within {TIMEOUT_S} s") from error
    if error is not None:
        raise error


def _cut(connection: http.client.HTTPConnection | smtplib.SMTP) -> None:
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # an SSL socket's own would interfere with the thread


def _read_secret(file: str, place: str) -> str:
    try:
        found = Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise Invalid(f"{place}: cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Invalid(f"{place}: {file} is not text in UTF-8") from error
    if not found:
        raise Invalid(f"{place}: {file} is empty")
    return found


def _signing_key(secret: str, place: str) -> bytes:
    if not secret.startswith(_SECRET_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise Invalid(f"{place}.secret_file: not base64 after {_SECRET_PREFIX}") from error
