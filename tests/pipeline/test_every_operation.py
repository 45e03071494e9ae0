"""Every operation of the engine through journal, pipeline and reconciliation: the lake agrees with the queues' counters."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tenantq.domain.access import Grant
from tenantq.domain.message import SYSTEM, Result
from tenantq.domain.signup import SignupRequest
from tenantq.engine.operation import Operation
from tenantq.engine.ops.repair import Repair
from tenantq.engine.ops.signup import RequestSignup
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.errors import TenantqError
from tenantq.journal.export_settings import ExportSettings
from tenantq.pipeline.reconciliation import reconcile
from tenantq.pipeline.run import run
from tenantq.pipeline.run_options import RunOptions
from tenantq.server import Server
from tenantq.service.call import Call
from tenantq.settings import ServerSettings
from tenantq.store.keys import waiting_key
from tests.contract.export_import.archive import import_export, written
from tests.contract.gates.harness import suspension
from tests.contract.gates.service_calls import SERVICE_CALLS
from tests.shards import message, pass_time, wait_until_idle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tenantq.pipeline.lake.lake import Lake
    from tenantq.runtime.clock import ManualClock

ADMIN = "administrator-of-the-tests"
CALL = Call(bearer=ADMIN, remote="10.0.0.1")
REASON = "a test of every operation"
ORPHAN = bytes.fromhex("018bcfe5680070008000000000000001")
NOT_IN_ROWS = {"", "note_entries"}
"""Operations whose rows have other names."""

ONLY_IN_CLUSTERS = {"move_tenant", "spread_tenant", "send_rights", "receive_rights", "restore_rights", "quota_warning"}
"""Operations that a server with one shard does not have."""


def operations(of: type[Operation[object]] = Operation) -> Iterator[type[Operation[object]]]:
    """Yield every kind of operation."""
    for one in of.__subclasses__():
        yield one
        yield from operations(one)


async def work_with_messages(server: Server, clock: ManualClock) -> None:
    """Add, deliver, settle, move, expire, remove and purge messages."""
    service, shard = server.service, server.shard
    await service.tenants.put(CALL, "acme", {})
    await service.tenants.put(CALL, "acme", {"weight": 3})
    await service.queues.put(CALL, "acme", "work", {"max_attempts": 2, "backoff_base_ms": 0, "backoff_max_ms": 0})
    added = await service.messages.add(
        CALL, "acme", "work", [message("x" * n, priority=n % 3, key=f"k{n}") for n in range(1, 31)]
    )
    await service.messages.add(CALL, "acme", "work", [message("x", priority=1, key="k1")])
    await service.messages.add(CALL, "acme", "work", [message("short", ttl_ms=500), message("a", group="g")])
    got = await service.messages.poll(CALL, "acme", "work", max=8, lease_ms=5_000)
    receipts = [one.receipt for one in got]
    await service.settlement.ack(CALL, "acme", "work", receipts[:2], [Result("completed", b"42"), None])
    await service.settlement.ack(CALL, "acme", "work", receipts[:2])
    await service.settlement.extend(CALL, "acme", "work", receipts[2:4], lease_ms=9_000)
    await service.settlement.release(CALL, "acme", "work", receipts[4:5])
    await service.settlement.remove(CALL, "acme", "work", [got[5].id, getattr(added[-1], "id", ""), got[0].id])
    await service.fleet.poll(CALL, "work", tenants=["acme"], max=3, lease_ms=1_000)
    await pass_time(shard, clock, 2_000)
    for _ in range(3):
        got = await service.messages.poll(CALL, "acme", "work", max=4)
        await service.settlement.nack(CALL, "acme", "work", [one.receipt for one in got], delay_ms=0, reason="no")
    for options in ({"dry_run": True}, {"filter": RedriveFilter(limit=2)}, {"filter": RedriveFilter(to="elsewhere")}):
        await service.queues.put(CALL, "acme", "elsewhere", {})
        await service.redrives.start(CALL, "acme", "work-dlq", **{"filter": RedriveFilter(limit=3), **options})  # type: ignore[arg-type]
        await wait_until_idle(shard)
    slow = await service.redrives.start(CALL, "acme", "work-dlq", filter=RedriveFilter(), rate=1)
    await service.redrives.cancel(CALL, "acme", "work-dlq", slow.id)
    await service.messages.add(CALL, "acme", "elsewhere", [message("at the orphan's priority")])
    prefix = shard.state.catalog.tenant("acme").queues["elsewhere"].prefix
    batch = shard.state.store.new_batch()
    orphan = waiting_key(prefix, 0, shard.state.shard_clock.now_ms() - 5, ORPHAN)
    batch.put(orphan, b"", shard.state.store.vi.handle)
    shard.state.store.write(batch)
    shard.state.catalog.tenant("acme").queues["elsewhere"].level(0).cursor = b""
    await service.messages.poll(CALL, "acme", "elsewhere", max=9)
    await shard.submit(Repair(shard.state.catalog.tenant("acme").queues["elsewhere"]))
    files = await written(await service.exports.export(CALL, "acme"))
    await service.tenants.put(CALL, "copy", {})
    await import_export(server, CALL, files, "copy")  # type: ignore[arg-type]  # it needs the service only
    for queue in ("purged", "deleted"):
        await service.messages.add(CALL, "acme", queue, [message("a"), message("b")])
    await service.queues.purge(CALL, "acme", "purged", confirm="purged", reason=REASON)
    await service.messages.add(CALL, "acme", "purged", [message("c")])
    await service.queues.delete(CALL, "acme", "deleted", confirm="deleted", reason=REASON, force=True)
    await pass_time(shard, clock, 60_000)


async def administer(server: Server) -> None:
    """Make every other call, once with valid arguments and once from the table of all calls."""
    service = server.service
    await service.tenants.put(CALL, "sealed", {"encryption": {"enabled": True}})
    await service.messages.add(CALL, "sealed", "work", [message("sealed")])
    await service.encryption.rewrap(CALL, "sealed")
    await service.queues.suspend(CALL, "acme", "purged", REASON)
    await service.queues.resume(CALL, "acme", "purged")
    made = await service.access.create_key(CALL, "acme", "a key", Grant(role="operator"))
    await service.queues.list(Call(bearer=made.token, remote="10.0.0.1"), None)
    request = SignupRequest(tenant="newcomer", contact="ann")
    await server.shard.submit(RequestSignup(server.shard.state.platform, SYSTEM, request, 9))
    await service.containment.contain_local(suspension("acme", made.key_id, dry_run=True))
    await service.access.revoke_key(CALL, "acme", made.key_id)
    for name, (_, act) in SERVICE_CALLS.items():
        if name == "erasures.delete_tenant":
            await service.legal_holds.release(CALL, "sealed", REASON)
        with contextlib.suppress(TenantqError):
            await act(service, CALL, "sealed")
        if name == "tenants.suspend":
            await service.tenants.resume(CALL, "sealed")
        if name == "tenants.put":
            await service.legal_holds.place(CALL, "sealed", REASON)


async def test_every_operation_reconciles_to_zero(
    clock: ManualClock, spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """After a clean stop of a store with a trimmed journal, there is no difference and nothing left to export."""
    data = tmp_path / "data"
    export = ExportSettings(keep_records=4)
    settings = ServerSettings(data_dir=str(data), http="127.0.0.1:0", rpc="off", export=export)
    async with Server(settings, admin_token=ADMIN, clock=clock) as server:
        await work_with_messages(server, clock)
        await administer(server)
        assert server.runtime.exporter is not None
        await server.runtime.exporter.export_now()
        await server.runtime.exporter.export_now()
        await wait_until_idle(server.shard)
        assert server.shard.journal.span[0] > 1
    report = run(spark, str(data / "journal"), lake, RunOptions(now_ms=clock.wall_ms()))
    assert not report.quarantined
    found = reconcile(spark, lake, [data])
    assert found.drifts == []
    assert found.lake_seq == found.store_seq
    seen = {row["op"] for row in lake.need(spark, "bronze").select("op").distinct().collect()}
    assert {one.journal_op for one in operations()} - NOT_IN_ROWS - ONLY_IN_CLUSTERS - seen == set()
