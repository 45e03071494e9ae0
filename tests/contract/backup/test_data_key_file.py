"""The file of data key file next to the backups: it loses what was erased, and nothing else."""

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
    """Return a server whose backups are in a place of their own, with its keyring there too, as several tenants share a key."""
    settings = ServerSettings(data_dir=str(data_dir), http="127.0.0.1:0", backup_dir=str(backups))
    return Server(settings, admin_token=ADMIN, clock=clock)


async def encrypt(server: Server, tenant: str) -> int:
    """Have a tenant with an encrypted message; return its id."""
    await server.service.tenants.put(CALL, tenant, {"encryption": {"enabled": True}})
    await server.service.messages.add(CALL, tenant, "work", [message("sealed")])
    return server.shard.tenant(tenant).id


def take_keyring(old: Path, new: Path) -> None:
    """Give a restored server the keyring, which is in no backup."""
    for name in ("keyring.json", "keyring.key"):
        (new / name).write_bytes((old / name).read_bytes())
        (new / name).chmod(0o600)


async def test_an_erasure_reaches_backups_from_before_the_audit_key_was_lost(tmp_path: Path) -> None:
    """They name the file of the old key, which nobody would write any more."""
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


async def test_a_server_restored_without_its_data_keys_does_not_take_them_from_the_backups(tmp_path: Path) -> None:
    """Else its first backup would have made every earlier one unreadable for good."""
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


def test_keys_of_a_tenant_whose_id_is_anothers_now_are_not_given_to_it(tmp_path: Path) -> None:
    """As after a restore to a time when the first one was not there yet."""
    file = tmp_path / "data-keys-x.json"
    write_data_keys(file, {7: {0: b"old"}, 8: {0: b"kept"}}, 1, tenants={7: "acme/10", 8: "globex/11"})
    write_data_keys(file, {9: {0: b"new"}}, 2, tenants={7: "initech/10", 9: "hooli/12"})
    assert read_data_keys(file) == {8: {0: b"kept"}, 9: {0: b"new"}}
    write_data_keys(file, {9: {0: b"wrapped anew", 1: b"second"}}, 3, tenants={9: "hooli/12"}, erased={8})
    assert read_data_keys(file) == {9: {0: b"wrapped anew", 1: b"second"}}


async def test_restored_data_keys_open_and_seal_no_more(tmp_path: Path) -> None:
    """How often they sealed since the file was written is not known. The next message has a new key with an unused number."""
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


async def test_an_erasure_whose_end_failed_is_certified_when_it_can_be(tmp_path: Path, clock: ManualClock) -> None:
    """The backups' place was away: the caller is told, and nobody has to restart the server."""
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


async def test_a_place_for_backups_that_was_away_during_an_erasure_loses_the_keys_when_it_is_back(
    tmp_path: Path,
) -> None:
    """With the next start, or the next backup: an empty mount point looks like a place without backups."""
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


async def test_a_backup_that_somebody_made_fit_is_not_restored_with_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its hashes are right, its signature is not; without any key it cannot be told, and that is said."""
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


def test_another_audit_key_does_not_make_older_signatures_unverifiable(tmp_path: Path) -> None:
    """Whether it was lost, or replaced by somebody: the old public key stays, under its id."""
    first = SigningKey.load_or_make(tmp_path).public
    (tmp_path / "audit_key").unlink()
    second = SigningKey.load_or_make(tmp_path).public
    assert second.id != first.id
    assert (tmp_path / f"audit_key-{first.id}.pub").read_bytes() == first.pem()
    assert (tmp_path / "audit_key.pub").read_bytes() == second.pem()
    assert SigningKey.load_or_make(tmp_path).public.id == second.id
    assert len(list(tmp_path.glob("audit_key-*.pub"))) == 1
