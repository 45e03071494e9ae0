"""The console shows members, owners and moves of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenantq.client import AsyncClient
from tenantq.cluster.tenant_moves import TenantMoves
from tenantq.console.app import ConsoleApp
from tenantq.errors import Unavailable
from tests.contract.cluster.hosts import SHARDS, TOKEN, client_of, hosting, tenant_on
from tests.contract.cluster.test_members import SECRET
from tests.contract.cluster.test_tenant_moves import pin, wait_until_placed
from tests.contract.console.conftest import NEVER_MS, WIDE, ConsoleUser

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.contract.cluster.hosts import SharedStore


async def test_console_shows_the_cluster(
    shared_store: SharedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows the member with its shards, and a tenant that moves until it has arrived."""
    ask = TenantMoves.ask

    async def refuses(self: TenantMoves, target: int, method: str, *arguments: Any) -> int:
        if method == "begin":
            raise Unavailable("the target is busy")
        return await ask(self, target, method, *arguments)

    async with hosting(tmp_path, shared_store.url, "shown", **SECRET) as server, client_of(server) as client:
        tenant = await tenant_on(client, [2], "shown")
        url = f"http://127.0.0.1:{server.port}"
        app = ConsoleApp(AsyncClient(url, token=TOKEN), url=url, refresh_ms=NEVER_MS)
        async with app.client, app.run_test(size=WIDE) as pilot:
            user = ConsoleUser(pilot, app)
            await user.until(lambda: app.state.snapshot is not None and not app._busy)
            await user.press("C")
            await user.until(
                lambda: bool(app.screen.query("#cluster-members")) and len(user.rows("#cluster-members")) == 1
            )
            (member,) = user.rows("#cluster-members")
            assert (member["shards"], member["state"]) == (str(SHARDS), "assigner")
            assert member["owns"] == f"0-{SHARDS - 1}"
            await user.until(lambda: f"{SHARDS} of {SHARDS} shards served" in user.text())
            monkeypatch.setattr(TenantMoves, "ask", refuses)
            await pin(client, tenant, 5)

            def moving() -> list[dict[str, str]]:
                return [row for row in user.rows("#cluster-moves") if row.get("moving") == f"tenant {tenant}"]

            await user.until(lambda: bool(moving()) and moving()[0]["state"].startswith("waiting"))
            assert (moving()[0]["from"], moving()[0]["to"]) == ("shard 2", "shard 5")
            monkeypatch.undo()
            assert await wait_until_placed(client, tenant) == 5
            await user.until(lambda: not moving())
            await user.press("escape")
