"""TLS: the server is verified, the client presents its certificate if it has one, and errors are clear."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.client import NO_RETRIES, AsyncClient, Tls
from tenantq.errors import ConnectionFailed
from tenantq.runtime.tls import TlsFiles
from tenantq.server import Server
from tenantq.settings import ServerSettings
from tests.contract.http.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TOKEN = "an-administrators-token-for-a-test"  # noqa: S105  # not a real token


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return the authority that signs all certificates here."""
    return Authority(tmp_path)


@pytest.fixture
async def server(authority: Authority, tmp_path: Path) -> AsyncIterator[Server]:
    """Run a server that requests client certificates."""
    certificate, key = authority.issue("server", "localhost")
    tls = TlsFiles(certificate=str(certificate), key=str(key), client_ca=str(authority.path), verify="required")
    settings = ServerSettings(data_dir=str(tmp_path / "data"), http="127.0.0.1:0", tls=tls, grace_ms=100)
    async with Server(settings, admin_token=TOKEN) as server:
        yield server


async def test_messages_travel_over_mutual_tls(server: Server, authority: Authority) -> None:
    """It uses the authority's file, the client's certificate and its key; a waiting poll can be cancelled."""
    certificate, key = authority.issue("worker")
    tls = Tls(ca_file=str(authority.path), certificate_file=str(certificate), key_file=str(key))
    async with AsyncClient(f"https://localhost:{server.port}", TOKEN, tls=tls) as client:
        queue = client.queue("mail")
        await queue.add_many(["x" * 1_000] * 200)
        for message in await queue.poll(200, wait_ms=1_000):
            async with message:
                assert message.text == "x" * 1_000
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await queue.poll(wait_ms=20_000)
        assert (await queue.stats()).acked_total == 200


async def test_untrusted_server_gets_no_token(server: Server, tmp_path: Path) -> None:
    """The error says that the certificate is not trusted."""
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")
    for tls in (Tls(), Tls(ca_file=str(stranger.path))):
        async with AsyncClient(f"https://localhost:{server.port}", TOKEN, tls=tls, retries=NO_RETRIES) as client:
            with pytest.raises(ConnectionFailed, match="cannot verify the certificate") as caught:
                await client.health()
            assert not caught.value.maybe_done


async def test_missing_client_certificate_is_a_clear_error(server: Server, authority: Authority) -> None:
    """The error says as much as TLS reveals."""
    tls = Tls(ca_file=str(authority.path))
    async with AsyncClient(f"https://localhost:{server.port}", TOKEN, tls=tls, retries=NO_RETRIES) as client:
        with pytest.raises(ConnectionFailed):
            await client.health()


async def test_plain_http_to_a_tls_port_is_a_typed_error(server: Server) -> None:
    """It is not a traceback."""
    async with AsyncClient(f"http://127.0.0.1:{server.port}", TOKEN, retries=NO_RETRIES) as client:
        with pytest.raises(ConnectionFailed):
            await client.health()
