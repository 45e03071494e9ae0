"""Erasure: first keys, then rows, then bytes, and a certificate that anybody can verify."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.cli.command_line import run
from tenantq.doctor.store_check import examine
from tenantq.domain.message import Result
from tenantq.errors import Invalid, LegalHold, NotFound
from tenantq.journal.erasure_certificate import read_certificate
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.signing import PublicKey
from tenantq.server import Server
from tenantq.service.call import Call
from tenantq.settings import ServerSettings
from tests.administration import put_data_key, put_tenant
from tests.shards import journal_rows, message
from tests.verbs import verbs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.verbs import Shard

ADMIN = "administrator-of-the-tests"
CALL = Call(bearer=ADMIN, remote="10.0.0.1")
REASON = "their contract has ended"
MARK = b"plainly-seen-7f3a"


def server_of(data_dir: Path) -> Server:
    """Return a server with its administrator."""
    settings = ServerSettings(data_dir=str(data_dir), http="127.0.0.1:0", export=ExportSettings(keep_records=4))
    return Server(settings, admin_token=ADMIN)


def files_with(mark: bytes, directory: Path) -> list[str]:
    """Return the names of all files that contain ``mark``."""
    return [path.name for path in sorted(directory.rglob("*")) if path.is_file() and mark in path.read_bytes()]


async def fill(shard: Shard, tenant: str) -> None:
    """Give a tenant marked bodies, attributes, groups, keys, reasons and results, in tables and in the log."""
    mark = MARK.decode()
    await put_tenant(shard, tenant)
    await shard.add(
        tenant,
        "work",
        [message(f"{mark} {n}", attributes={"a": mark}, group=mark, key=f"{mark}{n}") for n in range(50)],
    )
    await shard.add(tenant, "jobs", [message(mark) for _ in range(20)])
    shard.state.store.files.flush()
    await shard.add(tenant, "jobs", [message(mark, delay_ms=1_000) for _ in range(20)])
    done, failed = await shard.poll(tenant, "jobs", max=2)
    await shard.ack(tenant, "jobs", [done.receipt], results=[Result("completed", MARK)])
    await shard.nack(tenant, "jobs", [failed.receipt])


@pytest.mark.rocksdb_only("looks at its files; tests/redis_store/test_durability.py looks at those of Redis")
async def test_no_byte_of_a_deleted_tenant_is_left_in_the_store(tmp_path: Path) -> None:
    """Tables and log are clean once the certificate exists; another tenant keeps everything."""
    data = tmp_path / "data"
    async with server_of(data) as server:
        await fill(verbs(server.shard), "acme")
        await server.shard.add("default", "other", [message("stays")])
        await server.shard.snapshots.open("acme", "work")  # closed, because it would hold the rows
        assert files_with(MARK, data / "db")
        certificate = await server.service.erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
        assert files_with(MARK, data) == []
        assert server.shard.reads.stats("default", "other").ready == 1
        assert certificate.counts == {
            "queues": 2,
            "messages": 89,
            "bytes": certificate.counts["bytes"],
            "keys": 0,
            "grants": 0,
        }
        assert server.shard.erasure.certificates() == [certificate]
    assert files_with(MARK, data) == []
    assert examine(data).clean
    assert run(["audit", "verify", "--data-dir", str(data)]) == 0


@pytest.mark.not_on_redis("a snapshot holds only rows of its own queue")
async def test_certificate_is_signed_after_other_tenants_snapshots_have_ended(tmp_path: Path, store_kind: str) -> None:
    """A snapshot holds the deleted rows of all tenants. The erasure is completed once it is closed."""
    data = tmp_path / "data"
    async with server_of(data) as server:
        shard, erasures = verbs(server.shard), server.service.erasures
        await fill(shard, "acme")
        await shard.add("default", "other", [message("stays")])
        snapshot = await shard.snapshots.open("default", "other")
        await shard.snapshots.read("default", "other", snapshot.id)
        unsigned = await erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
        assert (unsigned.certified_at, unsigned.signature) == (0, "")
        assert store_kind != "rocksdb" or files_with(MARK, data / "db")
        await erasures.finish_pending()
        assert [one.certified_at for one in await erasures.list(CALL)] == [0]
        shard.snapshots.close("default", "other", snapshot.id)
        await erasures.finish_pending()
        (signed,) = await erasures.list(CALL)
        assert signed.id == unsigned.id
        assert signed.certified_at
        assert files_with(MARK, data) == []


async def test_certificate_states_what_was_erased_and_anchors_the_journal(tmp_path: Path) -> None:
    """It names who, why, when, how much and which keys, and the record of the deletion, and can be read again."""
    data = tmp_path / "data"
    async with server_of(data) as server:
        shard, service = verbs(server.shard), server.service
        await fill(shard, "acme")
        id = shard.tenant("acme").id
        await put_data_key(shard, id, 0, b"wrapped secret")
        await put_data_key(shard, id, 1, b"wrapped key")
        certificate = await service.erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
        assert (certificate.tenant, certificate.tenant_id, certificate.reason) == ("acme", id, REASON)
        assert [key.number for key in certificate.data_keys] == [0, 1]
        assert len({key.fingerprint for key in certificate.data_keys}) == 2
        assert files_with(b"wrapped", data / "db") == []
        rows = await journal_rows(shard, 0, op="delete_tenant")
        assert [(row.seq, row.principal) for row in rows] == [(certificate.seq, certificate.erased_by)]
        assert certificate.link == shard.journal.link(certificate.seq).hex()
        assert certificate.certified_at >= certificate.erased_at
        assert await service.erasures.list(CALL) == [certificate]
        assert await service.erasures.get(CALL, certificate.id) == certificate
        with pytest.raises(NotFound):
            await service.erasures.get(CALL, "no-such")
    key = PublicKey.load(data / "audit_key.pub")
    assert certificate.is_signed_by(key)
    changed = msgspec.structs.replace(certificate, reason="another one altogether")
    assert not changed.is_signed_by(key)
    async with server_of(data) as server:
        assert await server.service.erasures.list(CALL) == [certificate]


async def test_next_start_finishes_an_interrupted_erasure(tmp_path: Path) -> None:
    """The commit removed the rows; the bytes and the certificate follow."""
    data = tmp_path / "data"
    async with server_of(data) as server:
        await fill(verbs(server.shard), "acme")
        erased = await server.shard.erasure.delete_tenant("acme", reason=REASON)
        assert not erased.certified_at
    async with server_of(data) as server:
        await server.runtime.background.finish()
        (certificate,) = await server.service.erasures.list(CALL)
        assert certificate.is_signed_by(PublicKey.load(data / "audit_key.pub"))
        assert (certificate.id, certificate.seq, certificate.link) == (erased.id, erased.seq, erased.link)
        assert files_with(MARK, data) == []


async def test_hold_prevents_an_erasure_and_leaves_no_certificate(tmp_path: Path) -> None:
    """Keys, rows and bytes are still there."""
    async with server_of(tmp_path / "data") as server:
        await fill(verbs(server.shard), "acme")
        id = server.shard.tenant("acme").id
        await put_data_key(server.shard, id, 0, b"wrapped secret")
        await server.service.legal_holds.place(CALL, "acme", REASON)
        with pytest.raises(LegalHold):
            await server.service.erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
        assert server.shard.state.data_keys.by_tenant[id]
        assert server.shard.reads.stats("acme", "jobs").ready == 18
        assert await server.service.erasures.list(CALL) == []


def test_certificate_is_verified_with_the_public_key_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command accepts it unchanged, and refuses any changed field or other input."""
    data, file = tmp_path / "data", tmp_path / "certificate.json"

    async def erase() -> bytes:
        async with server_of(data) as server:
            await fill(verbs(server.shard), "acme")
            made = await server.service.erasures.delete_tenant(CALL, "acme", confirm="acme", reason=REASON)
            return msgspec.json.encode(made)

    document = json.loads(asyncio.run(erase()))
    command = ["audit", "verify-certificate", str(file), "--public-key", str(data / "audit_key.pub")]
    file.write_text(json.dumps(document, indent=4))
    assert run(command) == 0
    assert "tenant acme" in capsys.readouterr().out
    for field, value in document.items():
        other = {int: 7, str: "x", dict: {"messages": 1}, list: [{"number": 1, "fingerprint": "00"}]}[type(value)]
        if field in {"format", "product"}:
            continue
        file.write_text(json.dumps({**document, field: other}))
        assert run(command) == 1, field
    for text in ("", "{}", "[]", json.dumps({**document, "format": 2})):
        file.write_text(text)
        assert run(command) == 2
        with pytest.raises(Invalid):
            read_certificate(text.encode())
