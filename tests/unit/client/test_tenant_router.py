"""The ways to a server of several shards: straight to the one that has the tenant, and never anywhere the credential must not go. Over real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tenantq.client.connection_pool import ApiRequest
from tenantq.client.settings import parse
from tenantq.client.tenant_router import AVOID_MS, TenantRouter
from tenantq.errors import ConnectionFailed, Invalid
from tenantq.runtime.clock import ManualClock
from tests.unit.client.doubles import make_settings, rough_server, say, say_and_close, say_raw

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

ACME = ApiRequest("POST", "/v1/tenants/acme/queues/work/messages", bytes, b"{}")


def naming(address: str) -> Callable[[asyncio.StreamWriter], None]:
    """Answer as a shard that passed the request on."""
    return say_raw(f"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTenantq-Shard: {address}\r\n\r\n{{}}".encode())


@pytest.mark.parametrize(
    "target", ["/v1/tenants/acme", "/v1/tenants/acme/queues?limit=1", "/v1/queues/work/poll", "/v1/queues"]
)
async def test_what_was_passed_on_goes_straight_there_next_time(target: str) -> None:
    """Only this tenant's; whatever concerns the whole server goes where it always went."""
    async with rough_server() as base, rough_server() as shard:
        base.behave, shard.behave = [naming(shard.url)], [say()]
        ways = TenantRouter(make_settings(base.url, clock=ManualClock()))
        for _ in range(3):
            await ways.send(ApiRequest("GET", target, bytes))
        assert (len(base.heads), len(shard.heads)) == (1, 2)
        assert "Bearer secret-token" in shard.heads[0]
        for other in ("/v1/tenants/other", "/v1/tenants", "/v1/poll", "/v1/topology"):
            await ways.send(ApiRequest("GET", other, bytes))
        assert len(shard.heads) == 2
        await ways.close()


async def test_an_address_can_be_a_port_of_the_same_host() -> None:
    """As a server tells it that does not know by which name it is reached."""
    async with rough_server() as base, rough_server() as shard:
        base.behave, shard.behave = [naming(f":{shard.url.rpartition(':')[2]}")], [say()]
        ways = TenantRouter(make_settings(base.url, clock=ManualClock()))
        for _ in range(3):
            await ways.send(ACME)
        assert (len(base.heads), len(shard.heads)) == (1, 2)
        await ways.close()


async def test_a_tenant_that_moved_is_followed_again() -> None:
    """A shard that passes on names the next one."""
    async with rough_server() as base, rough_server() as old, rough_server() as new:
        base.behave, old.behave, new.behave = [naming(old.url)], [naming(new.url)], [say()]
        ways = TenantRouter(make_settings(base.url, clock=ManualClock()))
        for _ in range(4):
            await ways.send(ACME)
        assert (len(base.heads), len(old.heads), len(new.heads)) == (1, 1, 2)
        await ways.close()


async def test_an_address_that_cannot_be_reached_is_left_alone_for_a_while() -> None:
    """The request goes by the client's own address, at once and without an error."""
    clock = ManualClock()
    async with rough_server() as base:
        async with rough_server() as gone:
            address = gone.url
        base.behave = [naming(address)]
        ways = TenantRouter(make_settings(base.url, clock=clock))
        for _ in range(5):
            assert (await ways.send(ACME)).status == 200
        assert len(base.heads) == 5
        assert list(ways._owners) == []
        clock.advance(AVOID_MS)
        await ways.send(ACME)
        assert list(ways._owners) == ["acme"]
        await ways.close()


async def test_a_shard_that_breaks_off_may_have_done_it() -> None:
    """So the caller is told, and only a repeatable call is tried again; the next one goes by the client's address."""
    async with rough_server() as base, rough_server() as shard:
        base.behave, shard.behave = [naming(shard.url)], [say(), say_and_close(b"")]
        ways = TenantRouter(make_settings(base.url, clock=ManualClock()))
        await ways.send(ACME)
        await ways.send(ACME)
        with pytest.raises(ConnectionFailed) as told:
            await ways.send(ACME)
        assert told.value.maybe_done
        await ways.send(ACME)
        assert len(base.heads) == 2
        await ways.close()


async def test_an_unreachable_address_is_replaced_by_the_next() -> None:
    """At once and without an error, and the client stays there until that one is unreachable too."""
    async with rough_server() as first, rough_server() as second:
        async with rough_server() as gone:
            address = gone.url
        first.behave, second.behave = [say()], [say()]
        settings = parse([address, first.url, second.url], "secret-token", clock=ManualClock())
        ways = TenantRouter(settings)
        for _ in range(3):
            assert (await ways.send(ACME)).status == 200
        assert (len(first.heads), len(second.heads)) == (3, 0)
        first.behave = [say_and_close(b"")]
        with pytest.raises(ConnectionFailed):
            await ways.send(ACME)
        assert (await ways.send(ACME)).status == 200
        assert len(second.heads) == 1
        await ways.close()


async def test_a_server_that_cannot_answer_is_not_asked_again_at_once() -> None:
    """It may be cut off from the others, or hang. So the next attempt goes to another server."""
    async with rough_server() as first, rough_server() as second:
        first.behave = [say(503), naming(first.url), say(), say_and_close(b"")]
        second.behave = [naming(first.url)]
        ways = TenantRouter(parse([first.url, second.url], "secret-token", clock=ManualClock()))
        assert (await ways.send(ACME)).status == 503
        assert (await ways.send(ACME)).status == 200  # of the second, which names the first as the owner
        second.behave = [say(503)]
        assert (await ways.send(ApiRequest("GET", "/v1/tenants", bytes))).status == 503
        for _ in range(2):
            assert (await ways.send(ACME)).status == 200
        with pytest.raises(ConnectionFailed):
            await ways.send(ACME)
        second.behave = [say()]
        assert (await ways.send(ACME)).status == 200
        assert (len(first.heads), len(second.heads)) == (4, 3)
        await ways.close()


@pytest.mark.parametrize("given", [[], ["http://a", "https://b"], ["http://a/x", "http://b/y"], ["http://a", 7], None])
def test_addresses_of_one_client_go_together(given: Any) -> None:
    """They have one scheme and one path, and there is at least one."""
    with pytest.raises(Invalid, match="url: "):
        parse(given, None)


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.2:{port}", "https://127.0.0.1:{port}", "http://127.0.0.1", "http://127.0.0.1:x", "", "{port}"],
)
async def test_a_credential_goes_to_no_other_host(address: str) -> None:
    """Nor over another protocol, nor where the header makes no sense."""
    async with rough_server() as base, rough_server() as other:
        base.behave, other.behave = [naming(address.format(port=other.url.rpartition(":")[2]))], [say()]
        ways = TenantRouter(make_settings(base.url, clock=ManualClock()))
        for _ in range(2):
            await ways.send(ACME)
        assert (len(base.heads), len(other.heads)) == (2, 0)
        await ways.close()


@pytest.mark.parametrize(("path", "options"), [("/behind", {}), ("", {"follow": False})])
async def test_no_way_is_followed_from_behind_a_path_or_where_that_is_switched_off(
    path: str, options: dict[str, Any]
) -> None:
    """A shard knows nothing of the path that a proxy serves it under."""
    async with rough_server() as base, rough_server() as shard:
        base.behave, shard.behave = [naming(shard.url)], [say()]
        ways = TenantRouter(make_settings(base.url + path, clock=ManualClock(), **options))
        for _ in range(2):
            await ways.send(ACME)
        assert (len(base.heads), len(shard.heads)) == (2, 0)
        await ways.close()
