"""Requests as a client of one's own would send them: signed by botocore, every part of them in the test's hand."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import msgspec
from botocore.auth import SigV4Auth, SigV4QueryAuth  # type: ignore[import-untyped]  # it has none
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]  # it has none
from botocore.credentials import Credentials  # type: ignore[import-untyped]  # it has none

from tests.contract.sqs.sqs_server import REGION

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.wire import CreatedKey

JSON = "application/x-amz-json-1.0"
FORM = "application/x-www-form-urlencoded"


class Answer(msgspec.Struct):
    """What came back."""

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
    """Send a request as it is, its headers changed after they were signed where the test wants that."""
    headers = dict(request.headers.items())
    if change is not None:
        change(headers)
    return fetch(request.method, request.url, request.data or b"", headers)


def fetch(method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
    """Send a request without a signature of its own."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    try:
        connection.request(
            method, f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}", body, headers or {}
        )
        reply = connection.getresponse()
        return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
    finally:
        connection.close()


def json_call(key: CreatedKey, url: str, action: str, /, **parameters: Any) -> AWSRequest:
    """Return a signed call of the JSON protocol."""
    headers = {"Content-Type": JSON, "X-Amz-Target": f"AmazonSQS.{action}"}
    return sign(key, "POST", url, msgspec.json.encode(parameters), headers)


def query_call(key: CreatedKey, url: str, action: str, /, **parameters: Any) -> AWSRequest:
    """Return a signed call of the Query protocol."""
    form = {"Action": action, "Version": "2012-11-05", **parameters}
    return sign(key, "POST", url, urlencode(form).encode(), {"Content-Type": FORM})
