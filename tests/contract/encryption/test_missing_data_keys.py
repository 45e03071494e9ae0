"""Encrypted messages whose data keys are gone: a typed error instead of ciphertext, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq import AsyncClient
from tenantq.backup.restore import restore_backup
from tenantq.errors import Erased
from tenantq.server import Server
from tenantq.service.call import Call
from tenantq.settings import ServerSettings
from tests.shards import message, wait_until_idle

if TYPE_CHECKING:
    from pathlib import Path

ADMIN = "administrator-of-the-tests"
CALL = Call(bearer=ADMIN, remote="10.0.0.1")
REASON = "their contract has ended"


def server_of(place: Path, name: str) -> Server:
    """Return a server with a data directory of this name. All share one directory of backups."""
    backups = str(place / "backups")
    settings = ServerSettings(data_dir=str(place / name), http="127.0.0.1:0", rpc="off", backup_dir=backups)
    return Server(settings, admin_token=ADMIN)


@pytest.mark.parametrize("enabled", [True, False])
async def test_restored_erased_tenant_raises_erased_and_keeps_its_messages(tmp_path: Path, *, enabled: bool) -> None:
    """The backup has the rows of the deleted tenant, but its data keys are destroyed."""
    async with server_of(tmp_path, "data") as server:
        await server.service.tenants.put(CALL, "acme", {"encryption": {"enabled": True}})
        (added,) = await server.service.messages.add(CALL, "acme", "work", [message("sealed")])
        assert not isinstance(added, Exception)
        await server.service.tenants.put(CALL, "acme", {"encryption": {"enabled": enabled}})
        await server.service.backups.create(CALL, "before")
        await server.service.erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
    restore_backup(tmp_path / "backups" / "before", tmp_path / "again")
    async with server_of(tmp_path, "again") as server:
        service = server.service
        assert service.status.readiness()["keys"] == "1 tenant without data keys"
        for _ in range(3):
            with pytest.raises(Erased):
                await service.messages.poll(CALL, "acme", "work")
            await wait_until_idle(server.shard)
        with pytest.raises(Erased):
            await service.message_reads.peek(CALL, "acme", "work")
        with pytest.raises(Erased):
            await service.message_reads.get(CALL, "acme", "work", added.id)
        with pytest.raises(Erased):
            await service.fleet.poll(CALL, "work", tenants=["acme"])
        async with AsyncClient(f"http://127.0.0.1:{server.port}", token=ADMIN) as client:
            with pytest.raises(Erased):
                await client.tenant("acme").queue("work").poll()
        await wait_until_idle(server.shard)
        facts = await server.shard.reads.get("acme", "work", added.id)
        assert (facts.state, facts.attempts) == ("ready", 0)
        assert "tenantq_tenants_without_data_keys 1.0" in (await service.status.metrics(CALL)).decode()
        if enabled:  # a new key would reuse a number that stored messages name
            with pytest.raises(Erased):
                await service.messages.add(CALL, "acme", "work", [message("more")])
        await service.erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
        assert service.status.readiness()["keys"] == "ok"
