"""A server killed while it deletes an encrypted tenant: the deletion resumes, from its first durable step on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tenantq.backup.backups import Backups
from tenantq.backup.data_keys import read_data_keys
from tenantq.doctor.store_check import examine
from tenantq.kms.keyring import KeyringFile
from tenantq.server import Server
from tenantq.service.call import Call
from tenantq.settings import ServerSettings
from tenantq.store.rocks import RocksStore
from tenantq.store.rocks_files import RocksFiles
from tests.shards import freeze, message
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ADMIN = "administrator-of-the-tests"
CALL = Call(bearer=ADMIN, remote="10.0.0.1")
REASON = "their contract has ended"
STEPS: tuple[tuple[type[Any], str], ...] = (
    (RocksStore, "write"),
    (RocksFiles, "scrub"),
    (RocksFiles, "erase"),
    (KeyringFile, "remove_key"),
    (Backups, "_write_data_keys"),
)
"""Everything that changes a file while a tenant is deleted."""


def server_of(place: Path) -> Server:
    """Return a server with its data and its backups in one directory."""
    settings = ServerSettings(
        data_dir=str(place / "data"), http="127.0.0.1:0", rpc="off", backup_dir=str(place / "backups")
    )
    return Server(settings, admin_token=ADMIN)


async def add_and_poll(server: Server, body: str) -> list[bytes]:
    """Add a message and return all bodies that the queue delivers."""
    await server.service.messages.add(CALL, "acme", "work", [message(body)])
    return sorted(one.body for one in await server.service.messages.poll(CALL, "acme", "work", max=9))


async def check(place: Path) -> str:
    """Check what a kill left, before and after the next start. Returns "kept" or "deleted"."""
    assert not [one for one in examine(place / "data").findings if one.kind != "journal"]
    async with Shard(place / "data") as shard:
        left = shard.state.catalog.tenants.get("acme")
        if left is not None and not shard.state.data_keys.of(left.id):
            assert left.erasing is not None
            assert left.frozen is not None
    async with server_of(place) as server:
        await server.runtime.background.finish()
        certificates = await server.service.erasures.list(CALL)
        if "acme" in server.shard.state.catalog.tenants:
            assert not certificates
            assert await add_and_poll(server, "more") == [b"more", b"sealed"]
            return "kept"
        (certificate,) = certificates
        assert certificate.certified_at
        assert (certificate.reason, [one.number for one in certificate.data_keys]) == (REASON, [0, 1])
        assert "tenant-acme" not in (place / "data" / "keyring.json").read_text()
        (keys,) = (place / "backups").glob("data-keys-*.json")
        assert certificate.tenant_id not in read_data_keys(keys)
        await server.service.tenants.put(CALL, "acme", {"encryption": {"enabled": True}})
        assert await add_and_poll(server, "new") == [b"new"]
        return "deleted"


async def test_tenant_deletion_resumes_after_a_kill_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenant is intact, frozen until deleted, or gone. It is never active with rows that no key decrypts."""
    live, copies = tmp_path / "live", list[str]()

    def copied(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            for when in ("before", "after"):
                if when == "after":
                    done = real(*args, **options)
                copies.append(f"{len(copies):03} {when} {name}")
                freeze(live, tmp_path / copies[-1])
            return done

        return step

    async with server_of(live) as server:
        await server.service.tenants.put(CALL, "acme", {"encryption": {"enabled": True}})
        await server.service.messages.add(CALL, "acme", "work", [message("sealed")])
        await server.service.backups.create(CALL, "before")
        for owner, name in STEPS:
            monkeypatch.setattr(owner, name, copied(name, getattr(owner, name)))
        await server.service.erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
        monkeypatch.undo()
    outcomes = [(name, await check(tmp_path / name)) for name in list(copies)]
    kept = [name for name, outcome in outcomes if outcome == "kept"]
    assert kept == copies[: len(kept)]
    assert {name.split()[-1] for name in copies} == {name for _, name in STEPS}
