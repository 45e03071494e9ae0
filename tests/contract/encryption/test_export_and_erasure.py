"""Encrypted tenants are exported in plaintext and reencrypted on import; erased tenants cannot be read anywhere."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tenantq.backup.restore import restore_backup
from tenantq.doctor.store_check import examine
from tenantq.domain.message import Result
from tenantq.errors import KmsUnavailable, TenantqError
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.signing import PublicKey
from tenantq.server import Server
from tenantq.service.call import Call
from tenantq.service.tenant_export import TenantExport
from tenantq.settings import ServerSettings
from tests.contract.encryption.harness import PLAINTEXT, EncryptedHarness, files_with
from tests.contract.export_import.archive import import_export, lines, written
from tests.shards import examined, freeze, message

if TYPE_CHECKING:
    from pathlib import Path

CALL = Call(bearer="administrator-of-the-tests")
REASON = "because a test says so"


async def test_encrypted_tenant_is_exported_in_plaintext_and_reencrypted(
    harness: EncryptedHarness, tmp_path: Path
) -> None:
    """Bodies, secret attributes, dead letters and results are readable in export and import, and on no disk."""
    owner = await harness.encrypted("acme", secret_attributes=["card"])
    service = harness.service
    await service.queues.put(owner, None, "work", {"max_attempts": 1})
    await harness.add(owner, "work", f"{PLAINTEXT} a", f"{PLAINTEXT} b", attributes={"card": PLAINTEXT, "shop": "x"})
    await harness.add(owner, "work", f"{PLAINTEXT} c")
    dies, done = await harness.take(owner, "work", max=2)
    await service.settlement.nack(owner, None, "work", [dies.receipt], reason="broken")
    await service.settlement.ack(owner, None, "work", [done.receipt], [Result("completed", PLAINTEXT.encode())])
    harness.forget_keys()
    files = await written(await service.exports.export(owner, None))
    assert [one["body"] for one in lines(files, "messages")] == [f"{PLAINTEXT} c", f"{PLAINTEXT} a"]
    assert lines(files, "messages")[1]["attributes"] == {"card": PLAINTEXT, "shop": "x"}
    assert lines(files, "results")[-1]["value"] == PLAINTEXT
    other = await harness.encrypted("other", secret_attributes=["card"])
    await import_export(harness, other, files, "other")
    harness.forget_keys()
    (got,) = await harness.take(other, "work")
    assert got.body.decode() == f"{PLAINTEXT} c"
    (letter,) = await harness.take(other, "work-dlq")
    assert (letter.body.decode(), letter.attributes["card"]) == (f"{PLAINTEXT} a", PLAINTEXT)
    result, _ = await service.message_reads.result(other, None, "work", done.id)
    assert result.value == PLAINTEXT.encode()
    harness.shard.state.store.files.flush()
    assert files_with(PLAINTEXT, tmp_path) == []
    harness.provider.failure = KmsUnavailable()
    harness.forget_keys()
    exporting = await service.exports.export(owner, None)
    with pytest.raises(KmsUnavailable):
        await written(exporting)
    harness.provider.failure = None
    await harness.close()
    await harness.shard.close()
    assert examined(harness.shard).clean


def server_of(data_dir: Path) -> Server:
    """Return a server with a keyring in its data directory."""
    settings = ServerSettings(data_dir=str(data_dir), http="127.0.0.1:0", export=ExportSettings(keep_records=4))
    return Server(settings, admin_token=CALL.bearer)


async def read_all(server: Server) -> bytes:
    """Return everything that a server returns of acme's messages."""
    seen = b""
    for act in (
        lambda: server.service.messages.poll(CALL, "acme", "work", max=10),
        lambda: server.service.message_reads.peek(CALL, "acme", "work"),
        lambda: server.service.exports.export(CALL, "acme"),
    ):
        try:
            got = await act()
            if isinstance(got, TenantExport):
                try:
                    seen += b"".join([part async for part in got])
                finally:
                    got.close()
            else:
                seen += repr(got).encode()
        except TenantqError as error:
            seen += error.message.encode()
    return seen


@pytest.mark.rocksdb_only("copies its files and restores a backup")
async def test_erased_tenant_cannot_be_read_from_store_log_backup_or_segment(tmp_path: Path) -> None:
    """With the server's keyring after the erasure, no earlier copy decrypts."""
    data, backups, frozen = tmp_path / "data", tmp_path / "data-backups", tmp_path / "frozen"
    async with server_of(data) as server:
        service = server.service
        await service.tenants.put(CALL, "acme", {"encryption": {"enabled": True}})
        await service.messages.add(CALL, "acme", "work", [message(f"{PLAINTEXT} {n}") for n in range(20)])
        assert server.runtime.exporter is not None
        await server.runtime.exporter.export_now()
        await service.backups.create(CALL, "before")
        await service.messages.add(CALL, "acme", "work", [message(f"{PLAINTEXT} in the log")])
        freeze(data, frozen)
        assert PLAINTEXT.encode() in await read_all(server)
        certificate = await service.erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
        assert [key.number for key in certificate.data_keys] == [0, 1]
        assert certificate.is_signed_by(PublicKey.load(data / "audit_key.pub"))
    assert files_with(PLAINTEXT, data, backups, frozen) == []
    restore_backup(backups / "before", tmp_path / "restored")
    for place in ("restored", "frozen"):
        for name in ("keyring.json", "keyring.key"):
            shutil.copy(data / name, tmp_path / place / name)
        async with server_of(tmp_path / place) as server:
            assert server.shard.reads.stats("acme", "work").ready >= 20  # the rows exist ...
            seen = await read_all(server)
        assert PLAINTEXT.encode() not in seen, place  # ... and cannot be decrypted
    assert examine(data).clean
