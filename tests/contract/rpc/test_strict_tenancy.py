"""With ``strict_tenancy``, calls without a tenant are refused on every transport, and calls with one work as before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from tenantq.service.gate_settings import GateSettings
from tests.contract.http.real_server import ADMIN

if TYPE_CHECKING:
    from tests.contract.rpc.conftest import Connect, Serve

ADD = {"messages": [{"body": "x"}]}


async def test_calls_without_a_tenant_are_refused_over_http_and_rpc(serve: Serve, connect: Connect) -> None:
    """Anonymous callers are refused, platform credentials must name a tenant, and a tenant's credential suffices."""
    server = await serve(strict_tenancy=True, gates=GateSettings(anonymous_default=True))
    admin = {"Authorization": f"Bearer {ADMIN}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
        await http.put("/v1/tenants/acme", json={}, headers=admin)
        key = (
            await http.post("/v1/tenants/acme/keys", json={"name": "k", "role": "tenant-admin"}, headers=admin)
        ).json()
        nobody = await http.post("/v1/queues/q/messages", json=ADD)
        platform = await http.post("/v1/queues/q/messages", json=ADD, headers=admin)
        named = await http.post("/v1/tenants/acme/queues/q/messages", json=ADD, headers=admin)
        own = await http.post("/v1/queues/q/messages", json=ADD, headers={"Authorization": f"Bearer {key['token']}"})
    assert [one.status_code for one in (nobody, platform, named, own)] == [401, 422, 200, 200]
    assert "strict_tenancy" in platform.json()["detail"]
    old = await connect(server, ADMIN)
    assert (await old.refused("add", queue=None, bodies=[b"x"])).code == "invalid"
    assert (await old.refused("poll", queue=None)).code == "invalid"
    mine = await connect(server, key["token"])
    assert len(await mine.poll(max=10)) == 2
