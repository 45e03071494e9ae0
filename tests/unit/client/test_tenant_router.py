"""Routing to several shards: straight to the owner of a tenant, and never to a host that must not get the credential. Over real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tenantq.client.connection_pool import ApiRequest
from tenantq.client.settings import parse
from tenantq.client.tenant_router import AVOID_MS, TenantRouter
from tenantq.errors import ConnectionFailed, Invalid
from tenantq.runtime.clock import ManualClock
from tests.unit.client.doubles import faulty_server, make_settings, respond, respond_and_close, respond_raw

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

ACME = ApiRequest("POST", "/v1/tenants/acme/queues/work/messages", bytes, b"{}")


def owned_by(address: str) -> Callable[[asyncio.StreamWriter], None]:
    """Answer like a shard that forwarded the request."""
    return respond_raw(f"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTenantq-Shard: {address}\r\n\r\n{{}}".encode())


@pytest.mark.parametrize(
    "target", ["/v1/tenants/acme", "/v1/tenants/acme/queues?limit=1", "/v1/queues/work/poll", "/v1/queues"]
)
async def test_after_a_forwarded_request_the_next_goes_straight_to_the_owner(target: str) -> None:
    """Only for this tenant; calls about the whole server still use the configured address."""
    async with faulty_server() as base, faulty_server() as shard:
        base.behave, shard.behave = [owned_by(shard.url)], [respond()]
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
    """A server that does not know its public name sends only a port."""
    async with faulty_server() as base, faulty_server() as shard:
        base.behave, shard.behave = [owned_by(f":{shard.url.rpartition(':')[2]}")], [respond()]
        ways = TenantRouter(make_settings(base.url, clock=ManualClock()))
        for _ in range(3):
            await ways.send(ACME)
        assert (len(base.heads), len(shard.heads)) == (1, 2)
        await ways.close()


async def test_a_tenant_is_followed_when_it_moves_again() -> None:
    """A shard that forwards a request names the new owner."""
    async with faulty_server() as base, faulty_server() as old, faulty_server() as new:
        base.behave, old.behave, new.behave = [owned_by(old.url)], [owned_by(new.url)], [respond()]
        ways = TenantRouter(make_settings(base.url, clock=ManualClock()))
        for _ in range(4):
            await ways.send(ACME)
        assert (len(base.heads), len(old.heads), len(new.heads)) == (1, 1, 2)
        await ways.close()


@pytest.mark.parametrize("tenant", ["/v1/tenants/acme", "/v1/tenant"])
async def test_queues_that_another_server_owns_are_remembered_one_by_one(tenant: str) -> None:
    """A tenant can be spread over servers: each queue goes to its own, all other calls to the tenant's."""
    queues = f"{tenant}/queues" if tenant.endswith("acme") else "/v1/queues"

    def request(path: str) -> ApiRequest[bytes]:
        return ApiRequest("GET", path, bytes)

    async with faulty_server() as base, faulty_server() as home, faulty_server() as away:
        base.behave = home.behave = away.behave = [respond()]
        ways = TenantRouter(make_settings(base.url, clock=ManualClock()))
        base.behave = [owned_by(home.url)]
        await ways.send(request(tenant))
        home.behave = [owned_by(away.url), respond()]
        for path in (f"{queues}/far/poll", f"{queues}/far", f"{queues}/far?x=1", f"{queues}/near", tenant, queues):
            await ways.send(request(path))
        assert (len(base.heads), len(home.heads), len(away.heads)) == (1, 4, 2)
        away.behave = [owned_by(home.url)]
        for _ in range(2):  # the queue comes home
            await ways.send(request(f"{queues}/far"))
        assert (len(base.heads), len(home.heads), len(away.heads)) == (1, 5, 3)
        assert len(ways._owners) == 1
        await ways.close()


async def test_an_unreachable_owner_is_avoided_for_a_while() -> None:
    """The request uses the configured address, at once and without an error."""
    clock = ManualClock()
    async with faulty_server() as base:
        async with faulty_server() as gone:
            address = gone.url
        base.behave = [owned_by(address)]
        ways = TenantRouter(make_settings(base.url, clock=clock))
        for _ in range(5):
            assert (await ways.send(ACME)).status == 200
        assert len(base.heads) == 5
        assert list(ways._owners) == []
        clock.advance(AVOID_MS)
        await ways.send(ACME)
        assert list(ways._owners) == [("acme", "")]
        await ways.close()


async def test_a_request_lost_by_the_owner_may_have_been_executed() -> None:
    """The caller learns that, and only a repeatable call is retried. The next one uses the configured address."""
    async with faulty_server() as base, faulty_server() as shard:
        base.behave, shard.behave = [owned_by(shard.url)], [respond(), respond_and_close(b"")]
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
    """At once and without an error; the client keeps that address until it is unreachable too."""
    async with faulty_server() as first, faulty_server() as second:
        async with faulty_server() as gone:
            address = gone.url
        first.behave, second.behave = [respond()], [respond()]
        settings = parse([address, first.url, second.url], "secret-token", clock=ManualClock())
        ways = TenantRouter(settings)
        for _ in range(3):
            assert (await ways.send(ACME)).status == 200
        assert (len(first.heads), len(second.heads)) == (3, 0)
        first.behave = [respond_and_close(b"")]
        with pytest.raises(ConnectionFailed):
            await ways.send(ACME)
        assert (await ways.send(ACME)).status == 200
        assert len(second.heads) == 1
        await ways.close()


async def test_the_next_attempt_goes_to_another_server() -> None:
    """A server that cannot answer may be cut off from the others or hang."""
    async with faulty_server() as first, faulty_server() as second:
        first.behave = [respond(503), owned_by(first.url), respond(), respond_and_close(b"")]
        second.behave = [owned_by(first.url)]
        ways = TenantRouter(parse([first.url, second.url], "secret-token", clock=ManualClock()))
        assert (await ways.send(ACME)).status == 503
        assert (await ways.send(ACME)).status == 200  # the second server, which names the first as the owner
        second.behave = [respond(503)]
        assert (await ways.send(ApiRequest("GET", "/v1/tenants", bytes))).status == 503
        for _ in range(2):
            assert (await ways.send(ACME)).status == 200
        with pytest.raises(ConnectionFailed):
            await ways.send(ACME)
        second.behave = [respond()]
        assert (await ways.send(ACME)).status == 200
        assert (len(first.heads), len(second.heads)) == (4, 3)
        await ways.close()


def misdirected(owner: str) -> Callable[[asyncio.StreamWriter], None]:
    """Answer like a server whose region the tenant does not allow."""
    return respond(421, headers=f"Tenantq-Shard: {owner}\r\n")


@pytest.mark.parametrize("owner", ["http://192.0.2.1:7070", "{gone}"])
async def test_another_address_is_tried_if_the_owner_cannot_be_used(owner: str) -> None:
    """The owner is on an unknown host, or unreachable. The client remembers, for this tenant, which address serves it."""
    async with faulty_server() as wrong, faulty_server() as too, faulty_server() as right:
        async with faulty_server() as gone:
            owner = owner.format(gone=gone.url)
        wrong.behave, too.behave, right.behave = [misdirected(owner)], [misdirected(owner)], [owned_by(owner)]
        ways = TenantRouter(parse([wrong.url, too.url, right.url], "secret-token", clock=ManualClock()))
        for _ in range(3):
            assert (await ways.send(ACME)).status == 200
        assert (len(wrong.heads), len(too.heads), len(right.heads)) == (1, 1, 3)
        wrong.behave = [respond()]
        assert (await ways.send(ApiRequest("GET", "/v1/tenants/other", bytes))).status == 200
        assert len(wrong.heads) == 2
        right.behave = [misdirected(owner)]  # the tenant's regions have changed
        assert (await ways.send(ACME)).status == 200
        assert (await ways.send(ACME)).status == 200
        assert (len(wrong.heads), len(too.heads), len(right.heads)) == (4, 1, 4)
        await ways.close()


async def test_each_address_is_asked_once_before_a_wrong_region_is_reported() -> None:
    """Unless one of them does not answer: a retry may reach it."""
    async with faulty_server() as first, faulty_server() as second:
        first.behave = second.behave = [misdirected("http://192.0.2.1:7070")]
        async with faulty_server() as gone:
            address = gone.url
        ways = TenantRouter(parse([first.url, second.url], "secret-token", clock=ManualClock()))
        assert (await ways.send(ACME)).status == 421
        assert (len(first.heads), len(second.heads)) == (1, 1)
        second.behave = [respond(503)]
        assert (await ways.send(ACME)).status == 503
        await ways.close()
        ways = TenantRouter(parse([first.url, address], "secret-token", clock=ManualClock()))
        with pytest.raises(ConnectionFailed):
            await ways.send(ACME)
        await ways.close()


@pytest.mark.parametrize("given", [[], ["http://a", "https://b"], ["http://a/x", "http://b/y"], ["http://a", 7], None])
def test_addresses_of_one_client_share_scheme_and_path(given: Any) -> None:
    """At least one address is required."""
    with pytest.raises(Invalid, match="url: "):
        parse(given, None)


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.2:{port}", "https://127.0.0.1:{port}", "http://127.0.0.1", "http://127.0.0.1:x", "", "{port}"],
)
async def test_a_credential_is_sent_to_no_other_host(address: str) -> None:
    """Nor over another protocol, nor to a malformed address."""
    async with faulty_server() as base, faulty_server() as other:
        base.behave, other.behave = [owned_by(address.format(port=other.url.rpartition(":")[2]))], [respond()]
        ways = TenantRouter(make_settings(base.url, clock=ManualClock()))
        for _ in range(2):
            await ways.send(ACME)
        assert (len(base.heads), len(other.heads)) == (2, 0)
        await ways.close()


@pytest.mark.parametrize(("path", "options"), [("/behind", {}), ("", {"follow": False})])
async def test_owners_are_not_followed_behind_a_path_or_if_switched_off(path: str, options: dict[str, Any]) -> None:
    """A shard does not know the path under which a proxy serves it."""
    async with faulty_server() as base, faulty_server() as shard:
        base.behave, shard.behave = [owned_by(shard.url)], [respond()]
        ways = TenantRouter(make_settings(base.url + path, clock=ManualClock(), **options))
        for _ in range(2):
            await ways.send(ACME)
        assert (len(base.heads), len(shard.heads)) == (2, 0)
        await ways.close()
