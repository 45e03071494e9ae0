"""Spreads tenants over shards, for tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.contract.cluster.test_tenant_moves import placement

if TYPE_CHECKING:
    import httpx


async def spread(client: httpx.AsyncClient, tenant: str, shards: int, seconds: float = 60.0) -> list[int]:
    """Spread a tenant, wait until nothing moves, and return its shards."""
    reply = await client.put(f"/v1/cluster/tenants/{tenant}", json={"spread": shards})
    assert reply.status_code == 200, reply.text
    return await wait_until_spread(client, tenant, seconds)


async def wait_until_spread(client: httpx.AsyncClient, tenant: str, seconds: float = 60.0) -> list[int]:
    """Wait until nothing of a tenant moves, and return its shards."""
    found: dict[str, Any] = {}
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = await placement(client, tenant)
                if not found["changing"] and not found["moves"]:
                    shards: list[int] = found["shards"]
                    return shards
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(found) from None


async def add_one(client: httpx.AsyncClient, path: str, body: str) -> bool:
    """Add a message; return whether it was added, and fail unless a quota refused it."""
    reply = await client.post(f"{path}/messages", json={"messages": [{"body": body}]})
    if reply.status_code == 429:
        assert reply.json()["code"] == "quota_exceeded", reply.text
        return False
    assert reply.status_code == 200, reply.text
    [result] = reply.json()["messages"]
    if result.get("error") is not None:
        assert result["error"]["code"] == "quota_exceeded", reply.text
        return False
    return True


async def added_status(client: httpx.AsyncClient, path: str) -> int:
    """Add a message, and return the status of the reply."""
    return (await client.post(f"{path}/messages", json={"messages": [{"body": "x"}]})).status_code
