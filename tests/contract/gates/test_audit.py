"""Behaviours 53 and 54: every control call adds exactly one row, and nothing is destroyed by mistake."""

# ruff: noqa: ARG005, S106  # all functions take the same arguments; a token's id is not a secret

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.access import VIEWS, Grant
from tenantq.domain.message import SYSTEM
from tenantq.domain.signup import SignupRequest
from tenantq.domain.template import Template
from tenantq.engine.ops.signup import RequestSignup
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.errors import Conflict, Forbidden, Invalid, NotFound, TenantqError, Unauthenticated
from tenantq.gates.signals import SignalSettings
from tenantq.service.audit_trail import AuditQuery
from tenantq.service.gate_settings import GateSettings
from tenantq.store.keys import FAMILIES
from tests.administration import hold_tenant, queues, usage
from tests.contract.gates.harness import ADMIN_TOKEN, REASON, ServiceHarness, suspension
from tests.contract.gates.service_calls import NOT_FOR_CALLERS, SERVICE_CALLS, UNTIL, facet_methods

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenantq.service.call import Call
    from tenantq.service.service import Service
    from tests.contract.gates.conftest import OpenHarness

    Act = Callable[[Service, Call, dict[str, Any]], Awaitable[Any]]

READS = {
    "tenants.get", "tenants.list", "tenants.plans", "alerts.list", "alerts.list_tenant", "alerts.test", "containment.list", "signups.list", "signups.get", "templates.list", "tenants.usage", "audit.query", "queues.get", "queues.list", "queues.workers", "redrives.get", "access.list_keys",
    "access.list_grants", "status.metrics", "encryption.get", "audit.query_platform", "access.list_platform_keys", "backups.list", "erasures.list",
    "erasures.get", "status.topology", "exports.digest", "access.log_in", "redrives.list",
    "tenants.residency", "status.cluster", "placement.get", "status.tenant_metrics", "compliance.tenant", "compliance.platform",
}  # fmt: skip
FIGURES = {
    "signups.get", "alerts.list", "alerts.list_tenant", "alerts.test", "redrives.get", "redrives.list", "status.metrics", "status.tenant_metrics",
    "status.topology", "status.cluster", "placement.get", "exports.digest", "access.log_in",
}  # fmt: skip
"""Reads of figures and states, which are not journaled, nor is a look at a sign-up to approve it."""
OF_KEYS = {
    "encryption.rotate",
    "encryption.rewrap",
}  # only for encrypted tenants: see tests/contract/encryption/test_failures.py
# These need a server or a cluster around them: tests/contract/backup, tests/contract/cluster.
ELSEWHERE = {"backups.create", "backups.test", "status.drain_member", "placement.place", "placement.grow"}


async def _release(service: Service, call: Call, _: dict[str, Any]) -> None:
    await hold_tenant(service.shard, "acme", reason=REASON, caller=SYSTEM)
    await service.legal_holds.release(call, "acme", REASON)


async def _export(service: Service, call: Call, _: dict[str, Any]) -> None:
    exporting = await service.exports.export(call, "acme")
    exporting.close()


async def _release_containment(service: Service, call: Call, prepared: dict[str, Any]) -> None:
    await service.containment.contain_local(suspension("acme", prepared["second key"]))
    [found] = service.containment.list_local()
    await service.containment.release(call, found.id)


# (method, its name in the journal, function of (service, call, prepared)), in an order that works
CHANGES: list[tuple[str, str, Act]] = [
    ("tenants.put", "create_tenant", lambda s, c, p: s.tenants.put(c, "third", {"weight": 3})),
    ("tenants.put", "configure_tenant", lambda s, c, p: s.tenants.put(c, "acme", {"quotas": {"backlog": 900}})),
    ("tenants.suspend", "suspend_tenant", lambda s, c, p: s.tenants.suspend(c, "acme", REASON)),
    ("tenants.resume", "resume_tenant", lambda s, c, p: s.tenants.resume(c, "acme")),
    ("queues.suspend", "suspend_queue", lambda s, c, p: s.queues.suspend(c, "acme", "work", REASON, "freeze")),
    ("queues.resume", "reopen_queue", lambda s, c, p: s.queues.resume(c, "acme", "work", REASON)),
    ("queues.put", "create_queue", lambda s, c, p: s.queues.put(c, "acme", "fresh", {"lease_ms": 1_000})),
    ("queues.create", "create_queue", lambda s, c, p: s.queues.create(c, "acme", "fresh", {"lease_ms": 1_000})),
    ("queues.put", "configure_queue", lambda s, c, p: s.queues.put(c, "acme", "work", {"lease_ms": 1_000})),
    ("queues.change", "configure_queue",
     lambda s, c, p: s.queues.change(c, "acme", "work", {"lease_ms": 1_000}, expected=queues(s.shard, "acme")["work"])),
    ("queues.pause", "pause_queue", lambda s, c, p: s.queues.pause(c, "acme", "work")),
    ("queues.unpause", "resume_queue", lambda s, c, p: s.queues.unpause(c, "acme", "work")),
    ("queues.purge", "purge", lambda s, c, p: s.queues.purge(c, "acme", "work", confirm="work", reason=REASON)),
    ("redrives.start", "redrive", lambda s, c, p: s.redrives.start(c, "acme", "work", filter=RedriveFilter())),
    ("redrives.start", "redrive", lambda s, c, p: s.redrives.start(c, "acme", "empty", filter=RedriveFilter())),
    ("redrives.start", "redrive", lambda s, c, p: s.redrives.start(c, "acme", "work", filter=RedriveFilter(), dry_run=True)),
    ("redrives.cancel", "cancel_redrive", lambda s, c, p: s.redrives.cancel(c, "acme", "slow", p["task"])),
    ("queues.delete", "delete_queue", lambda s, c, p: s.queues.delete(c, "acme", "work", confirm="work", reason=REASON)),
    ("access.create_key", "create_key", lambda s, c, p: s.access.create_key(c, "acme", "fresh", Grant(role="viewer"))),
    ("access.revoke_key", "revoke_key", lambda s, c, p: s.access.revoke_key(c, "acme", p["key"])),
    ("access.put_grant", "put_grant", lambda s, c, p: s.access.put_grant(c, "acme", "jwt:fresh", Grant(role="viewer"))),
    ("access.review_grant", "review_grant", lambda s, c, p: s.access.review_grant(c, "acme", "jwt:known")),
    ("access.delete_grant", "delete_grant", lambda s, c, p: s.access.delete_grant(c, "acme", "jwt:known")),
    ("access.revoke_token", "revoke_token",
     lambda s, c, p: s.access.revoke_token(c, "acme", token_id="j", principal="jwt:x", until=UNTIL)),
    ("access.create_platform_key", "create_key",
     lambda s, c, p: s.access.create_platform_key(c, "fresh", Grant(actions=("metrics",)))),
    ("access.revoke_platform_key", "revoke_key", lambda s, c, p: s.access.revoke_platform_key(c, p["platform key"])),
    ("legal_holds.place", "hold_tenant", lambda s, c, p: s.legal_holds.place(c, "acme", REASON)),
    ("legal_holds.release", "release_hold", _release),
    ("templates.put", "put_template", lambda s, c, p: s.templates.put(c, "acme", "mail", Template(queues={"fresh": {}}))),
    ("templates.apply", "create_queue", lambda s, c, p: s.templates.apply(c, "acme", "known")),
    ("templates.delete", "delete_template", lambda s, c, p: s.templates.delete(c, "acme", "known")),
    ("signups.approve", "approve_signup", lambda s, c, p: s.signups.approve(c, p["sign-up"])),
    ("signups.reject", "reject_signup", lambda s, c, p: s.signups.reject(c, p["sign-up"])),
    ("containment.release", "release_containment", _release_containment),
    ("exports.export", "export", _export),
    ("exports.import_part", "import",
     lambda s, c, p: s.exports.import_part(c, "acme", "work", export="0" * 32, part=1, messages=[], results=[])),
    ("erasures.delete_tenant", "delete_tenant", lambda s, c, p: s.erasures.delete_tenant(c, "acme", confirm="acme", reason=REASON)),
]  # fmt: skip


async def prepare(harness: ServiceHarness) -> dict[str, Any]:
    """Create a tenant with everything that a call may need."""
    await harness.tenant("acme")
    owner, key_id = await harness.key_and_id("acme")
    for queue in ("work", "slow"):
        await harness.service.queues.put(owner, None, queue, {"max_attempts": 1})
        await harness.add(owner, queue, "a", "b", "c")
        for one in await harness.take(owner, queue, max=2):
            await harness.service.settlement.nack(owner, None, queue, [one.receipt])
    for queue in ("empty", "empty-dlq"):
        await harness.service.queues.put(owner, None, queue, {})
    await harness.service.access.put_grant(owner, None, "jwt:known", Grant(role="viewer"))
    task = await harness.service.redrives.start(owner, None, "slow", filter=RedriveFilter(), rate=1)
    await harness.wait_until_idle()
    assert (await harness.service.redrives.get(owner, None, "slow", task.id)).state == "running"
    platform_key = await harness.service.access.create_platform_key(
        harness.admin, "other", Grant(role="platform-admin")
    )
    _, second = await harness.key_and_id("acme", "producer")
    await harness.service.templates.put(owner, None, "known", Template(queues={"fresh": {}}))
    request = SignupRequest(tenant="newcomer", contact="ann")
    signup = await harness.shard.submit(RequestSignup(harness.shard.state.platform, SYSTEM, request, 9))
    return {
        "sign-up": signup.id,
        "key": key_id,
        "second key": second,
        "task": task.id,
        "platform key": platform_key.key_id,
    }


def test_53_every_control_method_is_classified(harness: ServiceHarness) -> None:
    """A new method cannot be forgotten here."""
    messages = ("messages.", "fleet.", "settlement.", "message_reads.", "sqs_lookup.")
    methods = {name for name in facet_methods(harness.service) if not name.startswith(messages)}
    changes = {method for method, _, _ in CHANGES} | ELSEWHERE | OF_KEYS
    assert methods == READS | changes | {name for name in NOT_FOR_CALLERS if not name.startswith(messages)}


@pytest.mark.parametrize(("method", "op", "act"), CHANGES, ids=[f"{op} {n}" for n, (_, op, _) in enumerate(CHANGES)])
async def test_53_control_call_adds_exactly_one_row(harness: ServiceHarness, method: str, op: str, act: Act) -> None:
    """The row has the caller, address, request ID and outcome."""
    prepared = await prepare(harness)
    end = await harness.journal_end()
    await act(harness.service, harness.admin, prepared)
    rows = [row for row in await harness.rows(end) if row.principal != "system" and not row.message_id]
    (row,) = rows
    admin = next(iter(harness.shard.state.access.keys(0).values()))
    assert (row.op, row.outcome, row.error_code, row.count) == (op, "ok", "", 1)
    assert (row.principal, row.remote, row.request_id) == (admin.principal, "10.0.0.1", "r-admin")
    assert row.tenant == (
        "third" if op == "create_tenant" else "" if "platform" in method or "signup" in method else "acme"
    )
    assert row.ts == harness.clock.wall_ms()


@pytest.mark.parametrize("method", sorted(READS - FIGURES))
async def test_53_reading_configuration_or_the_audit_trail_adds_exactly_one_row(
    harness: ServiceHarness, method: str
) -> None:
    """This holds for every method, whether or not what it asks for exists. Repeating it adds no row at once."""
    await prepare(harness)
    end = await harness.journal_end()
    action, read = SERVICE_CALLS[method]
    for _ in range(3):
        with suppress(NotFound, Conflict):  # no such sign-up or erasure, and no backup directory
            await read(harness.service, harness.admin, "acme")
    (row,) = await harness.rows(end)
    assert (row.op, row.outcome, row.count) == (action, "ok", 1)
    assert row.op in VIEWS
    assert (row.remote, row.request_id) == ("10.0.0.1", "r-admin")


def test_53_every_journaled_read_is_exempt_from_billing() -> None:
    """VIEWS has the actions of all reads that are journaled, and no others."""
    reads = {SERVICE_CALLS[method][0] for method in READS - FIGURES}
    assert set(VIEWS) == reads | {"trace"}


@pytest.mark.parametrize("method", sorted(SERVICE_CALLS))
async def test_53_denied_call_adds_exactly_one_row(harness: ServiceHarness, method: str) -> None:
    """This holds for every method, reads included, and nothing changes."""
    await prepare(harness)
    nobody, key_id = await harness.key_and_id("acme", None, actions=("read_body",))
    end = await harness.journal_end()
    with pytest.raises(Forbidden):
        await SERVICE_CALLS[method][1](harness.service, nobody, "acme")
    (row,) = await harness.rows(end)
    assert (row.op, row.outcome, row.error_code, row.count) == (SERVICE_CALLS[method][0], "denied", "forbidden", 1)
    assert (row.tenant, row.principal, row.remote, row.request_id) == ("acme", f"key:{key_id}", "10.1.2.3", "r-1")


@pytest.mark.parametrize(
    ("op", "act"),
    [
        ("configure_tenant", lambda s, c: s.tenants.put(c, "acme", {"weight": -1})),
        ("configure_queue", lambda s, c: s.queues.put(c, "acme", "work", {"lease_ms": -1})),
        ("pause_queue", lambda s, c: s.queues.pause(c, "acme", "nowhere")),
        ("purge", lambda s, c: s.queues.purge(c, "acme", "nowhere", confirm="nowhere", reason=REASON)),
        ("delete_queue", lambda s, c: s.queues.delete(c, "acme", "nowhere", confirm="nowhere", reason=REASON)),
        ("purge", lambda s, c: s.queues.purge(c, "acme", "work", confirm="wrok", reason=REASON)),
        ("delete_queue", lambda s, c: s.queues.delete(c, "acme", "work", confirm="work", reason="short")),
        ("delete_tenant", lambda s, c: s.erasures.delete_tenant(c, "acme", confirm="acme", reason="short")),
        ("delete_tenant", lambda s, c: s.erasures.delete_tenant(c, "default", confirm="default", reason=REASON)),
        ("revoke_key", lambda s, c: s.access.revoke_key(c, "acme", "nobody")),
        ("delete_grant", lambda s, c: s.access.delete_grant(c, "acme", "nobody")),
    ],
)
async def test_53_failed_call_adds_exactly_one_row(
    harness: ServiceHarness, op: str, act: Callable[[Service, Call], Awaitable[Any]]
) -> None:
    """What an administrator tried to change is on record too, in the tenant concerned."""
    await prepare(harness)
    end = await harness.journal_end()
    with pytest.raises(TenantqError) as caught:
        await act(harness.service, harness.admin)
    (row,) = await harness.rows(end)
    assert (row.op, row.outcome, row.error_code) == (op, "refused", caught.value.code)
    assert (row.remote, row.request_id) == ("10.0.0.1", "r-admin")


async def test_53_flood_of_denials_adds_few_rows_and_keeps_the_count(open_harness: OpenHarness) -> None:
    """The first of each second get their own rows, the rest a count; an alert is raised once."""
    signals = SignalSettings(denials_per_minute=50)
    harness = await open_harness(settings=GateSettings(refusal_rows_per_second=20, signals=signals))
    await harness.tenant("acme")
    viewer = await harness.key("acme", "viewer")
    end = await harness.journal_end()
    for _ in range(500):
        with pytest.raises(Forbidden):
            await harness.add(viewer, "work")
    await harness.pass_time(2_000)
    rows = await harness.rows(end)
    denied = [row for row in rows if row.outcome == "denied"]
    assert sum(row.count for row in denied) == 500
    assert len(denied) <= 25
    alerts = [row for row in rows if row.op == "alert"]
    assert {(row.outcome, row.principal != "") for row in alerts} == {("denials", True), ("denials", False)}
    assert len(alerts) == 2
    assert harness.admission.counters.alerts == {"denials": 2}


async def test_53_audit_query_pages_through_every_row_once(harness: ServiceHarness) -> None:
    """This holds for any page size, and filters do what they say."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    for n in range(7):
        await harness.add(owner, f"q{n % 2}", f"{n}")
    viewer = await harness.key("acme", "viewer")
    for _ in range(3):
        with pytest.raises(Forbidden):
            await harness.add(viewer, "q0")
    await harness.wait_until_idle()
    whole, cursor = await harness.service.audit.query(owner, None, AuditQuery(limit=1_000))
    assert cursor is None
    for limit in (1, 2, 5):
        found, cursor = await harness.service.audit.query(owner, None, AuditQuery(limit=limit))
        while cursor is not None:
            page, cursor = await harness.service.audit.query(owner, None, AuditQuery(limit=limit, cursor=cursor))
            found += page
        assert [row for row in found if row.op != "audit"] == whole
    denied, _ = await harness.service.audit.query(owner, None, AuditQuery(result="DENIED"))
    assert len(denied) == 3
    added, _ = await harness.service.audit.query(owner, None, AuditQuery(action="add", result="SUCCESS", queue="q0"))
    assert len(added) == 4
    one, _ = await harness.service.audit.query(owner, None, AuditQuery(message=added[0].message_id))
    assert [row.op for row in one] == ["add"]
    later, _ = await harness.service.audit.query(owner, None, AuditQuery(start=harness.clock.wall_ms() + 1))
    earlier, _ = await harness.service.audit.query(owner, None, AuditQuery(end=harness.clock.wall_ms()))
    assert (later, earlier) == ([], [])


async def test_53_calls_to_other_tenants_raise_an_alert(open_harness: OpenHarness) -> None:
    """It is raised once, in the journal of the caller's own tenant, the metrics and the log."""
    signals = SignalSettings(cross_tenant_per_minute=3)
    harness = await open_harness(settings=GateSettings(signals=signals))
    await harness.tenant("acme")
    await harness.tenant("globex")
    thief, key_id = await harness.key_and_id("globex")
    for _ in range(10):
        with pytest.raises(Forbidden):
            await harness.service.tenants.usage(thief, "acme")
    (alert,) = await harness.rows(op="alert")
    assert (alert.outcome, alert.tenant, alert.principal) == ("cross_tenant", "globex", f"key:{key_id}")
    assert b'tenantq_alerts_total{kind="cross_tenant"} 1.0' in await harness.service.status.metrics(harness.admin)


async def test_53_key_used_from_many_new_networks_raises_an_alert(
    open_harness: OpenHarness,
) -> None:
    """Known networks survive a restart."""
    harness = await open_harness()
    await harness.tenant("acme")
    key, key_id = await harness.key_and_id("acme")
    for n in range(3):
        await harness.add(harness.call(key.bearer, remote=f"10.{n}.0.1"), "work")
    assert await harness.rows(op="alert") == []
    await harness.close()
    await harness.shard.close()
    harness = await open_harness()
    for n in range(3):
        await harness.add(harness.call(key.bearer, remote=f"10.{n}.0.1"), "work")
    assert await harness.rows(op="alert") == []
    for n in range(3, 8):
        await harness.add(harness.call(key.bearer, remote=f"10.{n}.0.1"), "work")
    (alert,) = await harness.rows(op="alert")
    assert (alert.outcome, alert.principal) == ("new_places", f"key:{key_id}")


async def test_53_no_secret_is_ever_stored_or_journaled(open_harness: OpenHarness) -> None:
    """Neither the platform's token nor that of a key is in any row of any family."""
    harness = await open_harness()
    await harness.tenant("acme")
    made = await harness.service.access.create_key(harness.admin, "acme", "mine", Grant(role="tenant-admin"))
    call = harness.call(made.token)
    await harness.add(call, "work")
    for bad in (made.token + "x", made.token[:-1]):
        with pytest.raises(Unauthenticated):
            await harness.add(harness.call(bad), "work")
    await harness.admission.close()
    await harness.wait_until_idle()
    store = harness.shard.state.store
    for name in FAMILIES:
        for key, value in store.scan_items(store.family(name), b"", b"\xff" * 64, 100_000):
            for secret in (made.secret, made.token, ADMIN_TOKEN):
                assert secret.encode() not in key + value
    assert made.secret not in repr(await harness.service.access.list_keys(call, None))


# ---- nothing is destroyed by mistake ----

WRONG = [
    {"confirm": "", "reason": REASON},
    {"confirm": "WORK", "reason": REASON},
    {"confirm": "work ", "reason": REASON},
    {"confirm": "acme", "reason": REASON},
    {"confirm": "acme/work", "reason": REASON},
    {"confirm": "work", "reason": ""},
    {"confirm": "work", "reason": "123456789"},
    {"confirm": "work", "reason": " 12345678 " * 1},
    {"confirm": "work", "reason": " " * 40},
    {"confirm": "work", "reason": "\n\t" * 20},
    {"confirm": None, "reason": REASON},
    {"confirm": "work", "reason": None},
    {"confirm": True, "reason": 12345678901},
    {"confirm": "work", "reason": "x" * 1_025},
    {"confirm": "work", "reason": "ten letters\0"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
async def test_54_deletion_needs_the_name_and_a_reason(harness: ServiceHarness, wrong: dict[str, Any]) -> None:
    """This covers purges and deletions of queues and tenants, also by force."""
    await harness.tenant("work")
    owner = await harness.key("work")
    await harness.add(owner, "work", "a", "b")
    before = harness.shard.reads.stats("work", "work"), queues(harness.shard, "work"), usage(harness.shard, "work")
    for act in (
        harness.service.queues.purge(owner, None, "work", **wrong),
        harness.service.queues.delete(owner, None, "work", **wrong),
        harness.service.queues.delete(owner, None, "work", force=True, **wrong),
        harness.service.erasures.delete_tenant(harness.admin, "work", **wrong),
    ):
        with pytest.raises(Invalid) as caught:
            await act
        assert caught.value.message.split(":")[0] in {"confirm", "reason"}
    await harness.wait_until_idle()
    assert (
        harness.shard.reads.stats("work", "work"),
        queues(harness.shard, "work"),
        usage(harness.shard, "work"),
    ) == before
    assert len(await harness.take(owner, "work", max=10)) == 2


async def test_54_confirmed_deletion_succeeds(harness: ServiceHarness) -> None:
    """A reason of ten characters suffices and is in the journal."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    await harness.add(owner, "work", "a", "b")
    assert await harness.service.queues.purge(owner, None, "work", confirm="work", reason="ten chars!") == 2
    (row,) = await harness.rows(op="purge")
    assert "ten chars!" in row.details
    assert usage(harness.shard, "acme")["backlog"] == 0


async def test_54_confirmed_call_for_an_unknown_queue_is_not_found(harness: ServiceHarness) -> None:
    """No queue is created."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    for act in (
        harness.service.queues.purge(owner, None, "work", confirm="work", reason=REASON),
        harness.service.queues.delete(owner, None, "work", confirm="work", reason=REASON),
    ):
        with pytest.raises(NotFound):
            await act
    with pytest.raises(NotFound):
        await harness.service.erasures.delete_tenant(harness.admin, "nobody", confirm="nobody", reason=REASON)
    assert queues(harness.shard, "acme") == {}
