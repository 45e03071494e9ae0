"""The data key file next to the backups loses the keys of erased tenants, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.backup.data_keys import read_data_keys, write_data_keys
from tenantq.backup.manifest import MANIFEST
from tenantq.backup.restore import KEY_NUMBERS_SKIPPED, restore_backup
from tenantq.cli.command_line import run
from tenantq.errors import StoreDamaged, Unavailable
from tenantq.journal.signing import PublicKey, SigningKey
from tenantq.server import Server
from tenantq.service.call import Call
from tenantq.service.erasure import RETRY_MS
from tenantq.settings import ServerSettings
from tests.contract.backup.test_backup import ADMIN, saved
from tests.shards import message

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock

CALL = Call(bearer=ADMIN, remote="10.0.0.1")
REASON = "their contract has ended"


def server_of(data_dir: Path, backups: Path, clock: ManualClock | None = None) -> Server:
    """Return a server with its own directory of backups and its keyring in it, because several tenants share a key."""
    settings = ServerSettings(data_dir=str(data_dir), http="127.0.0.1:0", backup_dir=str(backups))
    return Server(settings, admin_token=ADMIN, clock=clock)


async def encrypt(server: Server, tenant: str) -> int:
    """Create an encrypted tenant with a message; return its ID."""
    await server.service.tenants.put(CALL, tenant, {"encryption": {"enabled": True}})
    await server.service.messages.add(CALL, tenant, "work", [message("sealed")])
    return server.shard.tenant(tenant).id


def take_keyring(old: Path, new: Path) -> None:
    """Give a restored server the keyring, which no backup contains."""
    for name in ("keyring.json", "keyring.key"):
        (new / name).write_bytes((old / name).read_bytes())
        (new / name).chmod(0o600)


async def test_erasure_reaches_backups_made_with_a_lost_audit_key(tmp_path: Path) -> None:
    """They refer to the file of the old key, which would otherwise never be written again."""
    backups = tmp_path / "backups"
    async with server_of(tmp_path / "data", backups) as server:
        gone, stays = await encrypt(server, "acme"), await encrypt(server, "globex")
        await server.service.backups.create(CALL, "before")
    (old,) = backups.glob("data-keys-*.json")
    restore_backup(backups / "before", tmp_path / "again")
    take_keyring(tmp_path / "data", tmp_path / "again")
    async with server_of(tmp_path / "again", backups) as server:
        await server.service.erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
    assert len(list(backups.glob("data-keys-*.json"))) == 2
    for file in backups.glob("data-keys-*.json"):
        assert gone not in read_data_keys(file)
    assert stays in read_data_keys(old)


async def test_server_restored_without_data_keys_leaves_the_key_file_alone(tmp_path: Path) -> None:
    """Otherwise its first backup would make all earlier ones unreadable."""
    backups = tmp_path / "backups"
    async with server_of(tmp_path / "data", backups) as server:
        tenant = await encrypt(server, "acme")
        await server.service.backups.create(CALL, "before")
    (file,) = backups.glob("data-keys-*.json")
    before = read_data_keys(file)
    (backups / "before").rename(tmp_path / "copied")
    restored = restore_backup(tmp_path / "copied", tmp_path / "again", audit_key=tmp_path / "data" / "audit_key")
    assert (restored.data_keys, restored.keys_found) == (0, False)
    take_keyring(tmp_path / "data", tmp_path / "again")
    async with server_of(tmp_path / "again", backups) as server:
        assert not server.shard.state.data_keys.by_tenant
        await server.service.backups.create(CALL, "after")
        assert read_data_keys(file) == before
        await server.service.erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
    assert tenant not in read_data_keys(file)


def test_keys_of_a_reused_tenant_id_are_dropped(tmp_path: Path) -> None:
    """IDs are reused after a restore to a time before the first tenant existed."""
    file = tmp_path / "data-keys-x.json"
    write_data_keys(file, {7: {0: b"old"}, 8: {0: b"kept"}}, 1, tenants={7: "acme/10", 8: "globex/11"})
    write_data_keys(file, {9: {0: b"new"}}, 2, tenants={7: "initech/10", 9: "hooli/12"})
    assert read_data_keys(file) == {8: {0: b"kept"}, 9: {0: b"new"}}
    write_data_keys(file, {9: {0: b"wrapped anew", 1: b"second"}}, 3, tenants={9: "hooli/12"}, erased={8})
    assert read_data_keys(file) == {9: {0: b"wrapped anew", 1: b"second"}}


async def test_restored_data_keys_only_decrypt(tmp_path: Path) -> None:
    """How often they encrypted since the backup is unknown, so the next message gets a new, unused key number."""
    backups = tmp_path / "backups"
    async with server_of(tmp_path / "data", backups) as server:
        tenant = await encrypt(server, "acme")
        await server.service.backups.create(CALL, "before")
    restore_backup(backups / "before", tmp_path / "again")
    take_keyring(tmp_path / "data", tmp_path / "again")
    async with server_of(tmp_path / "again", backups) as server:
        assert sorted(server.shard.state.data_keys.by_tenant[tenant]) == [0, 1]
        await server.service.messages.add(CALL, "acme", "work", [message("more")])
        assert sorted(server.shard.state.data_keys.by_tenant[tenant]) == [0, 1, 2 + KEY_NUMBERS_SKIPPED]
        got = await server.service.messages.poll(CALL, "acme", "work", max=9)
        assert [one.body for one in got] == [b"sealed", b"more"]


async def test_failed_erasure_is_certified_without_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    """The directory of backups was unreachable: the caller gets an error, and the erasure is completed later."""
    backups = tmp_path / "backups"
    async with server_of(tmp_path / "data", backups, clock) as server:
        await encrypt(server, "acme")
        stays = await encrypt(server, "globex")
        await server.service.backups.create(CALL, "before")
        backups.rename(tmp_path / "away")
        backups.write_text("no directory")
        with pytest.raises(Unavailable, match="data key file next to the backups"):
            await server.service.erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
        (erased,) = await server.service.erasures.list(CALL)
        assert not erased.certified_at
        clock.advance(RETRY_MS)
        await server.runtime.background.finish()
        backups.unlink()
        (tmp_path / "away").rename(backups)
        clock.advance(RETRY_MS)
        await server.runtime.background.finish()
        (certificate,) = await server.service.erasures.list(CALL)
    assert certificate.is_signed_by(PublicKey.load(tmp_path / "data" / "audit_key.pub"))
    assert [[*read_data_keys(file)] for file in backups.glob("data-keys-*.json")] == [[stays]]


async def test_unmounted_backup_directory_loses_erased_keys_when_it_is_back(
    tmp_path: Path,
) -> None:
    """An empty mount point looks like no backups, so the next start or backup removes the keys."""
    backups = tmp_path / "backups"
    async with server_of(tmp_path / "data", backups) as server:
        gone = await encrypt(server, "acme")
        await server.service.backups.create(CALL, "before")
        backups.rename(tmp_path / "away")
        backups.mkdir()
        await server.service.erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
    backups.rmdir()
    (tmp_path / "away").rename(backups)
    (file,) = backups.glob("data-keys-*.json")
    assert gone in read_data_keys(file)
    async with server_of(tmp_path / "data", backups) as server:
        await server.runtime.background.finish()
        assert gone not in read_data_keys(file)


async def test_forged_backup_is_not_restored_with_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its hashes match, its signature does not. Without a key, the output says that it was not checked."""
    backup = await saved(tmp_path)
    manifest = json.loads((backup / MANIFEST).read_bytes())
    (backup / MANIFEST).write_bytes(msgspec.json.encode({**manifest, "created_at": manifest["created_at"] + 1}))
    data = tmp_path / "data"
    with pytest.raises(StoreDamaged, match="is not signed by"):
        restore_backup(backup, tmp_path / "a", audit_key=data / "audit_key")
    with pytest.raises(StoreDamaged, match="is not signed by"):
        restore_backup(backup, tmp_path / "b", public_key=PublicKey.load(data / "audit_key.pub"))
    restore = ["backup", "restore", "--from", str(backup), "--data-dir"]
    assert run([*restore, str(tmp_path / "c"), "--public-key", str(data / "audit_key.pub")]) != 0
    assert not (tmp_path / "c").exists()
    assert run([*restore, str(tmp_path / "d")]) == 0
    assert "signature was not checked" in capsys.readouterr().out


def test_old_signatures_stay_verifiable_after_a_new_audit_key(tmp_path: Path) -> None:
    """The old public key is kept under its ID."""
    first = SigningKey.load_or_make(tmp_path).public
    (tmp_path / "audit_key").unlink()
    second = SigningKey.load_or_make(tmp_path).public
    assert second.id != first.id
    assert (tmp_path / f"audit_key-{first.id}.pub").read_bytes() == first.pem()
    assert (tmp_path / "audit_key.pub").read_bytes() == second.pem()
    assert SigningKey.load_or_make(tmp_path).public.id == second.id
    assert len(list(tmp_path.glob("audit_key-*.pub"))) == 1
