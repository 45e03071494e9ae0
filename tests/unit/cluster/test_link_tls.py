"""Links between servers use TLS, and the handshake detects a relay."""

from __future__ import annotations

import asyncio
import socket
import stat
from typing import TYPE_CHECKING

from tenantq.cluster.link import Link
from tenantq.cluster.link_certificate import FILE, LinkCertificate, client_context
from tenantq.cluster.peer_server import PeerServer
from tenantq.domain.urls import is_loopback
from tests.unit.client.doubles import until

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.cluster.peer_server import PeerRequest

SECRET = "known to both"  # noqa: S105  # of these tests only


async def _answer(request: PeerRequest) -> bytes:
    return b"answer to " + request.payload


async def _begun(_: Link) -> None:
    pass


async def test_requests_travel_over_tls(tmp_path: Path) -> None:
    """With a certificate that only the server's user can read."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        server = PeerServer(SECRET, {"kind": _answer})
        await server.open(sock, LinkCertificate(tmp_path))
        assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
        link = Link("b", sock.getsockname()[1], (SECRET, "a"), _begun, tls=client_context())
        link.start()
        await until(lambda: link.is_up)
        assert await link.begin("kind", b"this").within(5_000) == b"answer to this"
        await link.close()
        await server.close()


async def test_a_relay_with_its_own_certificate_is_detected(tmp_path: Path) -> None:
    """It forwards every byte, and the handshake still fails on both ends."""
    (tmp_path / "relay").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        server = PeerServer(SECRET, {"kind": _answer})
        await server.open(sock, LinkCertificate(tmp_path))
        passed = asyncio.Event()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            port = sock.getsockname()[1]
            their_reader, their_writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context())
            await asyncio.gather(_pump(reader, their_writer), _pump(their_reader, writer, passed))

        certificate = LinkCertificate(tmp_path / "relay")
        between = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=certificate.server_context)
        link = Link("b", between.sockets[0].getsockname()[1], (SECRET, "a"), _begun, tls=client_context())
        link.start()
        await asyncio.wait_for(passed.wait(), 10)  # the server's proof has arrived
        await asyncio.sleep(0.1)
        assert not link.is_up
        await link.close()
        between.close()
        await server.close()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: asyncio.Event | None = None
) -> None:
    try:
        while data := await reader.read(4_096):
            writer.write(data)
            await writer.drain()
            if passed is not None:
                passed.set()
    except OSError:
        pass
    finally:
        writer.close()


def test_only_loopback_links_work_without_tls() -> None:
    """By address or by name; another name may lead anywhere."""
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("10.0.0.1")
    assert not is_loopback("db.example")
