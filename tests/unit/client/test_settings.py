"""Client settings: an invalid address or argument is named at once, and no text shows the token."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tenantq import errors
from tenantq.client import AsyncClient, Client, Retries, Tls
from tenantq.client.problems import BY_CODE, from_reply
from tenantq.errors import Forbidden, Invalid, QuotaExceeded, RateLimited, TenantqError, Unauthenticated, Unavailable
from tests.unit.client.doubles import make_settings, problem, reply


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://localhost:7070", "http://localhost:7070"),
        ("http://localhost", "http://localhost:80"),
        ("https://queue.example/", "https://queue.example:443"),
        ("https://queue.example:1/behind/it/", "https://queue.example:1/behind/it"),
        ("http://[::1]:7070", "http://[::1]:7070"),
    ],
)
def test_addresses_are_parsed(url: str, shown: str) -> None:
    """Host, port and the path before /v1."""
    assert make_settings(url).url == shown


@pytest.mark.parametrize(
    "url",
    ["", "localhost:7070", "ftp://x", "http://", "http://x:port", "http://x:99999", "http://me:pw@x", "http://x/?a=1",
     "http://x/#a", "http://x/ö", "http://x/a b", "http://[::1", 7],
)  # fmt: skip
def test_an_invalid_address_is_refused(url: Any) -> None:
    """The error shows a valid example."""
    with pytest.raises(Invalid, match="url") as caught:
        make_settings(url)
    assert "like for example" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "two words", "line\r\nbreak", "ümlaut", 7])
def test_an_invalid_token_is_refused_without_showing_it(token: Any) -> None:
    """It could otherwise inject headers or leak into a log."""
    with pytest.raises(Invalid) as caught:
        make_settings(token=token)
    assert not token or str(token) not in str(caught.value)


def test_no_text_shows_the_token() -> None:
    """Neither that of settings nor those of clients, queues and tenants."""
    client = AsyncClient("http://127.0.0.1:1", token="tq_secret")  # noqa: S106  # of nobody
    shown = [
        repr(client),
        repr(client.settings),
        str(client.settings),
        repr(client.queue("a")),
        repr(client.tenant("abc")),
    ]
    assert not any("tq_secret" in text for text in shown)


@pytest.mark.parametrize(
    "wrong",
    [{"timeout_ms": 0}, {"connections": 0}, {"retries": -1}, {"retries": "many"}, {"connect_timeout_ms": 1.5}],
)
def test_an_argument_out_of_range_is_named(wrong: dict[str, Any]) -> None:
    """Nothing is sent."""
    with pytest.raises(Invalid, match=next(iter(wrong))):
        AsyncClient("http://127.0.0.1:1", **wrong)


def test_names_are_checked_before_anything_is_sent() -> None:
    """An impossible queue or tenant name is Invalid."""
    client = AsyncClient("http://127.0.0.1:1")
    for make in (client.queue, client.tenant, client.fleet, client.tenant("acme").queue):
        with pytest.raises(Invalid):
            make("no/such")
    with pytest.raises(Invalid):
        client.fleet("mail", tenants=["NO"])


def test_a_missing_tls_file_is_named() -> None:
    """So is a file that is not a certificate."""
    with pytest.raises(Invalid, match=r"missing\.pem"):
        AsyncClient("https://127.0.0.1:1", tls=Tls(ca_file="missing.pem"))
    with pytest.raises(Invalid, match="not a valid PEM"):
        AsyncClient("https://127.0.0.1:1", tls=Tls(ca_file=__file__))


def test_every_error_code_has_its_class() -> None:
    """The most general class with that code. An unknown code gets a class by its status."""
    every = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TenantqError)]
    assert set(BY_CODE) == {kind.code for kind in every}
    assert BY_CODE["unavailable"] is Unavailable
    assert BY_CODE["forbidden"] is Forbidden
    assert BY_CODE["rate_limited"] is RateLimited
    assert BY_CODE["internal"] is TenantqError
    for code, kind in BY_CODE.items():
        answer = problem(code, kind.status, "text", tenant="acme", queue="mail", request_id="r-1")
        error = from_reply(answer.status, answer.headers, answer.body)
        assert type(error) is kind
        assert (error.message, error.tenant, error.queue) == ("text", "acme", "mail")
        assert error.__notes__ == ["request id: r-1"]
    unknown = problem("brand_new", 403)
    assert type(from_reply(403, {}, unknown.body)) is Forbidden


def test_a_limit_error_has_its_figures() -> None:
    """The limit, the current value and when to retry."""
    answer = problem("quota_exceeded", 429, limit=10, current=10, retry_after_ms=1_500)
    error = from_reply(429, {"retry-after": "2"}, answer.body)
    assert isinstance(error, QuotaExceeded)
    assert (error.limit, error.current, error.retry_after_ms) == (10, 10, 1_500)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, Invalid),
        (401, Unauthenticated),
        (429, RateLimited),
        (500, TenantqError),
        (502, Unavailable),
        (418, Invalid),
    ],
)
def test_an_error_page_of_a_proxy_is_typed_by_its_status(status: int, kind: type[TenantqError]) -> None:
    """It is not a problem document."""
    answer = reply("<html>", status)
    assert type(from_reply(status, {}, answer.body)) is kind


def test_an_invalid_retry_after_is_ignored() -> None:
    """A date, a fraction or text."""
    for text in ("Fri, 31 Dec 1999 23:59:59 GMT", "1.5", "-1", "٣", "9" * 30, ""):
        error = from_reply(503, {"retry-after": text}, b"")
        assert isinstance(error, Unavailable)
        assert error.retry_after_ms == 0


def test_a_client_can_be_created_from_another_clients_settings() -> None:
    """For a worker, or for the other kind of client."""
    settings = make_settings("http://127.0.0.1:1", retries=Retries(count=7))
    with Client(settings=settings) as client:
        assert client.settings is settings
        assert AsyncClient(settings=client.settings).settings.retries.count == 7


@pytest.mark.parametrize("wrong", [{"count": -1}, {"base_ms": -5}, {"max_ms": -1}, {"count": 1.5}])
def test_invalid_retry_settings_are_refused_at_creation(wrong: dict[str, Any]) -> None:
    """By name, before a call fails."""
    with pytest.raises(Invalid, match=next(iter(wrong))):
        Retries(**wrong)


def test_importing_the_client_imports_neither_engine_nor_store() -> None:
    """The process of a producer stays small."""
    code = (
        "import sys, tenantq.client, tenantq.worker\n"
        "heavy = [name for name in sys.modules if name.startswith(('rocksdict', 'tenantq.engine', 'tenantq.store', "
        "'tenantq.http', 'tenantq.service'))]\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
