"""TLS: encryption, client certificates, and certificates that change while the server runs."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import pytest

from tenantq.errors import Invalid
from tenantq.http import HttpListener, TlsFiles
from tests.contract.http.certificates import Authority
from tests.contract.http.raw_client import ADD, LONG_POLL, RawClient, get, until_not

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock
    from tenantq.service.service import Service
    from tests.contract.http.conftest import Connect
    from tests.contract.http.fake_service import FakeService

ServeTls = Callable[..., Awaitable[HttpListener]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return an authority that signed the server's certificate."""
    authority = Authority(tmp_path)
    authority.issue("localhost")
    return authority


@pytest.fixture
async def serve_tls(authority: Authority, fake: FakeService, clock: ManualClock) -> AsyncIterator[ServeTls]:
    """Start listeners with the server's certificate."""
    listeners: list[HttpListener] = []

    async def serve_one(**files: Any) -> HttpListener:
        listener = HttpListener(cast("Service", fake), clock=clock)
        directory = authority.directory
        files = {"certificate": str(directory / "localhost.crt"), "key": str(directory / "localhost.key"), **files}
        await listener.start("127.0.0.1", 0, TlsFiles(**files))
        listeners.append(listener)
        return listener

    yield serve_one
    for listener in listeners:
        closing = asyncio.ensure_future(listener.close())
        await asyncio.sleep(0)
        await listener.close()
        await closing


def trusting(authority: Authority, own: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """Return a client's TLS context, with or without its own certificate."""
    context = ssl.create_default_context(cafile=str(authority.path))
    if own is not None:
        context.load_cert_chain(*own)
    return context


async def serial_of(listener: HttpListener, context: ssl.SSLContext) -> str:
    """Return the serial number of the certificate that a new connection gets."""
    client = await RawClient.open(listener.port, context)
    shown: dict[str, Any] = client.writer.get_extra_info("peercert")
    assert (await client.ask(get("/healthz"))).status == 200
    await client.close()
    return str(shown["serialNumber"])


async def test_requests_over_tls(serve_tls: ServeTls, connect: Connect, authority: Authority) -> None:
    """Keep-alive, pipelining and large bodies work."""
    listener = await serve_tls()
    client = await connect(listener, trusting(authority))
    assert client.writer.get_extra_info("ssl_object").version() == "TLSv1.3"
    client.send(ADD * 20)
    for _ in range(20):
        assert (await client.reply()).status == 200
    big = b'{"messages":[{"body":"' + b"x" * 500_000 + b'"}]}'
    client.send(b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(big) + big)
    assert (await client.reply()).status == 200


async def test_old_tls_versions_are_refused(serve_tls: ServeTls, authority: Authority) -> None:
    """The minimum is TLS 1.2."""
    listener = await serve_tls()
    context = trusting(authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    client = await RawClient.open(listener.port, context)
    assert (await client.ask(get("/healthz"))).status == 200
    await client.close()
    for server in listener._tls:
        assert server.context.minimum_version == ssl.TLSVersion.TLSv1_2


async def test_plain_http_on_a_tls_port_is_closed(serve_tls: ServeTls, connect: Connect, authority: Authority) -> None:
    """The next connection is served."""
    listener = await serve_tls()
    client = await connect(listener)
    client.send(get("/healthz"))
    assert b"HTTP" not in await client.rest()
    assert (await (await connect(listener, trusting(authority))).ask(ADD)).status == 200


async def test_client_certificate_reaches_the_service(
    serve_tls: ServeTls, connect: Connect, authority: Authority, fake: FakeService
) -> None:
    """If it is optional, clients without one are served too."""
    listener = await serve_tls(client_ca=str(authority.path), verify="optional")
    with_one = await connect(listener, trusting(authority, authority.issue("worker", "worker.acme.example")))
    assert (await with_one.ask(ADD)).status == 200
    certificate = fake.calls[-1][1].certificate
    assert certificate is not None
    assert ("DNS", "worker.acme.example") in certificate["subjectAltName"]
    without = await connect(listener, trusting(authority))
    assert (await without.ask(ADD)).status == 200
    assert fake.calls[-1][1].certificate is None


async def test_missing_required_certificate_is_refused(
    serve_tls: ServeTls, connect: Connect, authority: Authority, fake: FakeService, tmp_path: Path
) -> None:
    """It must be signed by the right authority."""
    listener = await serve_tls(client_ca=str(authority.path), verify="required")
    good = await connect(listener, trusting(authority, authority.issue("worker")))
    assert (await good.ask(ADD)).status == 200
    stranger = Authority(tmp_path, "stranger").issue("worker2")
    for context in (trusting(authority), trusting(authority, stranger)):
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await (await connect(listener, context)).ask(ADD)
    assert len(fake.calls) == 1


async def test_unrequested_certificates_are_ignored(
    serve_tls: ServeTls, connect: Connect, authority: Authority, fake: FakeService
) -> None:
    """An unverified certificate is never passed on."""
    listener = await serve_tls()
    client = await connect(listener, trusting(authority, authority.issue("worker")))
    assert (await client.ask(ADD)).status == 200
    assert fake.calls[-1][1].certificate is None


async def test_changed_certificate_is_loaded_without_a_restart(
    serve_tls: ServeTls, connect: Connect, authority: Authority, clock: ManualClock
) -> None:
    """New connections get the new one, and open connections continue."""
    listener = await serve_tls()
    context = trusting(authority)
    before = await serial_of(listener, context)
    old = await connect(listener, context)
    authority.issue("localhost")
    clock.advance(1_000)
    assert await serial_of(listener, context) != before
    assert (await old.ask(get("/healthz"))).status == 200
    assert listener.context.metrics.certificates_loaded_total == 2


async def test_partly_replaced_certificate_pair_is_not_used(
    serve_tls: ServeTls, authority: Authority, clock: ManualClock, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The old pair stays in use until both files match."""
    listener = await serve_tls()
    context = trusting(authority)
    before = await serial_of(listener, context)
    kept = tmp_path / "kept.key"
    shutil.copy(tmp_path / "localhost.key", kept)
    authority.issue("localhost")
    new_key = tmp_path / "new.key"
    (tmp_path / "localhost.key").replace(new_key)
    shutil.copy(kept, tmp_path / "localhost.key")
    with caplog.at_level(logging.WARNING, "tenantq.http"):
        clock.advance(1_000)
    assert "certificate not reloaded" in caplog.text
    assert await serial_of(listener, context) == before
    assert listener.context.metrics.certificates_failed_total == 1
    new_key.replace(tmp_path / "localhost.key")
    clock.advance(1_000)
    assert await serial_of(listener, context) != before
    (tmp_path / "localhost.crt").unlink()
    clock.advance(1_000)
    assert await serial_of(listener, context) != before


async def test_unusable_certificate_files_are_named(serve_tls: ServeTls, authority: Authority, tmp_path: Path) -> None:
    """The error comes before anything listens."""
    with pytest.raises(Invalid, match=r"missing\.pem"):
        await serve_tls(certificate=str(tmp_path / "missing.pem"))
    with pytest.raises(Invalid, match="client_ca"):
        await serve_tls(client_ca=str(tmp_path / "localhost.key"), verify="required")
    with pytest.raises(Invalid, match="client_ca: required"):
        await serve_tls(verify="required")
    (tmp_path / "locked.key").write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    with pytest.raises(Invalid, match=r"locked\.key"):
        await serve_tls(key=str(tmp_path / "locked.key"))


async def test_closing_and_leaving_over_tls(
    serve_tls: ServeTls, connect: Connect, authority: Authority, fake: FakeService
) -> None:
    """A client that leaves frees its poll, and closing the listener ends waiting polls."""
    listener = await serve_tls()
    leaver, waiter = [await connect(listener, trusting(authority)) for _ in range(2)]
    leaver.send(LONG_POLL)
    waiter.send(LONG_POLL)
    await until_not(lambda: len(fake.calls) < 2)
    await leaver.close()
    await until_not(lambda: fake.given_up == 0)
    await listener.close()
    reply = await waiter.reply()
    assert (reply.json(), reply.headers["connection"]) == ({"messages": []}, "close")


async def test_refusals_can_be_read_over_tls(serve_tls: ServeTls, connect: Connect, authority: Authority) -> None:
    """This works even while the client keeps sending."""
    listener = await serve_tls()
    client = await connect(listener, trusting(authority))
    reply = await client.ask(b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 300_000)
    assert reply.status == 431
