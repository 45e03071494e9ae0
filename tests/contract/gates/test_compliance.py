"""Compliance controls: each passes after real operations that satisfy it, and fails when a fact is missing, wrong or too old."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tenantq.domain.access import Grant
from tenantq.domain.compliance import CONTROLS, ComplianceSettings
from tenantq.domain.limits import DAY_MS, HOUR_MS
from tenantq.errors import Forbidden, NotFound
from tenantq.server import Server
from tenantq.service.call import Call
from tenantq.service.compliance import merged
from tenantq.settings import ServerSettings
from tests.shards import journal_rows, message, wait_until_idle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock
    from tenantq.wire.compliance import ControlItem

ADMIN = "administrator-of-the-tests"
CALL = Call(bearer=ADMIN, remote="10.0.0.1")


@pytest.fixture
async def server(clock: ManualClock, tmp_path: Path) -> AsyncIterator[Server]:
    """Return a server with one tenant."""
    settings = ServerSettings(data_dir=str(tmp_path / "data"), http="127.0.0.1:0", rpc="off")
    async with Server(settings, admin_token=ADMIN, clock=clock) as server:
        await server.service.tenants.put(CALL, "acme", {})
        yield server


async def control(server: Server, name: str, tenant: str | None = "acme") -> ControlItem:
    """Return a control of a tenant, or of the platform."""
    compliance = server.service.compliance
    reply = await (compliance.tenant(CALL, tenant) if tenant is not None else compliance.platform(CALL))
    return next(one for one in reply.controls if one.control == name)


def shown(found: ControlItem) -> tuple[str, list[tuple[str, str]]]:
    """Return a control's status and its failed evidence."""
    return found.status, [(one.subject, one.text) for one in found.evidence if not one.passed]


async def test_encryption_is_required_with_a_recent_data_key(server: Server, clock: ManualClock) -> None:
    """Rotation does not apply without encryption."""
    assert shown(await control(server, "encryption")) == ("fail", [("encryption", "messages are stored as plaintext")])
    assert (await control(server, "key_rotation")).status == "not_applicable"
    await server.service.tenants.put(CALL, "acme", {"encryption": {"enabled": True, "rotate_every_ms": 1_000 * DAY_MS}})
    await server.service.messages.add(CALL, "acme", "work", [message("secret")])
    assert (await control(server, "encryption")).status == "pass"
    assert (await control(server, "key_rotation")).status == "pass"
    clock.jump_wall(366 * DAY_MS)
    assert shown(await control(server, "key_rotation")) == ("fail", [("data key 1", "created 366 d ago")])
    await server.service.encryption.rotate(CALL, "acme")
    assert (await control(server, "key_rotation")).status == "pass"
    platform = await control(server, "encryption", None)
    assert (platform.status, [one.tenant for one in platform.evidence if not one.passed]) == ("fail", ["default"])


async def test_grants_are_reviewed(server: Server, clock: ManualClock) -> None:
    """A new grant counts as reviewed. A review is journaled and lasts for the configured time."""
    access = server.service.access
    assert (await control(server, "grants_reviewed")).status == "not_applicable"
    await access.put_grant(CALL, "acme", "jwt:ann", Grant(role="viewer"))
    assert (await control(server, "grants_reviewed")).status == "pass"
    clock.jump_wall(91 * DAY_MS)
    assert shown(await control(server, "grants_reviewed")) == ("fail", [("jwt:ann", "reviewed 91 d ago")])
    auditor = await access.create_key(CALL, "acme", "auditor", Grant(role="auditor"))
    item = await access.review_grant(Call(bearer=auditor.token), None, "jwt:ann")
    assert item.reviewed_at == clock.wall_ms()
    assert (await control(server, "grants_reviewed")).status == "pass"
    (row,) = await journal_rows(server.shard, op="review_grant")
    assert (row.tenant, row.principal, row.details) == ("acme", f"key:{auditor.key_id}", "jwt:ann")
    with pytest.raises(NotFound, match="grant does not exist"):
        await access.review_grant(CALL, "acme", "jwt:bob")
    await access.delete_grant(CALL, "acme", "jwt:ann")
    assert (await control(server, "grants_reviewed")).status == "not_applicable"


async def test_grant_can_be_deleted_while_it_is_reviewed(server: Server, clock: ManualClock) -> None:
    """The review still returns what was reviewed, and when."""
    access = server.service.access
    await access.put_grant(CALL, "acme", "jwt:ann", Grant(role="viewer"))
    item, _ = await asyncio.gather(
        access.review_grant(CALL, "acme", "jwt:ann"), access.delete_grant(CALL, "acme", "jwt:ann")
    )
    assert (item.principal, item.role, item.reviewed_at) == ("jwt:ann", "viewer", clock.wall_ms())
    assert await access.list_grants(CALL, "acme") == []


async def test_unused_keys_must_be_revoked(server: Server, clock: ManualClock) -> None:
    """A use, a revocation or an expiry satisfies it."""
    access = server.service.access
    made = await access.create_key(CALL, "acme", "worker", Grant(role="tenant-admin"))
    assert (await control(server, "keys_used")).status == "pass"
    clock.jump_wall(91 * DAY_MS)
    subject = f"{made.key_id} worker"
    assert shown(await control(server, "keys_used")) == ("fail", [(subject, "created 91 d ago")])
    await server.service.queues.list(Call(bearer=made.token), None)
    assert (await control(server, "keys_used")).status == "pass"
    clock.jump_wall(91 * DAY_MS)
    assert shown(await control(server, "keys_used")) == ("fail", [(subject, "used 91 d ago")])
    await access.revoke_key(CALL, "acme", made.key_id)
    assert (await control(server, "keys_used")).status == "not_applicable"


@pytest.mark.not_on_redis("a Redis stream lets no entry be replaced")
async def test_self_checks_and_the_chain_are_recent_and_passed(server: Server, clock: ManualClock) -> None:
    """A check that never ran fails, and so does one that found tampering."""
    for name in ("self_checks", "audit_chain"):
        assert (await control(server, name, None)).status == "fail"
    checks = server.service.status.checks
    assert checks is not None
    await checks.run_now()
    for name in ("self_checks", "audit_chain"):
        assert (await control(server, name, None)).status == "pass"
    clock.jump_wall(25 * HOUR_MS)
    assert shown(await control(server, "audit_chain", None)) == ("fail", [("audit_integrity", "run 25 h ago")])
    store = server.shard.state.store
    (key, value), *_ = store.scan_items(store.jn, b"", b"\xff" * 9, 1)
    batch = store.new_batch()
    batch.put(key, value[:-1] + bytes([value[-1] ^ 1]), store.jn.handle)
    store.write(batch)
    await checks.run_now()
    assert (await control(server, "self_checks", None)).status == "pass"
    status, ((subject, text),) = shown(await control(server, "audit_chain", None))
    assert (status, subject) == ("fail", "audit_integrity")
    assert text.startswith("failed: record 1 cannot be trusted")


async def test_check_results_survive_a_restart(clock: ManualClock, tmp_path: Path) -> None:
    """They are read from the journal, so a restart is not a failed control."""
    settings = ServerSettings(data_dir=str(tmp_path / "data"), http="127.0.0.1:0", rpc="off")
    async with Server(settings, admin_token=ADMIN, clock=clock) as server:
        assert server.service.status.checks is not None
        await server.service.status.checks.run_now()
    async with Server(settings, admin_token=ADMIN, clock=clock) as server:
        assert (await control(server, "self_checks", None)).status == "pass"
        assert (await control(server, "audit_chain", None)).status == "pass"


@pytest.mark.rocksdb_only("restores a backup")
async def test_backups_are_recent_and_restores_are_tested(server: Server, clock: ManualClock, tmp_path: Path) -> None:
    """The test really restores the backup, in another process; a damaged one fails."""
    backups = server.service.backups
    assert shown(await control(server, "backup", None)) == ("fail", [("no backup", "never created")])
    assert shown(await control(server, "restore_test", None)) == ("fail", [("no restore test", "never restored")])
    await server.service.messages.add(CALL, "acme", "work", [message("kept")])
    await backups.create(CALL, "one")
    assert (await control(server, "backup", None)).status == "pass"
    assert (await backups.test(CALL, "one")).ok
    assert (await control(server, "restore_test", None)).status == "pass"
    clock.jump_wall(91 * DAY_MS)
    assert shown(await control(server, "backup", None)) == ("fail", [("one", "created 91 d ago")])
    assert shown(await control(server, "restore_test", None)) == ("fail", [("one", "restored 91 d ago")])
    place = tmp_path / "data-backups" / "one"
    damaged = next((place / "db").glob("*.sst"))
    damaged.write_bytes(damaged.read_bytes()[:-10])
    assert not (await backups.test(CALL, "one")).ok
    status, ((subject, text),) = shown(await control(server, "restore_test", None))
    assert (status, subject, "failed: tenantq: " in text) == ("fail", "one", True)
    assert [row.outcome for row in await journal_rows(server.shard, op="test_backup")] == ["ok", "failed"]
    assert not list(place.parent.glob(".restore-test*"))
    with pytest.raises(NotFound):
        await backups.test(CALL, "two")


@pytest.mark.rocksdb_only("makes a backup")
async def test_a_forged_restore_test_does_not_count(server: Server, tmp_path: Path) -> None:
    """Its signature is checked."""
    await server.service.backups.create(CALL, "one")
    file = tmp_path / "data-backups" / "restore_test.json"
    file.write_text(json.dumps({"name": "one", "ok": True, "text": "", "at": 1, "key_id": "x", "signature": "00"}))
    assert shown(await control(server, "restore_test", None)) == ("fail", [("no restore test", "never restored")])


async def test_alerts_are_resolved_or_silenced_in_time(server: Server, clock: ManualClock) -> None:
    """Both end the failure; a resolved alert is journaled."""
    service = server.service
    assert (await control(server, "alert_response")).status == "not_applicable"
    await service.tenants.put(CALL, "acme", {"alerts": {"oldest_ms": 1_000}})
    await service.messages.add(CALL, "acme", "work", [message("old")])
    clock.advance(2_000)
    await wait_until_idle(server.shard)
    await service.watch.evaluate()
    assert (await control(server, "alert_response")).status == "pass"
    clock.jump_wall(25 * HOUR_MS)
    assert shown(await control(server, "alert_response")) == ("fail", [("oldest work", "active, started 25 h ago")])
    await service.tenants.put(CALL, "acme", {"alerts": {"silenced_until": clock.wall_ms() + DAY_MS}})
    await service.watch.evaluate()
    assert (await control(server, "alert_response")).status == "pass"
    (delivery,) = await service.messages.poll(CALL, "acme", "work")
    await service.settlement.ack(CALL, "acme", "work", [delivery.receipt])
    await service.watch.evaluate()
    assert (await control(server, "alert_response")).status == "not_applicable"
    (row,) = await journal_rows(server.shard, op="resolve_alert")
    assert (row.tenant, row.outcome) == ("acme", "oldest")


async def test_results_are_journaled_for_the_pipeline(server: Server) -> None:
    """One row for each tenant, and one for the platform, with the status of every control."""
    await server.service.compliance.journal_now()
    rows = {row.tenant: row for row in await journal_rows(server.shard, op="compliance")}
    assert {name: row.outcome for name, row in rows.items()} == {"": "failed", "acme": "failed", "default": "failed"}
    details = json.loads(rows["acme"].details)
    assert set(details) == set(CONTROLS)
    assert details["encryption"] == {
        "status": "fail", "passed": 0, "failed": 1, "threshold": "required for all tenants",
        "text": "encryption: messages are stored as plaintext",
    }  # fmt: skip


async def test_thresholds_are_settings_and_only_auditors_may_query(clock: ManualClock, tmp_path: Path) -> None:
    """A platform that does not require encryption passes without it."""
    compliance = ComplianceSettings(encryption_required=False, key_unused_days=1)
    settings = ServerSettings(data_dir=str(tmp_path / "data"), http="127.0.0.1:0", rpc="off", compliance=compliance)
    async with Server(settings, admin_token=ADMIN, clock=clock) as server:
        await server.service.tenants.put(CALL, "acme", {})
        made = await server.service.access.create_key(CALL, "acme", "worker", Grant(role="consumer"))
        assert (await control(server, "encryption")).status == "not_applicable"
        clock.jump_wall(2 * DAY_MS)
        assert (await control(server, "keys_used")).status == "fail"
        for ask in (server.service.compliance.tenant(Call(bearer=made.token), None),
                    server.service.compliance.platform(Call(bearer=made.token))):  # fmt: skip
            with pytest.raises(Forbidden):
                await ask


async def test_controls_of_several_shards_are_merged(server: Server) -> None:
    """Any failure fails the control, and counts add up."""
    found = await server.service.compliance.list_local()
    both = merged(found, found)
    assert [one.failed for one in both] == [2 * one.failed for one in found]
    assert [one.status for one in both] == [one.status for one in found]
