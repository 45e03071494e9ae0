"""Queueber clients work with their old schema, as default/default, until strict mode."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import capnp
import pytest

from tenantq.rpc import queueber_leases
from tenantq.rpc.settings import RpcSettings
from tenantq.service.gate_settings import GateSettings
from tests.contract.http.real_server import ADMIN

if TYPE_CHECKING:
    from tenantq.server import Server
    from tests.contract.rpc.conftest import Connect, Serve

OLD = capnp.SchemaParser().load(
    str(Path(__file__).with_name("queueber.capnp"))
)  # a separate parser, because the IDs are in use
OPEN = GateSettings(anonymous_default=True)


class OldClient:
    """A client as users of Queueber have written it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._client = capnp.TwoPartyClient(stream)
        self.queue = self._client.bootstrap().cast_as(OLD.Queue)

    async def add(self, *contents: bytes, delay_s: int = 0) -> list[bytes]:
        """Add items; return their IDs."""
        items = [{"contents": one, "visibilityTimeoutSecs": delay_s} for one in contents]
        return [bytes(id) for id in (await self.queue.add(req={"items": items})).resp.ids]

    async def poll(self, count: int = 1, lease_s: int = 30, timeout_s: int = 1) -> tuple[bytes, dict[bytes, bytes]]:
        """Lease items; return the lease, and contents by ID."""
        req = {"leaseValiditySecs": lease_s, "numItems": count, "timeoutSecs": timeout_s}
        resp = (await self.queue.poll(req=req)).resp
        return bytes(resp.lease), {bytes(one.id): bytes(one.contents) for one in resp.items}

    async def remove(self, id: bytes, lease: bytes) -> bool:
        """Remove a leased item."""
        return bool((await self.queue.remove(req={"id": id, "lease": lease})).resp.removed)

    async def extend(self, lease: bytes, lease_s: int) -> bool:
        """Extend a lease."""
        return bool((await self.queue.extend(req={"lease": lease, "leaseValiditySecs": lease_s})).resp.extended)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
        self._stream.close()


@pytest.fixture
async def old_client() -> AsyncIterator[Any]:
    """Connect like Queueber's clients: without a credential."""
    clients: list[OldClient] = []

    async def open_one(server: Server) -> OldClient:
        clients.append(OldClient(await capnp.AsyncIoStream.create_connection("127.0.0.1", server.rpc_port)))
        return clients[-1]

    yield open_one
    for client in clients:
        client.close()


async def test_items_are_added_leased_extended_and_removed(serve: Serve, old_client: Any, connect: Connect) -> None:
    """They are in default/default, where current clients see them too."""
    server = await serve(gates=OPEN)
    old = await old_client(server)
    ids = await old.add(b"one", b"two", b"\xff\x00")
    assert [uuid.UUID(bytes=id).version for id in ids] == [7, 7, 7]
    lease, items = await old.poll(2)
    assert items == {ids[0]: b"one", ids[1]: b"two"}
    assert uuid.UUID(bytes=lease).version == 7
    assert await old.extend(lease, 60)
    assert await old.remove(ids[0], lease)
    assert not await old.remove(ids[0], lease), "it is gone"
    assert not await old.remove(ids[2], lease), "it is not leased"
    other = await old_client(server)
    assert await other.remove(ids[1], lease), "a lease is valid on every connection"
    assert not await old.extend(lease, 60), "nothing is left of it"
    new = await connect(server, ADMIN)
    (left,) = await new.poll(queue=None)
    assert (left.tenant, left.queue, left.body) == ("default", "default", b"\xff\x00")


async def test_polls_wait_for_items_and_respect_delays(serve: Serve, old_client: Any) -> None:
    """A poll without a count or a timeout waits for one item."""
    server = await serve(gates=OPEN)
    old, other = await old_client(server), await old_client(server)
    assert await old.poll(timeout_s=1) == (b"", {})
    waiting = asyncio.ensure_future(old.poll(0, timeout_s=0))
    await other.add(b"later", delay_s=3_600)
    (id, _) = await other.add(b"now", b"next")
    assert (await waiting)[1] == {id: b"now"}
    assert list((await old.poll(10))[1].values()) == [b"next"]


async def test_expired_lease_neither_removes_nor_extends(serve: Serve, old_client: Any) -> None:
    """The item is delivered again."""
    server = await serve(gates=OPEN)
    old = await old_client(server)
    (id,) = await old.add(b"x")
    lease, _ = await old.poll(lease_s=1)
    second, items = await old.poll(timeout_s=10)
    assert items == {id: b"x"}
    assert not await old.extend(lease, 30)
    assert not await old.remove(id, lease)
    assert await old.remove(id, second)


async def test_refusals_are_exceptions_that_start_with_a_code(serve: Serve, old_client: Any) -> None:
    """The old schema has no field for errors. Nothing internal is sent."""
    old = await old_client(await serve(gates=OPEN))
    with pytest.raises(capnp.KjException, match=r"message = invalid: leaseValiditySecs: out of range \(0") as caught:
        await old.poll(lease_s=0)
    assert "Traceback" not in str(caught.value)
    with pytest.raises(capnp.KjException, match="message = too_large: "):
        await old.add(bytes(2 << 20))
    assert len(await old.add(b"still connected")) == 1


async def test_strict_tenancy_refuses_old_clients(serve: Serve, old_client: Any) -> None:
    """Every call is refused, also on a server that admits no anonymous callers."""
    for settings in ({"strict_tenancy": True, "gates": OPEN}, {}):
        old = await old_client(await serve(**settings))
        for call in (old.add(b"x"), old.poll(), old.remove(bytes(16), bytes(16)), old.extend(bytes(16), 1)):
            with pytest.raises(capnp.KjException, match="message = unauthenticated: "):
                await call


async def test_admitted_old_client_counts_as_logged_in(serve: Serve, old_client: Any) -> None:
    """The limits on connections without a login do not close its connection."""
    old = await old_client(await serve(gates=OPEN, rpc_listener=RpcSettings(strangers_messages_max=8)))
    for _ in range(30):
        await old.add(b"x")


async def test_leases_in_memory_are_limited(serve: Serve, old_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten, and its items return when it ends."""
    monkeypatch.setattr(queueber_leases, "ITEMS_MAX", 3)
    old = await old_client(await serve(gates=OPEN))
    ids = await old.add(*(b"%d" % number for number in range(4)))
    first, _ = await old.poll(2)
    second, _ = await old.poll(2)
    assert not await old.remove(ids[0], first)
    assert await old.remove(ids[2], second)


async def test_login_returns_the_schema_version(server: Server, connect: Connect) -> None:
    """Version 1 is the old schema."""
    client = await connect(server, None)
    assert (await client.login(ADMIN)).schemaVersion == 2
