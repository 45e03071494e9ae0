"""Requests of the console to a server with many tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.console.not_granted import NotGranted
from tenantq.console.reader import LISTED_OFTEN_MAX, ConsoleReader
from tenantq.errors import NotFound

if TYPE_CHECKING:
    from tenantq.testing import FakeServer

TENANTS = LISTED_OFTEN_MAX + 10


@pytest.fixture(scope="module", autouse=True)
def _tenants(server: FakeServer) -> None:
    """Create more tenants than a refresh lists, and grant one principal access to two of them."""
    admin = server.client()
    for number in range(TENANTS):
        admin.tenant(f"t{number:03}").configure()
    for name in ("t007", "t008"):
        admin.tenant(name).grant("jwt:bob", role="viewer")


async def test_long_tenant_list_is_read_occasionally(server: FakeServer) -> None:
    """In between, only the selected tenant is read."""
    async with server.async_client() as client:
        reader = ConsoleReader(client, server.clock)
        before = _replies(server)
        snapshot = await reader.read(None)
        assert len(snapshot.tenants) == TENANTS + 1
        assert snapshot.view is not None
        assert snapshot.view.name == "t000"
        assert _replies(server) - before == 4  # two pages, quotas, queues
        snapshot = await reader.read("t009", relist=False)
        assert (_replies(server) - before, len(snapshot.tenants)) == (6, TENANTS + 1)
        assert snapshot.view is not None
        assert not isinstance(snapshot.view.facts, NotGranted)
        with pytest.raises(NotFound, match="nobody"):
            await reader.read("nobody")


async def test_rights_of_a_principal_are_gathered_from_all_tenants(server: FakeServer) -> None:
    """Each tenant is asked once, and the platform's audit trail for the use and end of tokens."""
    async with server.async_client() as client:
        before = _replies(server)
        found = await ConsoleReader(client, server.clock).permissions(
            "jwt:bob", [f"t{number:03}" for number in range(20)]
        )
        assert [(one.tenant, one.grant.role, one.key_name) for one in found] == [
            ("t007", "viewer", None),
            ("t008", "viewer", None),
        ]
        assert _replies(server) - before == 22


def _replies(server: FakeServer) -> int:
    return sum(server._listener.context.metrics.replies_total.values())
