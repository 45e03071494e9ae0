"""A member that leaves gives up the assigner's lease only while it is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenantq.domain.cluster_view import Member
from tenantq.store.redis.address import parse_address
from tenantq.store.redis.registry import RedisRegistry
from tenantq.store.redis.settings import RedisSettings

if TYPE_CHECKING:
    import pytest

    from tests.redis_servers import RedisServer

LEASE_MS = 60_000
ASSIGNER = "t:{fleet}:assigner"


def test_a_leaving_member_keeps_the_lease_of_another(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own lease may expire between any two of its requests, and another member takes it."""
    registry = RedisRegistry(parse_address(redis_server.url), RedisSettings(name="fleet"), "os")
    registry.create(None, ())
    send, sent = registry._link.calls, 0

    def send_slowly(*requests: Any, **options: Any) -> Any:
        nonlocal sent
        sent += 1
        replies = send(*requests, **options)
        if sent == passes_after:
            redis_server.client().set(ASSIGNER, "b")
        return replies

    for passes_after in range(1, 4):
        redis_server.client().delete(ASSIGNER)
        registry.heartbeat(Member(id="a", peer_address="127.0.0.1:1"), LEASE_MS)
        assert redis_server.client().get(ASSIGNER) == b"a"
        sent = 0
        with monkeypatch.context() as patch:
            patch.setattr(registry._link, "calls", send_slowly)
            registry.leave("a")
        assert redis_server.client().get(ASSIGNER) == (b"b" if passes_after <= sent else None)
    assert redis_server.client().hgetall("t:{fleet}:members") == {}
    registry.close()
