"""What happens between a sync on the event loop and its replies."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from tests.shards import Q, T, message, wait_until_idle

if TYPE_CHECKING:
    import pytest

    from tests.verbs import Shard


async def test_requests_that_arrived_during_a_sync_are_read_before_its_replies_are_sent(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that they share the next round with the next requests of the callers that get these replies."""
    await shard.add(T, Q, [message()])
    await wait_until_idle(shard)
    client, server = socket.socketpair()
    server.setblocking(False)
    events: list[str] = []
    sync = shard.state.store.sync

    def read() -> None:
        events.append("read")
        asyncio.get_running_loop().remove_reader(server)

    def arrive() -> None:
        if not events:
            client.send(b"request")
            events.append("arrived")
        sync()

    with client, server:
        asyncio.get_running_loop().add_reader(server, read)
        monkeypatch.setattr(shard.state.store, "sync", arrive)
        await shard.add(T, Q, [message()])
        events.append("replied")
    assert events == ["arrived", "read", "replied"]
