"""A damaged data key row: its tenant gets errors, others work, and the copy next to the backups stays intact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rocksdict import WriteBatch

from tenantq.backup.data_keys import read_data_keys
from tenantq.doctor.store_check import examine
from tenantq.errors import KmsError
from tenantq.server import Server
from tenantq.service.call import Call
from tenantq.settings import ServerSettings
from tenantq.store.rocks import RocksStore
from tests.shards import message, wait_until_idle

if TYPE_CHECKING:
    from pathlib import Path

CALL = Call(bearer="administrator-of-the-tests")
REASON = "because a test says so"


def server_of(data_dir: Path) -> Server:
    """Return a server with its administrator."""
    return Server(ServerSettings(data_dir=str(data_dir), http="127.0.0.1:0"), admin_token=CALL.bearer)


def damage(data_dir: Path, tenant_id: int, number: int) -> None:
    """Make a data key row unreadable."""
    store = RocksStore(data_dir)
    batch = WriteBatch(raw_mode=True)
    batch.put(b"datakey/" + tenant_id.to_bytes(4) + number.to_bytes(4), b"\xc1no key", store.meta.handle)
    store.write(batch)
    store.sync()
    store.close()


async def test_damaged_key_affects_only_its_tenant(tmp_path: Path) -> None:
    """Its calls fail with a typed error and lose no message; it can be deleted; the self-check names it."""
    data = tmp_path / "data"
    async with server_of(data) as server:
        for tenant in ("acme", "globex"):
            await server.service.tenants.put(CALL, tenant, {"encryption": {"enabled": True}})
            await server.service.messages.add(CALL, tenant, "work", [message("sealed")])
        await server.service.backups.create(CALL, "before")
        id = server.shard.tenant("acme").id
    (file,) = (tmp_path / "data-backups").glob("data-keys-*.json")
    before = read_data_keys(file)
    assert examine(data).clean
    damage(data, id, 1)
    (finding,) = examine(data).findings
    assert (finding.kind, finding.tenant) == ("keys", f"#{id}")
    assert finding.text.startswith("Data key 1 is unreadable")
    async with server_of(data) as server:
        service = server.service
        assert [one.body for one in await service.messages.poll(CALL, "globex", "work")] == [b"sealed"]
        for _ in range(7):  # more often than max_attempts allows
            with pytest.raises(KmsError):
                await service.messages.poll(CALL, "acme", "work")
            await wait_until_idle(server.shard)  # the lease returns after the error
        with pytest.raises(KmsError):
            await service.messages.add(CALL, "acme", "work", [message("more")])
        assert server.shard.reads.stats("acme", "work").ready == 1
        assert (await service.encryption.get(CALL, "acme")).data_keys[0].key == "damaged:data-key-1"
        assert service.status.checks is not None
        await service.status.checks.run_now()
        assert service.status.checks.states["key_health"].status == "failed"
        assert "damaged:data-key-1" in service.status.checks.states["key_health"].text
        await service.backups.create(CALL, "after")
        assert read_data_keys(file) == before
        await service.erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
        assert id not in read_data_keys(file)
