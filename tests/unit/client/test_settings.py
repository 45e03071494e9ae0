"""Settings: a wrong address or argument is named at once, and no text ever shows the token."""

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
def test_an_address_is_understood(url: str, shown: str) -> None:
    """Host, port and what stands before /v1."""
    assert make_settings(url).url == shown


@pytest.mark.parametrize(
    "url",
    ["", "localhost:7070", "ftp://x", "http://", "http://x:port", "http://x:99999", "http://me:pw@x", "http://x/?a=1",
     "http://x/#a", "http://x/ö", "http://x/a b", "http://[::1", 7],
)  # fmt: skip
def test_a_wrong_address_is_refused_by_name(url: Any) -> None:
    """With an example of a right one."""
    with pytest.raises(Invalid, match="url") as caught:
        make_settings(url)
    assert "like for example" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "two words", "line\r\nbreak", "ümlaut", 7])
def test_a_wrong_token_is_refused_without_showing_it(token: Any) -> None:
    """It could otherwise smuggle headers in, or leak into a log."""
    with pytest.raises(Invalid) as caught:
        make_settings(token=token)
    assert not token or str(token) not in str(caught.value)


def test_no_text_shows_the_token() -> None:
    """Neither of settings, nor of clients, queues and tenants."""
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
    """Before anything is sent."""
    with pytest.raises(Invalid, match=next(iter(wrong))):
        AsyncClient("http://127.0.0.1:1", **wrong)


def test_names_are_checked_before_anything_is_sent() -> None:
    """A queue or tenant name that cannot be is Invalid."""
    client = AsyncClient("http://127.0.0.1:1")
    for make in (client.queue, client.tenant, client.fleet, client.tenant("acme").queue):
        with pytest.raises(Invalid):
            make("no/such")
    with pytest.raises(Invalid):
        client.fleet("mail", tenants=["NO"])


def test_a_tls_file_that_is_not_there_is_named() -> None:
    """So are those that are no certificates."""
    with pytest.raises(Invalid, match=r"missing\.pem"):
        AsyncClient("https://127.0.0.1:1", tls=Tls(ca_file="missing.pem"))
    with pytest.raises(Invalid, match="not a valid PEM"):
        AsyncClient("https://127.0.0.1:1", tls=Tls(ca_file=__file__))


def test_every_code_has_its_class() -> None:
    """The most general one that has it; and one that this client does not know yet, by its status."""
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


def test_a_limit_tells_its_figures() -> None:
    """Limit, current and when to come back."""
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
def test_an_answer_from_something_in_between_is_typed_by_its_status(status: int, kind: type[TenantqError]) -> None:
    """A proxy's error page is no problem document."""
    answer = reply("<html>", status)
    assert type(from_reply(status, {}, answer.body)) is kind


def test_retry_after_that_makes_no_sense_is_passed_over() -> None:
    """A date, a fraction, a joke."""
    for text in ("Fri, 31 Dec 1999 23:59:59 GMT", "1.5", "-1", "٣", "9" * 30, ""):
        error = from_reply(503, {"retry-after": text}, b"")
        assert isinstance(error, Unavailable)
        assert error.retry_after_ms == 0


def test_a_client_can_be_made_of_anothers_settings() -> None:
    """For a worker, or for the other face."""
    settings = make_settings("http://127.0.0.1:1", retries=Retries(count=7))
    with Client(settings=settings) as client:
        assert client.settings is settings
        assert AsyncClient(settings=client.settings).settings.retries.count == 7


@pytest.mark.parametrize("wrong", [{"count": -1}, {"base_ms": -5}, {"max_ms": -1}, {"count": 1.5}])
def test_retries_that_make_no_sense_are_refused_when_they_are_made(wrong: dict[str, Any]) -> None:
    """By name, before a call has failed."""
    with pytest.raises(Invalid, match=next(iter(wrong))):
        Retries(**wrong)


def test_importing_the_client_brings_in_neither_the_engine_nor_the_store() -> None:
    """A producer's process stays small."""
    code = (
        "import sys, tenantq.client, tenantq.worker\n"
        "heavy = [name for name in sys.modules if name.startswith(('rocksdict', 'tenantq.engine', 'tenantq.store', "
        "'tenantq.http', 'tenantq.service'))]\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
