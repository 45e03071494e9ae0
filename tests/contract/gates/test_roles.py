"""Behaviours 40, 43 and 52: who may do what through the service, and that nobody can escalate."""

# ruff: noqa: S106  # a token's id is not a secret

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from tenantq.domain import limits
from tenantq.domain.access import ACTIONS, MATRIX, ROLES, Grant
from tenantq.domain.message import Result
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.errors import Forbidden, Invalid, NotFound, QuotaExceeded, TenantqError, Unauthenticated
from tenantq.service.call import Call
from tenantq.service.gate_settings import GateSettings
from tests.administration import put_grant, queues, tenants
from tests.contract.gates.harness import REASON, ServiceHarness
from tests.contract.gates.service_calls import ANY_CREDENTIAL, NOT_FOR_CALLERS, SERVICE_CALLS, UNTIL, facet_methods
from tests.shards import message
from tests.unit.gates.credentials import claims, signed, verifier

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock
    from tests.contract.gates.conftest import OpenHarness


async def is_admitted(harness: ServiceHarness, call: Call, method: str, tenant: str) -> bool:
    """Return whether the gates admit a call; its outcome behind them does not count."""
    try:
        await SERVICE_CALLS[method][1](harness.service, call, tenant)
    except Forbidden:
        return False
    except TenantqError as error:
        return error.code in {"not_found", "invalid", "conflict", "draining"}
    return True


def test_52_every_method_and_action_is_in_the_table_of_calls(harness: ServiceHarness) -> None:
    """A new service method must state the action that allows it."""
    assert facet_methods(harness.service) == set(SERVICE_CALLS) | ANY_CREDENTIAL | NOT_FOR_CALLERS
    assert {action for action, _ in SERVICE_CALLS.values()} == set(ACTIONS) - {"read_body"}


@pytest.mark.parametrize("role", ROLES)
async def test_52_each_role_allows_exactly_what_the_matrix_says(harness: ServiceHarness, role: str) -> None:
    """Covers every role and method; platform-admin in a tenant's key means tenant-admin."""
    await harness.tenant("acme")
    owner, call = await harness.key("acme"), await harness.key("acme", role)
    allowed = MATRIX["tenant-admin"] if role == "platform-admin" else MATRIX[role]
    for method, (action, _) in SERVICE_CALLS.items():
        await harness.add(owner, "work")
        assert await is_admitted(harness, call, method, "acme") == (action in allowed), method
        await harness.wait_until_idle()  # recreate the deleted queue


@pytest.mark.parametrize("role", ROLES)
async def test_52_platform_admin_may_do_everything_and_other_keys_only_what_is_granted(
    harness: ServiceHarness, role: str
) -> None:
    """A stored grant lets a principal of another tenant in, but never allows platform actions."""
    await harness.tenant("acme")
    await harness.tenant("fleet")
    worker, key_id = await harness.key_and_id("fleet", "viewer")
    await harness.service.access.put_grant(harness.admin, "acme", f"key:{key_id}", Grant(role=role))
    allowed = MATRIX["tenant-admin"] if role == "platform-admin" else MATRIX[role]
    for method, (action, _) in SERVICE_CALLS.items():
        await harness.add(harness.admin, "work", tenant="acme")
        assert await is_admitted(harness, worker, method, "acme") == (action in allowed), method
        await harness.wait_until_idle()
    for method in SERVICE_CALLS:
        if "acme" not in tenants(harness.shard):
            await harness.tenant("acme")
        await harness.service.tenants.resume(harness.admin, "acme")
        await harness.add(harness.admin, "work", tenant="acme")
        assert await is_admitted(harness, harness.admin, method, "acme"), method
        await harness.wait_until_idle()


@pytest.mark.parametrize("action", [one for one in ACTIONS if one != "read_body"])
async def test_52_single_action_allows_nothing_else(harness: ServiceHarness, action: str) -> None:
    """Everything is denied by default. Platform actions need a key of the platform."""
    await harness.tenant("acme")
    call = await harness.key("acme", None, actions=(action,))
    for method, (needed, _) in SERVICE_CALLS.items():
        await harness.add(harness.admin, "work", tenant="acme")
        wanted = needed == action and action in MATRIX["tenant-admin"]
        if method == "access.create_key" and wanted:
            wanted = False  # it may create keys, but none that allow more than itself
        if method == "access.put_grant" and wanted:
            wanted = False
        assert await is_admitted(harness, call, method, "acme") == wanted, method
        await harness.wait_until_idle()


async def test_52_any_valid_credential_may_read_the_topology(harness: ServiceHarness) -> None:
    """Role and actions do not matter; without a credential the call is refused."""
    await harness.tenant("acme")
    for role in ROLES:
        assert (await harness.service.status.topology(await harness.key("acme", role))).shards[0].name == "0"
    assert (await harness.service.status.topology(await harness.key("acme", None, actions=("add",)))).shards
    for bearer in (None, "tq_nobody_nothing"):
        with pytest.raises(Unauthenticated):
            await harness.service.status.topology(Call(bearer=bearer))


async def test_53_failed_login_is_in_the_audit_trail(harness: ServiceHarness) -> None:
    """A valid credential may open a session, which adds no row."""
    await harness.tenant("acme")
    end = await harness.journal_end()
    call = await harness.key("acme", "viewer")
    assert (await harness.service.access.log_in(call)).tenant == "acme"
    before = len(await harness.rows(end))
    with pytest.raises(Unauthenticated):
        await harness.service.access.log_in(harness.call("tq_nobody_nothing"))
    denied = (await harness.rows(end))[before:]
    assert [(row.op, row.outcome, row.error_code) for row in denied] == [("login", "denied", "unauthenticated")]


async def test_43_worker_is_refused_on_queues_outside_its_grant(harness: ServiceHarness) -> None:
    """Queue patterns also apply to lists and fleet polls."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    for queue in ("mail-in", "mail-out", "billing", "Mail-in"):
        await harness.add(owner, queue)
    worker = await harness.key("acme", "consumer", queues=("mail-*",))
    assert await harness.take(worker, "mail-in")
    for queue in ("billing", "Mail-in", "mail", "xmail-in"):
        for refused in (harness.take(worker, queue), harness.service.fleet.poll(worker, queue)):
            with pytest.raises(Forbidden):
                await refused
    operator = await harness.key("acme", "operator", queues=("mail-*", "b?lling"))
    seen = await harness.service.queues.list(operator, None)
    assert [one.name for one in seen] == ["billing", "mail-in", "mail-out"]


async def test_43_redrive_of_another_queue_is_not_found(harness: ServiceHarness) -> None:
    """Its ID does not bypass the queue pattern."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    for queue in ("mail", "mail-dlq", "billing", "billing-dlq"):
        await harness.service.queues.put(owner, None, queue, {})
    task = await harness.service.redrives.start(owner, None, "billing", filter=RedriveFilter(), rate=1)
    operator = await harness.key("acme", "operator", queues=("mail", "mail-dlq"))
    for look in (harness.service.redrives.get, harness.service.redrives.cancel):
        with pytest.raises(NotFound):
            await look(operator, None, "mail", task.id)
    assert task.state != "cancelled"
    assert (await harness.service.redrives.get(owner, None, "billing", task.id)).id == task.id


async def test_43_redrive_needs_the_right_to_the_destination_queue(harness: ServiceHarness) -> None:
    """Shared dead letters give no access to another queue."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    for queue in ("mail", "billing"):
        await harness.service.queues.put(owner, None, queue, {"dead_letter": "letters", "max_attempts": 1})
        await harness.add(owner, queue)
        (got,) = await harness.take(owner, queue)
        await harness.service.settlement.nack(owner, None, queue, [got.receipt])
    operator = await harness.key("acme", "operator", queues=("mail",))
    await harness.redrive(operator, "mail", RedriveFilter(source="billing"))
    assert harness.shard.reads.stats("acme", "billing").ready == 0


# ---- ends of credentials ----


async def test_52_expired_key_is_refused_at_once(harness: ServiceHarness) -> None:
    """It is refused from that millisecond on, although it was cached just before."""
    await harness.tenant("acme")
    key = await harness.key("acme", "producer", expires_at=harness.clock.wall_ms() + 1_000)
    await harness.add(key, "work")
    await harness.pass_time(999)
    await harness.add(key, "work")
    await harness.pass_time(1)
    with pytest.raises(Unauthenticated):
        await harness.add(key, "work")


async def test_52_revoked_key_is_refused_at_once(harness: ServiceHarness) -> None:
    """It stays refused, and revoking it again is not an error."""
    await harness.tenant("acme")
    key, key_id = await harness.key_and_id("acme", "producer")
    await harness.add(key, "work")
    for _ in range(2):
        await harness.service.access.revoke_key(harness.admin, "acme", key_id)
        with pytest.raises(Unauthenticated):
            await harness.add(key, "work")
    (item,) = await harness.service.access.list_keys(harness.admin, "acme")
    assert item.revoked_at == harness.clock.wall_ms()


async def test_52_waiting_poll_of_a_revoked_key_gets_nothing(harness: ServiceHarness) -> None:
    """The message goes to an authorized consumer."""
    await harness.tenant("acme")
    owner = await harness.key("acme")
    worker, key_id = await harness.key_and_id("acme", "consumer")
    await harness.service.queues.put(owner, None, "work", {})
    waiting = asyncio.ensure_future(harness.take(worker, "work", wait_ms=60_000))
    await harness.wait_until_idle()
    await harness.service.access.revoke_key(owner, None, key_id)
    await harness.add(owner, "work", "not for you")
    await harness.pass_time(60_000)
    with pytest.raises(Unauthenticated):
        await waiting
    (got,) = await harness.take(owner, "work")
    assert (got.body, got.attempt) == (b"not for you", 1)


async def test_52_waiting_fleet_poll_of_an_ended_grant_gets_nothing(harness: ServiceHarness) -> None:
    """What was allowed when the wait began must still be allowed when the message arrives."""
    await harness.tenant("acme")
    await harness.tenant("fleet")
    worker, key_id = await harness.key_and_id("fleet", "consumer")
    await harness.service.access.put_grant(harness.admin, "acme", f"key:{key_id}", Grant(role="consumer"))
    owner = await harness.key("acme")
    waiting = asyncio.ensure_future(harness.service.fleet.poll(worker, "work", wait_ms=60_000))
    await harness.wait_until_idle()
    await harness.service.access.delete_grant(owner, None, f"key:{key_id}")
    await harness.add(owner, "work", "not for you")
    await harness.pass_time(60_000)
    with contextlib.suppress(Forbidden):
        assert await waiting == []
    (got,) = await harness.take(owner, "work")
    assert (got.body, got.attempt) == (b"not for you", 1)


async def test_52_grant_expires_on_the_millisecond(harness: ServiceHarness) -> None:
    """Cached decisions do not extend it; the credential's own rights stay."""
    await harness.tenant("acme")
    await harness.tenant("fleet")
    worker, key_id = await harness.key_and_id("fleet", "consumer")
    until = harness.clock.wall_ms() + 500
    await harness.service.access.put_grant(
        harness.admin, "acme", f"key:{key_id}", Grant(role="consumer", expires_at=until, queues=("work",))
    )
    await harness.add(harness.admin, "work", tenant="acme")
    await harness.pass_time(499)
    assert await harness.service.messages.poll(worker, "acme", "work")
    await harness.pass_time(1)
    with pytest.raises(Forbidden):
        await harness.service.messages.poll(worker, "acme", "work")
    assert await harness.service.fleet.poll(worker, "work") == []


async def test_52_key_created_as_expired_never_works(harness: ServiceHarness) -> None:
    """This holds even if a platform administrator creates it."""
    await harness.tenant("acme")
    for until in (0, harness.clock.wall_ms() - 1, harness.clock.wall_ms()):
        made = await harness.service.access.create_key(
            harness.admin, "acme", "late", Grant(role="viewer", expires_at=until)
        )
        with pytest.raises(Unauthenticated):
            await harness.service.tenants.usage(Call(bearer=made.token), None)


@pytest.mark.parametrize("principal", ["nonsense", "key:", "key", "user:bob", "system", " jwt:bob"])
async def test_52_grant_to_an_impossible_principal_is_refused(harness: ServiceHarness, principal: str) -> None:
    """It must name a key, subject or certificate."""
    await harness.tenant("acme")
    with pytest.raises(Invalid, match="principal: "):
        await harness.service.access.put_grant(harness.admin, "acme", principal, Grant(role="viewer"))


async def test_52_deleted_grant_ends_at_once(harness: ServiceHarness) -> None:
    """The change clears the decision cache."""
    await harness.tenant("acme")
    await harness.tenant("fleet")
    worker, key_id = await harness.key_and_id("fleet", "consumer")
    owner = await harness.key("acme")
    await harness.add(owner, "work")
    for _ in range(2):
        await harness.service.access.put_grant(owner, None, f"key:{key_id}", Grant(role="consumer"))
        await harness.service.messages.poll(worker, "acme", "work")
        await harness.service.access.delete_grant(owner, None, f"key:{key_id}")
        with pytest.raises(Forbidden):
            await harness.service.messages.poll(worker, "acme", "work")
    with pytest.raises(NotFound):
        await harness.service.access.delete_grant(owner, None, f"key:{key_id}")


async def test_52_rotated_keys_may_overlap(harness: ServiceHarness) -> None:
    """The new key works at once, the old one until it is revoked or expires."""
    await harness.tenant("acme")
    old, old_id = await harness.key_and_id("acme", "producer")
    new = await harness.key("acme", "producer")
    for key in (old, new):
        await harness.add(key, "work")
    await harness.service.access.revoke_key(harness.admin, "acme", old_id)
    await harness.add(new, "work")
    with pytest.raises(Unauthenticated):
        await harness.add(old, "work")


async def test_52_revoking_tokens_by_id_or_subject(
    open_harness: OpenHarness, clock: ManualClock, tmp_path: Path
) -> None:
    """Only these tokens are refused, at once, and only in their own tenant."""
    harness = await open_harness(jwt=verifier(clock, tmp_path))
    for name in ("acme", "globex"):
        await harness.tenant(name)
    one, two = (harness.call(signed(claims(clock, jti=jti, role="producer"))) for jti in ("j-1", "j-2"))
    other = harness.call(signed(claims(clock, jti="j-1", tenant="globex")))
    for call in (one, two, other):
        await harness.add(call, "work")
    until = clock.wall_ms() + 3_600_000
    await harness.service.access.revoke_token(harness.admin, "acme", token_id="j-1", principal=None, until=until)
    with pytest.raises(Unauthenticated):
        await harness.add(one, "work")
    for call in (two, other):
        await harness.add(call, "work")
    await harness.service.access.revoke_token(
        harness.admin, "acme", token_id=None, principal="jwt:worker-7", until=until
    )
    with pytest.raises(Unauthenticated):
        await harness.add(two, "work")
    await harness.add(other, "work")


async def test_52_later_revocation_cannot_shorten_an_earlier_one(
    open_harness: OpenHarness, clock: ManualClock, tmp_path: Path
) -> None:
    """Revoking again with an earlier end leaves the token refused until the later one."""
    harness = await open_harness(jwt=verifier(clock, tmp_path))
    await harness.tenant("acme")
    token = harness.call(signed(claims(clock, jti="j-1")))
    await harness.add(token, "work")
    for until in (clock.wall_ms() + 3_600_000, clock.wall_ms() + 1, 0):
        await harness.service.access.revoke_token(harness.admin, "acme", token_id="j-1", principal=None, until=until)
    await harness.pass_time(2)
    with pytest.raises(Unauthenticated):
        await harness.add(token, "work")


async def test_52_revocations_grants_and_keys_survive_a_restart(
    open_harness: OpenHarness, clock: ManualClock, tmp_path: Path
) -> None:
    """What was refused before is refused after, and what was granted is still granted."""
    harness = await open_harness(jwt=verifier(clock, tmp_path))
    await harness.tenant("acme")
    token = harness.call(signed(claims(clock, jti="j-1", role="viewer")))
    revoked, revoked_id = await harness.key_and_id("acme", "producer")
    kept = await harness.key("acme", "producer")
    await harness.add(kept, "work")
    await harness.service.access.put_grant(harness.admin, "acme", "jwt:worker-7", Grant(role="consumer"))
    await harness.service.access.revoke_key(harness.admin, "acme", revoked_id)
    other = harness.call(signed(claims(clock, jti="j-2", role="viewer")))
    await harness.service.access.revoke_token(harness.admin, "acme", token_id="j-2", principal=None, until=UNTIL)
    await harness.close()
    await harness.shard.close()
    after = await open_harness(jwt=verifier(clock, tmp_path))
    await after.add(kept, "work")
    assert await after.take(token, "work")
    for call in (revoked, other):
        with pytest.raises(Unauthenticated):
            await after.take(call, "work")
    uses = {item.key_id: item.last_used_at for item in await after.service.access.list_keys(after.admin, "acme")}
    assert uses[revoked_id] is None


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": ...},
        {"tenant": ""},
        {"tenant": "ACME"},
        {"tenant": "../acme"},
        {"tenant": "a" * 64},
        {"tenant": 7},
        {"tenant": ["acme"]},
        {"tenant": None},
        {"tenant": "acme\0"},
        {"tenant": "acme", "org": "globex"},
        {"tenant": "globex", "org": "acme"},
        {"tenant": "acme", "org": ""},
        {"tenant": "acme", "org": 5},
        {"org": "acme", "tenant": " acme"},
    ],
)
async def test_40_token_that_does_not_name_exactly_one_tenant_is_forbidden(
    open_harness: OpenHarness, clock: ManualClock, tmp_path: Path, change: dict[str, object]
) -> None:
    """Nothing is done, the claim is not echoed, and the refusal is journaled."""
    harness = await open_harness(jwt=verifier(clock, tmp_path, tenant_claims=("tenant", "org")))
    for name in ("acme", "globex"):
        await harness.tenant(name)
    end = await harness.journal_end()
    call = harness.call(signed(claims(clock, **change)))
    for tenant in (None, "acme", "globex"):
        with pytest.raises(Forbidden) as caught:
            await harness.service.messages.add(call, tenant, "work", [message()])
        shown = f"{caught.value.message} {caught.value.tenant} {caught.value.queue}"
        assert "globex" not in shown
        assert "ACME" not in shown
    rows = await harness.rows(end)
    assert [(row.outcome, row.error_code, row.op) for row in rows] == [("denied", "forbidden", "add")] * 3
    assert not queues(harness.shard, "acme")


async def test_40_agreeing_aliases_name_the_tenant(
    open_harness: OpenHarness, clock: ManualClock, tmp_path: Path
) -> None:
    """One of them, or all with the same name in any order, suffice."""
    harness = await open_harness(jwt=verifier(clock, tmp_path, tenant_claims=("tenant", "org")))
    await harness.tenant("acme")
    for change in ({}, {"org": "acme"}, {"tenant": ..., "org": "acme"}):
        await harness.add(harness.call(signed(claims(clock, **change))), "work")
    assert harness.shard.reads.stats("acme", "work").ready == 3


async def test_52_ended_keys_do_not_count_towards_the_limit(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant can rotate its keys forever; the number of valid keys is limited."""
    monkeypatch.setattr(limits, "KEYS_MAX", 3)
    await harness.tenant("acme")
    for _ in range(10):
        key, key_id = await harness.key_and_id("acme", "producer")
        await harness.add(key, "work")
        await harness.service.access.revoke_key(harness.admin, "acme", key_id)
    await harness.key("acme", "producer", expires_at=harness.clock.wall_ms() + 5)
    good = [await harness.key("acme", "producer") for _ in range(2)]
    with pytest.raises(QuotaExceeded) as caught:
        await harness.key("acme", "producer")
    assert (caught.value.limit, caught.value.current) == (3, 3)
    await harness.pass_time(5)
    good.append(await harness.key("acme", "producer"))
    for call in good:
        await harness.add(call, "work")
    with pytest.raises(Unauthenticated):
        await harness.add(key, "work")


async def test_52_grants_and_revocations_are_limited(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changing an existing one is always possible; revocations are removed when their tokens would have expired."""
    monkeypatch.setattr(limits, "GRANTS_MAX", 2)
    monkeypatch.setattr(limits, "REVOCATIONS_MAX", 2)
    await harness.tenant("acme")
    owner = await harness.key("acme")
    until = harness.clock.wall_ms() + 1_000
    for name in ("one", "two", "one"):
        await harness.service.access.put_grant(owner, None, f"jwt:{name}", Grant(role="viewer"))
    for name in ("one", "two"):
        await harness.service.access.revoke_token(owner, None, token_id=name, principal=None, until=until)
    with pytest.raises(QuotaExceeded):
        await harness.service.access.put_grant(owner, None, "jwt:three", Grant(role="viewer"))
    with pytest.raises(QuotaExceeded):
        await harness.service.access.revoke_token(owner, None, token_id="three", principal=None, until=until)
    await harness.pass_time(1_000)
    await harness.service.access.revoke_token(owner, None, token_id="three", principal=None, until=until + 5_000)


# ---- escalation ----


async def test_52_nobody_can_grant_more_than_they_have(harness: ServiceHarness) -> None:
    """Covers higher roles, other actions, wider queues and later expiry, for oneself or others."""
    await harness.tenant("acme")
    now = harness.clock.wall_ms()
    call, key_id = await harness.key_and_id("acme", expires_at=now + 60_000, queues=("mail-*",))
    service = harness.service
    too_much = [
        Grant(role="platform-admin", queues=("mail-*",), expires_at=now + 1),
        Grant(role="tenant-admin"),
        Grant(role="tenant-admin", queues=("mail-*",)),
        Grant(role="viewer", queues=("mail-*",), expires_at=now + 60_001),
        Grant(role="viewer", queues=("mail-in", "other"), expires_at=now + 1),
        Grant(role="viewer", queues=("*-in",), expires_at=now + 1),
        Grant(role="viewer", queues=("mail*",), expires_at=now + 1),
        Grant(role="viewer", queues=("mail?*",), expires_at=now + 1),
        *(
            Grant(actions=(action,), queues=("mail-*",), expires_at=now + 1)
            for action in sorted(MATRIX["platform-admin"] - MATRIX["tenant-admin"])
        ),
    ]
    before = dict(harness.shard.state.access.keys(2)), dict(harness.shard.state.access.grants_in("acme"))
    for grant in too_much:
        end = await harness.journal_end()
        with pytest.raises(Forbidden):
            await service.access.create_key(call, None, "more", grant)
        for principal in (f"key:{key_id}", "jwt:somebody", "cert:DNS:somebody"):
            with pytest.raises(Forbidden):
                await service.access.put_grant(call, None, principal, grant)
        rows = await harness.rows(end)
        assert [(row.op, row.outcome) for row in rows] == [("create_key", "denied"), *[("put_grant", "denied")] * 3]
    assert (dict(harness.shard.state.access.keys(2)), dict(harness.shard.state.access.grants_in("acme"))) == before
    await service.access.create_key(
        call, None, "less", Grant(role="viewer", queues=("mail-in",), expires_at=now + 60_000)
    )


async def test_52_keys_and_grants_of_another_tenant_cannot_be_created_or_changed(harness: ServiceHarness) -> None:
    """A tenant administrator has no rights in other tenants."""
    for name in ("acme", "globex"):
        await harness.tenant(name)
    thief, thief_id = await harness.key_and_id("globex")
    _, key_id = await harness.key_and_id("acme")
    service = harness.service
    for act in (
        service.access.create_key(thief, "acme", "mine", Grant(role="viewer")),
        service.access.put_grant(thief, "acme", f"key:{thief_id}", Grant(role="viewer")),
        service.access.delete_grant(thief, "acme", "jwt:x"),
        service.access.revoke_key(thief, "acme", key_id),
        service.access.revoke_token(thief, "acme", token_id="j", principal=None, until=UNTIL),
        service.tenants.put(thief, "globex", {"weight": 1_000}),
        service.tenants.put(thief, "third", {}),
        service.tenants.resume(thief, "globex"),
        service.erasures.delete_tenant(thief, "acme", confirm="acme", reason=REASON),
        service.status.metrics(thief),
        service.tenants.list(thief),
    ):
        with pytest.raises(Forbidden):
            await act
    with pytest.raises(NotFound):
        await service.access.revoke_key(thief, None, key_id)
    await service.access.put_grant(thief, None, f"key:{key_id}", Grant(role="viewer"))  # its own tenant: allowed
    assert harness.shard.state.access.keys(2)[key_id].revoked_at is None


async def test_52_platform_admin_role_inside_a_tenant_has_no_rights_elsewhere(harness: ServiceHarness) -> None:
    """In a tenant's key or stored grant the role means tenant-admin of that tenant."""
    for name in ("acme", "globex"):
        await harness.tenant(name)
    call, key_id = await harness.key_and_id("acme", "platform-admin")
    await harness.service.access.put_grant(harness.admin, "globex", f"key:{key_id}", Grant(role="platform-admin"))
    for act in (
        harness.service.tenants.put(call, "third", {}),
        harness.service.tenants.suspend(call, "globex"),
        harness.service.messages.add(call, "default", "work", [message()]),
        harness.service.tenants.list(call),
    ):
        with pytest.raises(Forbidden):
            await act
    await harness.add(call, "work", tenant="globex")
    assert await harness.service.fleet.poll(call, "work") != []


async def test_52_platform_key_without_a_tenant_means_default(harness: ServiceHarness) -> None:
    """The tenant 'default' cannot be deleted or created again."""
    await harness.add(harness.admin, "work")
    assert harness.shard.reads.stats("default", "work").ready == 1
    with pytest.raises(TenantqError) as caught:
        await harness.service.erasures.delete_tenant(harness.admin, "default", confirm="default", reason=REASON)
    assert caught.value.code == "conflict"
    created, _ = await harness.service.tenants.put(harness.admin, "default", {})
    assert not created


@pytest.mark.parametrize(
    "bearer",
    [
        None,
        "",
        " ",
        "x",
        "tq_",
        "tq_a_b",
        "Bearer ",
        "\ud800",
        "a" * 1_000_000,
        "a.b.c",
        "nul\0nul",
        "\uff54\uff48\uff45-platform",
    ],
)
async def test_52_missing_and_invalid_credentials_are_unauthenticated(
    harness: ServiceHarness, bearer: str | None
) -> None:
    """The text is the same for all, nothing is echoed, and the denial is journaled."""
    end = await harness.journal_end()
    with pytest.raises(Unauthenticated) as caught:
        await harness.add(harness.call(bearer), "work")
    assert caught.value.message == Unauthenticated().message
    (row,) = await harness.rows(end)
    assert (row.outcome, row.error_code, row.principal) == ("denied", "unauthenticated", "unknown")


async def test_52_fleet_poll_with_an_empty_tenant_list_needs_a_right(harness: ServiceHarness) -> None:
    """An empty list does not bypass authorization."""
    await harness.tenant("acme")
    viewer = await harness.key("acme", "viewer")
    with pytest.raises((Forbidden, Invalid)):
        await harness.service.fleet.poll(viewer, "work", tenants=[])


async def test_52_anonymous_callers_may_use_default_if_the_server_allows_it(open_harness: OpenHarness) -> None:
    """They may only add and consume, whatever is granted to that name. An invalid credential is not anonymous."""
    harness = await open_harness(settings=GateSettings(anonymous_default=True))
    await harness.tenant("acme")
    for tenant in ("acme", "default"):
        with pytest.raises(Invalid, match="principal"):
            await harness.service.access.put_grant(harness.admin, tenant, "anonymous", Grant(role="tenant-admin"))
        await put_grant(harness.shard, tenant, "anonymous", Grant(role="tenant-admin"))  # as an earlier version allowed
    nobody = harness.call(None)
    await harness.add(nobody, "work")
    assert len(await harness.take(nobody, "work")) == 1
    assert await harness.service.fleet.poll(nobody, "work") == []
    for act in (
        harness.add(nobody, "work", tenant="acme"),
        harness.service.message_reads.peek(nobody, None, "work"),
        harness.service.queues.purge(nobody, None, "work", confirm="work", reason=REASON),
        harness.service.access.list_keys(nobody, None),
        harness.service.tenants.put(nobody, "default", {}),
    ):
        with pytest.raises(Forbidden):
            await act
    with pytest.raises(Unauthenticated):
        await harness.add(harness.call("a-wrong-token-of-some-kind"), "work")


# ---- what a viewer sees ----


async def test_52_viewer_never_sees_a_body_attribute_or_result(harness: ServiceHarness) -> None:
    """No call shows them in any state, nor do errors, traces, audits or metrics."""
    await harness.tenant("acme")
    owner, viewer = await harness.key("acme"), await harness.key("acme", "viewer")
    service, secret = harness.service, "s3cr3t"
    await service.queues.put(owner, None, "work", {"max_attempts": 1})
    for delay_ms in (0, 0, 0, 9_000):
        await harness.add(
            owner, "work", f"{secret} body", attributes={f"{secret}-name": f"{secret} value"}, group=f"{secret}-group",
            key=f"{secret}-{delay_ms}-{harness.clock.wall_ms()}", delay_ms=delay_ms,
        )  # fmt: skip
        harness.clock.advance(1)
    ids = []
    (dead,) = await harness.take(owner, "work")
    await service.settlement.nack(owner, None, "work", [dead.receipt], reason="it failed")
    (done,) = await harness.take(owner, "work")
    await service.settlement.ack(
        owner, None, "work", [done.receipt], [Result("completed", f"{secret} result".encode())]
    )
    (held,) = await harness.take(owner, "work")
    ids = [dead.id, done.id, held.id]
    seen: list[object] = []
    for queue in ("work", "work-dlq"):
        page = await service.message_reads.peek(viewer, None, queue, limit=100)
        assert all(one.hidden for one in page.messages)
        ids += [one.id for one in page.messages]
        seen += [page, await service.queues.get(viewer, None, queue)]
        for id in ids:
            for look in (service.message_reads.get, service.message_reads.result, service.message_reads.trace):
                try:
                    seen.append(await look(viewer, None, queue, id))
                except NotFound as error:
                    seen.append(error.message)
    seen += [await service.queues.list(viewer, None), await service.tenants.usage(viewer, None)]
    seen += [row for row in await harness.rows() if row.op != "create_key"]
    seen.append(await service.status.metrics(harness.admin))
    assert secret not in repr(seen)
    result, hidden = await service.message_reads.result(viewer, None, "work", done.id)
    assert (result.status, result.value, hidden) == ("completed", None, True)
    for refused in (harness.take(viewer, "work"), service.fleet.poll(viewer, "work")):
        with pytest.raises(Forbidden):
            await refused
