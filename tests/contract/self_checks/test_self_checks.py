"""Self-checks: each finds real damage, reports it everywhere, and stops nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tenantq.domain.names import PROBE_TENANTS
from tenantq.domain.validation import validated
from tenantq.engine.catalog import USAGE_ROW
from tenantq.engine.recount import TenantRecount
from tenantq.engine.usage import WindowsRow
from tenantq.errors import Conflict, Invalid
from tenantq.journal.checkpoint import CHECKPOINT_ROW
from tenantq.journal.signing import SigningKey
from tenantq.service.self_checks.audit_integrity import AuditIntegrity
from tenantq.service.self_checks.check import CheckResult, CheckSettings
from tenantq.service.self_checks.isolation_probe import IsolationProbe
from tenantq.service.self_checks.quota_accuracy import QuotaAccuracy
from tenantq.service.self_checks.runner import SelfChecks
from tenantq.store.keys import be64, tenant_prefix
from tenantq.store.rows import unpack_counters
from tests.administration import usage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.gates.harness import ServiceHarness


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    """Return the key that signs checkpoints."""
    return SigningKey.load_or_make(tmp_path)


def tamper(harness: ServiceHarness, family: str, row: bytes, value: bytes | None) -> None:
    """Write or delete a row behind the shard's back."""
    store = harness.shard.state.store
    batch = store.new_batch()
    if value is None:
        batch.delete(row, store.family(family).handle)
    else:
        batch.put(row, value, store.family(family).handle)
    store.write(batch)


async def busy(harness: ServiceHarness) -> None:
    """Create a tenant with messages, some of them leased."""
    await harness.tenant("acme", quotas={"messages_per_hour": 1_000})
    owner = await harness.key("acme")
    for number in range(5):
        await harness.add(owner, f"q{number % 2}", *(f"{n}" * 50 for n in range(4)))
    await harness.take(owner, "q0", max=3)
    await harness.wait_until_idle()


# ---- isolation ----


async def test_probe_is_refused_everywhere_and_leaves_no_key(harness: ServiceHarness) -> None:
    """It can be repeated, raises no alert, and uses its own tenants."""
    probe = IsolationProbe(harness.service, harness.shard)
    for _ in range(3):
        result = await probe.run()
        assert result == CheckResult(ok=True, text="another tenant's credential was refused everywhere")
    for tenant in PROBE_TENANTS:
        keys = harness.shard.state.access.keys(harness.shard.tenant(tenant).id)
        assert all(one.revoked_at is not None for one in keys.values())
        assert usage(harness.shard, tenant)["backlog"] == 0
        with pytest.raises(Conflict, match="server's isolation probe"):
            await harness.service.tenants.put(harness.admin, tenant, {})
    assert await harness.rows(op="alert") == []
    denied = await harness.rows(result="DENIED", tenant=PROBE_TENANTS[0])
    assert {row.request_id for row in denied} == {"self-check"}


async def test_probe_finds_an_authorizer_that_allows_everything(
    harness: ServiceHarness,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It names the calls that were allowed."""
    monkeypatch.setattr(harness.admission.authorizer, "allowed", lambda *_: True)
    result = await IsolationProbe(harness.service, harness.shard).run()
    assert not result.ok
    for act in ("peek", "get", "usage", "audit"):
        assert act in result.text


async def test_probe_finds_tenants_that_share_a_key_prefix(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A valid receipt in another tenant's queue must not settle anything."""
    probe = IsolationProbe(harness.service, harness.shard)
    assert (await probe.run()).ok
    mine, other = (harness.shard.tenant(name).queues["probe"] for name in PROBE_TENANTS)
    monkeypatch.setattr(other, "prefix", mine.prefix)
    result = await probe.run()
    assert not result.ok
    assert "in its own queue" in result.text or "receipt" in result.text


# ---- quotas ----


async def test_correct_counters_pass_under_load(harness: ServiceHarness) -> None:
    """Tenants are checked in turns, a limited number in one run."""
    await busy(harness)
    check = QuotaAccuracy(harness.shard, tenants=1, rows=10_000)
    texts = [(await check.run()).text for _ in range(3)]
    assert texts[0] == "1 tenants recounted, 23 rows"
    assert texts[1] == "1 tenants recounted, 0 rows"
    assert texts[2] == texts[0]
    bounded = await QuotaAccuracy(harness.shard, tenants=5, rows=9).run()
    assert bounded.ok
    assert "too long for one run" in bounded.text


def edit_counters(harness: ServiceHarness) -> None:
    """Change the stored counters of a queue."""
    queue = harness.shard.tenant("acme").queues["q0"]
    stored = harness.shard.state.store.get(harness.shard.state.store.qc, queue.prefix)
    assert stored is not None
    row = msgspec.structs.replace(unpack_counters(stored), bytes=7)
    tamper(harness, "qc", queue.prefix, msgspec.msgpack.encode(row))


def lose_counters(harness: ServiceHarness) -> None:
    """Delete the stored counters of a queue."""
    tamper(harness, "qc", harness.shard.tenant("acme").queues["q0"].prefix, None)


def edit_hour(harness: ServiceHarness) -> None:
    """Change the stored hour of the tenant."""
    state = harness.shard.tenant("acme")
    row = WindowsRow(state.usage.hour.number, 1, state.usage.day.number, state.usage.day.messages)
    tamper(harness, "meta", USAGE_ROW + tenant_prefix(state.id), msgspec.msgpack.encode(row))


def lose_message(harness: ServiceHarness) -> None:
    """Delete a message's row."""
    store, prefix = harness.shard.state.store, harness.shard.tenant("acme").queues["q1"].prefix
    tamper(harness, "m", store.scan(store.m, prefix, prefix + b"\xff" * 16, 1)[0], None)


def lose_lease(harness: ServiceHarness) -> None:
    """Delete a lease's row."""
    store, prefix = harness.shard.state.store, harness.shard.tenant("acme").queues["q0"].prefix
    tamper(harness, "li", store.scan(store.li, prefix, prefix + b"\xff" * 24, 1)[0], None)


def edit_memory(harness: ServiceHarness) -> None:
    """Change the tenant's usage in memory."""
    harness.shard.tenant("acme").usage.messages += 1


@pytest.mark.parametrize(
    ("deed", "text"),
    [
        (edit_counters, "counts 600 bytes, its stored counters say 7"),
        (lose_counters, "has no stored counters"),
        (edit_hour, "counts 20 messages this hour, stored are 1"),
        (lose_message, "counts 8 messages, a recount gives 7"),
        (lose_lease, "counts 3 in_flight, a recount gives 2"),
        (edit_memory, "uses 21 of backlog, its queues have 20"),
    ],
)
async def test_wrong_counter_is_found(harness: ServiceHarness, deed: Any, text: str) -> None:
    """It is named, whether it is wrong in the store or in memory."""
    await busy(harness)
    check = QuotaAccuracy(harness.shard, tenants=10, rows=10_000)
    assert (await check.run()).ok
    deed(harness)
    result = await check.run()
    assert not result.ok
    assert text in result.text
    assert "acme" in result.text


# ---- the audit trail ----


async def test_new_records_are_verified_once_and_older_ones_in_turns(harness: ServiceHarness, key: SigningKey) -> None:
    """This works across checkpoints and trims, a limited number in one run."""
    await busy(harness)
    check = AuditIntegrity(harness.shard, key.public, records=1_000)
    last = harness.shard.journal.span[1]
    assert (await check.run()).text == f"{last} new and {last} older records follow the chain"
    await harness.shard.journal.sign(key)
    assert (await check.run()).text.startswith("1 new and")
    await harness.shard.journal.trim(4)
    await harness.wait_until_idle()
    assert (await check.run()).ok
    bounded = AuditIntegrity(harness.shard, key.public, records=5)
    for _ in range(4):
        result = await bounded.run()
        assert result.ok
        assert result.text.startswith(("5 new and 0", "0 new and 5", "0 new and"))


@pytest.mark.not_on_redis("a Redis stream lets no entry be replaced")
async def test_edited_journal_row_is_found(harness: ServiceHarness, key: SigningKey) -> None:
    """The first bad record is named, whether or not it was verified before."""
    await busy(harness)
    check = AuditIntegrity(harness.shard, key.public, records=1_000)
    assert (await check.run()).ok
    value = bytearray(dict(harness.shard.journal.scan(5, 5, 1))[5])
    value[50] ^= 1
    tamper(harness, "jn", be64(5), bytes(value))
    await harness.add(await harness.key("acme"), "q0")  # new records do not prevent checks of old ones
    await harness.wait_until_idle()
    result = await check.run()
    assert not result.ok
    assert result.text.startswith("record 5 cannot be trusted: Record 5 was changed")


async def test_deleted_journal_row_is_found(harness: ServiceHarness, key: SigningKey) -> None:
    """It may be in the middle or at the end."""
    await busy(harness)
    check = AuditIntegrity(harness.shard, key.public, records=1_000)
    last = harness.shard.journal.span[1]
    tamper(harness, "jn", be64(last), None)
    result = await check.run()
    assert not result.ok
    assert result.text.startswith(f"record {last} cannot be trusted")
    tamper(harness, "jn", be64(6), None)
    assert (await AuditIntegrity(harness.shard, key.public, 1_000).run()).text.startswith("record 6 cannot be trusted")


async def test_tampered_checkpoint_is_found(harness: ServiceHarness, key: SigningKey) -> None:
    """It is forged or deleted."""
    await busy(harness)
    await harness.shard.journal.sign(key)
    seq, value = harness.shard.journal.checkpoints(0)[0]
    check = AuditIntegrity(harness.shard, key.public, records=1_000)
    assert (await check.run()).ok
    tamper(harness, "meta", CHECKPOINT_ROW + be64(seq), value.replace(b'"ts":', b'"ts":1'))
    assert "not signed by the server" in (await check.run()).text
    tamper(harness, "meta", CHECKPOINT_ROW + be64(seq), value)
    assert not (await check.run()).ok  # a failed check stays failed, although the row looks right again
    tamper(harness, "meta", CHECKPOINT_ROW + be64(seq), None)
    assert "was removed" in (await AuditIntegrity(harness.shard, key.public, 1_000).run()).text


# ---- all together ----


class ConfigurableCheck:
    """A check with a configured outcome."""

    name = "moody"

    def __init__(self) -> None:
        self.result: CheckResult | Exception = CheckResult(ok=True, text="fine")

    async def run(self) -> CheckResult:
        """Return or raise the outcome."""
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def runner(harness: ServiceHarness, *checks: Any, **settings: Any) -> SelfChecks:
    """Return the checks as a server runs them."""
    made = SelfChecks(checks, harness.shard, harness.admission, harness.clock, CheckSettings(**settings))
    harness.service.status.checks = made
    return made


async def test_checks_run_on_schedule_and_report_their_outcome(harness: ServiceHarness, key: SigningKey) -> None:
    """It is in readiness without details, in the metrics, and in the journal."""
    checks = runner(
        harness,
        IsolationProbe(harness.service, harness.shard),
        QuotaAccuracy(harness.shard, 10, 1_000),
        AuditIntegrity(harness.shard, key.public, 1_000),
        every_ms=60_000,
    )
    checks.start()
    assert harness.service.status.readiness()["checks"]["isolation"] == {"status": "not_run", "at": None}
    for _ in range(2):
        await harness.pass_time(60_000)
        while any(state.at != harness.clock.wall_ms() for state in checks.states.values()):
            await harness.wait_until_idle()
    await harness.wait_until_idle()
    checks.close()
    shown = harness.service.status.readiness()["checks"]
    assert {name: one["status"] for name, one in shown.items()} == {
        "isolation": "ok", "quota_accuracy": "ok", "audit_integrity": "ok",
    }  # fmt: skip
    rows = await harness.rows(op="self_check")
    assert [row.details.partition(":")[0] for row in rows] == ["isolation", "quota_accuracy", "audit_integrity"] * 2
    assert {(row.outcome, row.tenant) for row in rows} == {("ok", "")}
    text = (await harness.service.status.metrics(harness.admin)).decode()
    assert 'tenantq_self_check_ok{check="isolation"} 1.0' in text
    assert 'tenantq_self_checks_total{check="audit_integrity",status="ok"} 2.0' in text


async def test_failing_check_alerts_once_and_stops_nothing(harness: ServiceHarness) -> None:
    """It is reported until it passes again; a check that raises has failed."""
    moody = ConfigurableCheck()
    checks = runner(harness, moody)
    await checks.run_now()
    for trouble in (CheckResult(ok=False, text="tenant acme is off"), ValueError("boom")):
        moody.result = trouble
        await checks.run_now()
    await harness.wait_until_idle()
    shown = harness.service.status.readiness()
    assert shown["ready"]
    assert shown["checks"]["moody"]["status"] == "failed"
    assert "acme" not in repr(shown)  # readiness is public
    (alert,) = await harness.rows(op="alert")
    assert (alert.outcome, alert.details) == ("self_check", "critical: moody: tenant acme is off")
    rows = await harness.rows(op="self_check", result="ERROR")
    assert [row.details for row in rows] == [
        "moody: tenant acme is off",
        "moody: the check failed with an exception: ValueError('boom')",
    ]
    assert b'tenantq_self_check_ok{check="moody"} 0.0' in await harness.service.status.metrics(harness.admin)
    moody.result = CheckResult(ok=True, text="fine")
    await checks.run_now()
    assert harness.service.status.readiness()["checks"]["moody"]["status"] == "ok"
    moody.result = CheckResult(ok=False, text="again")
    await checks.run_now()
    await harness.wait_until_idle()
    assert len(await harness.rows(op="alert")) == 2


async def test_disabled_checks_do_not_run(harness: ServiceHarness) -> None:
    """They do not run after a close either."""
    checks = runner(harness, ConfigurableCheck(), enabled=False, every_ms=1_000)
    checks.start()
    await harness.pass_time(5_000)
    assert checks.states["moody"].status == "not_run"
    checks = runner(harness, ConfigurableCheck(), every_ms=1_000)
    checks.start()
    checks.close()
    await harness.pass_time(5_000)
    assert checks.states["moody"].status == "not_run"


@pytest.mark.parametrize("wrong", [{"every_ms": 1}, {"tenants": 0}, {"rows": 0}, {"records": 0}])
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    """The error names the section."""
    with pytest.raises(Invalid, match=f"checks.{next(iter(wrong))}"):
        validated(CheckSettings(**wrong), "checks.")


async def test_recount_uses_a_snapshot_as_of_the_counters(harness: ServiceHarness) -> None:
    """Work during the recount makes no difference."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    await harness.add(owner, "work")
    recount = TenantRecount(harness.shard.state, harness.shard.tenant("acme"), 10_000)
    for _ in range(3):
        await harness.add(owner, "work")
    await harness.take(owner, "work")
    assert recount.run() == []
    recount.close()
