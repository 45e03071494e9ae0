"""A server that the others do not reach gets no shards, and they say so."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tenantq.cluster import member_links, membership
from tenantq.server import cluster_member
from tests.contract.cluster.hosts import SHARDS, hosting
from tests.contract.cluster.test_members import SECRET, until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tenantq.domain.cluster_view import Member
    from tests.contract.cluster.hosts import SharedStore


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until one end closes."""
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


class Gate:
    """An address that leads to another one while it is open, and refuses connections otherwise."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._copies: set[asyncio.Task[None]] = set()
        self.target = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        for pair in ((reader, there_writer), (there_reader, writer)):
            self._copies.add(asyncio.ensure_future(relay(*pair)))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for copy in self._copies:
            copy.cancel()
        await asyncio.gather(*self._copies, return_exceptions=True)


async def test_unreachable_server_gets_no_shards_until_it_is_reached(
    shared_store: SharedStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    unused_tcp_port: int,
) -> None:
    """It reaches the store and the other server, but announces an address where that one does not reach it."""
    caplog.set_level("INFO", "tenantq.cluster")
    monkeypatch.setattr(membership, "JOIN_DELAY_MS", 1_500)
    monkeypatch.setattr(membership, "COOLDOWN_MS", 0)
    monkeypatch.setattr(member_links, "UNREACHABLE_S", 0.3, raising=False)
    settings: dict[str, Any] = {"grace_ms": 0, **SECRET}
    gate = Gate(unused_tcp_port)

    def announced_at_the_gate(
        registry: Any, holder: Any, clock: Any, own: Member, notices: Any
    ) -> membership.Membership:
        gate.target = int(own.peer_address.rpartition(":")[2])
        shown = replace(own, peer_address=f"127.0.0.1:{unused_tcp_port}")
        return membership.Membership(registry, holder, clock, shown, notices)

    def logged(text: str) -> int:
        return sum(text in record.getMessage() for record in caplog.records)

    async with AsyncExitStack() as stack:
        stack.push_async_callback(gate.close)
        first = await stack.enter_async_context(hosting(tmp_path / "one", shared_store.url, "hidden", **settings))
        with monkeypatch.context() as patch:
            patch.setattr(cluster_member, "Membership", announced_at_the_gate)
            second = await stack.enter_async_context(hosting(tmp_path / "two", shared_store.url, "hidden", **settings))
        assert first.host is not None
        assert second.host is not None
        await asyncio.sleep(3)  # enough for all moves
        assert (len(first.host.owned()), len(second.host.owned())) == (SHARDS, 0)
        assert logged("cannot reach member") == 1
        await gate.open()
        await until(lambda: second.host is not None and len(second.host.owned()) == SHARDS // 2)
        assert (logged("cannot reach member"), logged("can be reached again")) == (1, 1)
