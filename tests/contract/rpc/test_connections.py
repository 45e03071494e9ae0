"""Connections: how they start and end, and what happens to the calls of a client that leaves."""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import capnp
import pytest

from tenantq.gates.certificate import CertificateGrant, CertificateSettings
from tenantq.rpc.settings import RpcSettings
from tenantq.runtime.tls import TlsFiles
from tenantq.service.call import Call
from tests.contract.http.certificates import Authority
from tests.contract.http.raw_client import until_not
from tests.contract.http.real_server import ADMIN

if TYPE_CHECKING:
    from tenantq.server import Server
    from tests.contract.rpc.conftest import Connect, Serve


def _listener(server: Server) -> Any:
    return server.transports.rpc


async def test_20_client_that_disconnects_while_polling_loses_no_message(server: Server, connect: Connect) -> None:
    """The poll ends with the connection, and the next message goes to another client."""
    leaver, stayer = await connect(server), await connect(server)
    await stayer.ask("putQueue", config="{}")
    waiting = asyncio.ensure_future(leaver.ask("poll", waitMs=60_000))
    await leaver.poll(waitMs=10)
    leaver.close()
    with pytest.raises(capnp.KjException):
        await waiting
    await until_not(lambda: len(_listener(server).context.connections) > 1)
    (id,) = await stayer.add(b"x")
    assert [one.id for one in await stayer.poll()] == [id]
    assert server.service.admission.slots.in_flight == 0


async def test_20_cancelled_poll_takes_nothing(server: Server, connect: Connect) -> None:
    """The connection stays open."""
    client = await connect(server)
    await client.ask("putQueue", config="{}")
    waiting = asyncio.ensure_future(client.ask("poll", waitMs=60_000))
    await client.poll(waitMs=10)
    waiting.cancel()
    await client.poll(waitMs=10)
    (id,) = await client.add(b"x")
    assert [one.id for one in await client.poll()] == [id]


async def test_add_of_a_disconnected_client_is_completed(server: Server, connect: Connect) -> None:
    """Work in progress is not interrupted."""
    client, other = await connect(server), await connect(server)
    adds = [asyncio.ensure_future(client.ask("add", bodies=[b"x"])) for _ in range(20)]
    await until_not(lambda: not server.service.admission.slots.in_flight)
    client.close()
    await asyncio.gather(*adds, return_exceptions=True)
    await until_not(lambda: server.service.admission.slots.in_flight or len(_listener(server).context.connections) > 1)
    stats = (await other.ask("stats")).stats
    assert stats.ready == stats.addedTotal > 0
    assert _listener(server).context.buffered_bytes == 0


async def test_70_stop_ends_waiting_polls_and_keeps_leases(serve: Serve, connect: Connect) -> None:
    """They get an empty reply, connections are closed, and new ones are refused."""
    server = await serve()
    client, idle = await connect(server), await connect(server)
    await client.add(b"x")
    await client.poll(leaseMs=60_000)
    waiting = [asyncio.ensure_future(client.poll(waitMs=60_000)) for _ in range(3)]
    await idle.poll(waitMs=10)
    await server.close()
    assert await asyncio.gather(*waiting) == [[], [], []]
    with pytest.raises(capnp.KjException):
        await idle.ask("stats")
    with pytest.raises(OSError, match=r"refused|Connect"):
        await connect(server)


async def _begun_poll(server: Server) -> tuple[Any, Any]:
    """Return the connection and the call of a poll that is about to take its first step."""
    while True:
        for connection in _listener(server).context.connections:
            for call in connection.calls:
                if call._task is not None:
                    return connection, call
        await asyncio.sleep(0)


async def test_70_stop_answers_a_poll_that_has_just_arrived(server: Server, connect: Connect) -> None:
    """It is stopped before its first step and gets an empty reply; the stop does not wait for it."""
    client = await connect(server)
    await client.ask("putQueue", config="{}")
    waiting = asyncio.ensure_future(client.poll(waitMs=60_000))
    connection, call = await _begun_poll(server)
    connection.drain()
    assert call._task.cancelling()
    assert await asyncio.wait_for(waiting, 10) == []
    await until_not(lambda: bool(_listener(server).context.connections))


async def test_poll_cancelled_at_its_start_leaves_nothing(server: Server, connect: Connect) -> None:
    """Otherwise it would count as in progress as long as the connection lasts."""
    client = await connect(server)
    await client.ask("putQueue", config="{}")
    waiting = asyncio.ensure_future(client.poll(waitMs=60_000))
    connection, call = await _begun_poll(server)
    call.give_up()
    with pytest.raises(asyncio.CancelledError):
        await call._task
    await until_not(lambda: bool(connection.calls))
    await asyncio.gather(waiting, return_exceptions=True)


async def test_sessions_may_be_pipelined_and_are_limited(serve: Serve, connect: Connect) -> None:
    """A call can precede the login reply; above the limit, logins are refused until a session is released."""
    server = await serve(rpc_listener=RpcSettings(sessions_max=2))
    client = await connect(server, None)
    piped = client.bootstrap.login(token=ADMIN)
    reply = await piped.session.add(ref={"queue": "q"}, bodies=[b"x"])
    assert reply.which() == "messages"
    del piped
    kept = [await client.login(ADMIN), await client.login(ADMIN)]
    assert (await client.login(ADMIN)).error.code == "unavailable"
    kept.clear()
    client.session = None
    await until_not(lambda: any(connection.sessions for connection in _listener(server).context.connections))
    assert (await client.login(ADMIN)).which() == "ok"


async def test_concurrent_logins_respect_the_session_limit(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them started before the first was accepted."""
    server = await serve(rpc_listener=RpcSettings(sessions_max=2))
    client = await connect(server, None)
    everybody, log_in = asyncio.Barrier(6), server.service.access.log_in

    async def log_in_together(call: Call) -> Any:
        await everybody.wait()
        return await log_in(call)

    monkeypatch.setattr(server.service.access, "log_in", log_in_together)
    replies = await asyncio.gather(*(client.bootstrap.login(token=ADMIN) for _ in range(6)))
    assert sorted(reply.which() for reply in replies) == ["error"] * 4 + ["ok"] * 2
    assert {reply.error.code for reply in replies if reply.which() == "error"} == {"unavailable"}


async def test_client_certificate_authenticates(tmp_path: Path, serve: Serve, connect: Connect) -> None:
    """It uses TLS with the server's files; a changed certificate is used without a restart."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    own_certificate, own_key = authority.issue("client", "acme.example")
    server = await serve(
        tls=TlsFiles(certificate=str(certificate), key=str(key), client_ca=str(authority.path), verify="optional"),
        certificates=CertificateSettings(
            names={"DNS:acme.example": CertificateGrant(tenant="acme", role="tenant-admin")}
        ),
    )
    await server.service.tenants.put(Call(bearer=ADMIN), "acme", {})
    context = ssl.create_default_context(cafile=str(authority.path))
    context.load_cert_chain(own_certificate, own_key)
    client = await connect(server, None, ssl=context)
    reply = await client.login("")
    assert (reply.which(), reply.tenant) == ("ok", "acme")
    await client.add(b"x")
    assert (await client.poll())[0].tenant == "acme"
    stranger = await connect(server, None, ssl=ssl.create_default_context(cafile=str(authority.path)))
    assert (await stranger.login("")).error.code == "unauthenticated"
    authority.issue("localhost")
    listener = _listener(server)
    while listener.context.metrics.certificates_loaded_total < 2:
        listener._tls[0].reload_if_changed()
        await asyncio.sleep(0.005)
    again = await connect(server, None, ssl=context)
    assert (await again.login("")).which() == "ok"
    assert (await again.login(ADMIN)).error.code == "forbidden"  # certificate and token belong to different tenants
    plain = await asyncio.open_connection("127.0.0.1", server.rpc_port)
    plain[1].write(b"\0" * 64)
    assert await plain[0].read() == b""
    plain[1].close()


async def test_every_metric_is_documented(server: Server, connect: Connect) -> None:
    """docs/reference/metrics.md lists all of them, and no others."""
    client = await connect(server)
    await client.refused("stats", queue="none")
    text = (await server.service.status.metrics(Call(bearer=ADMIN))).decode()
    served = set(re.findall(r"^# TYPE (tenantq_rpc_\w+) ", text, re.MULTILINE))
    guide = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
    assert served == set(re.findall(r"`(tenantq_rpc_\w+)`", guide.read_text()))
    assert 'tenantq_rpc_errors_total{code="not_found"} 1.0' in text
