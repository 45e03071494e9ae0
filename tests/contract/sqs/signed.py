"""Requests signed by botocore, of which tests can change every part."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import msgspec
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.contract.sqs.sqs_server import REGION

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.wire.access import CreatedKey

JSON = "application/x-amz-json-1.0"
FORM = "application/x-www-form-urlencoded"


class Answer(msgspec.Struct):
    """A reply."""

    status: int
    headers: dict[str, str]
    body: bytes


def sign(
    key: CreatedKey,
    method: str,
    url: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    *,
    service: str = "sqs",
    token: str | None = None,
) -> AWSRequest:
    """Return a request with a signature in its headers."""
    request = AWSRequest(method, url, data=body, headers=headers or {})
    SigV4Auth(Credentials(key.key_id, key.secret, token), service, REGION).add_auth(request)
    return request


def presign(key: CreatedKey, method: str, url: str, expires_s: int = 60) -> str:
    """Return a URL with a signature in it."""
    request = AWSRequest(method, url)
    SigV4QueryAuth(Credentials(key.key_id, key.secret), "sqs", REGION, expires_s).add_auth(request)
    signed: str = request.url
    return signed


def send(request: AWSRequest, change: Callable[[dict[str, str]], None] | None = None) -> Answer:
    """Send a request as it is; tests may change its headers after signing."""
    headers = dict(request.headers.items())
    if change is not None:
        change(headers)
    return fetch(request.method, request.url, request.data or b"", headers)


def send_at_once(requests: list[AWSRequest]) -> list[Answer]:
    """Send several requests, each on its own connection, before reading any reply."""
    connections = [_connect(request.url) for request in requests]
    try:
        for request, connection in zip(requests, connections, strict=True):
            connection.request(request.method, _target(request.url), request.data or b"", dict(request.headers.items()))
        return [_answer(connection) for connection in connections]
    finally:
        for connection in connections:
            connection.close()


def fetch(method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
    """Send a request without a signature."""
    connection = _connect(url)
    try:
        connection.request(method, _target(url), body, headers or {})
        return _answer(connection)
    finally:
        connection.close()


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    connection.connect()
    return connection


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"


def _answer(connection: http.client.HTTPConnection) -> Answer:
    reply = connection.getresponse()
    return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())


def json_call(key: CreatedKey, url: str, action: str, /, **parameters: Any) -> AWSRequest:
    """Return a signed call of the JSON protocol."""
    headers = {"Content-Type": JSON, "X-Amz-Target": f"AmazonSQS.{action}"}
    return sign(key, "POST", url, msgspec.json.encode(parameters), headers)


def query_call(key: CreatedKey, url: str, action: str, /, **parameters: Any) -> AWSRequest:
    """Return a signed call of the Query protocol."""
    form = {"Action": action, "Version": "2012-11-05", **parameters}
    return sign(key, "POST", url, urlencode(form).encode(), {"Content-Type": FORM})
