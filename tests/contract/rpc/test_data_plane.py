"""The contract of the data plane over Cap'n Proto, with a real client over loopback against a whole server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from tenantq.domain.access import VIEWS
from tenantq.engine.settings import ShardSettings
from tenantq.rpc.methods import METHODS
from tenantq.service.audit_trail import AuditQuery
from tenantq.service.call import Call
from tests.contract.gates.harness import suspension
from tests.contract.http.real_server import ADMIN

if TYPE_CHECKING:
    from tenantq.server import Server
    from tests.contract.rpc.conftest import Connect, MakeKey, Serve


async def test_42_message_lifecycle(server: Server, connect: Connect) -> None:
    """It is added, leased with all fields, acked with a result that can be read, and traced."""
    client = await connect(server)
    body = bytes(range(256))
    reply = await client.ask(
        "add",
        messages=[
            {"body": body, "priority": 3, "attributes": [{"name": "kind", "value": "mail"}], "group": "g"},
            {"body": b"", "delayMs": 3_600_000},
        ],
    )
    first, delayed = (message.id for message in reply.messages)
    (got,) = await client.poll(max=10, leaseMs=60_000)
    assert (got.id, got.body, got.attempt, got.priority, got.group) == (first, body, 1, 3, "g")
    assert [(one.name, one.value) for one in got.attributes] == [("kind", "mail")]
    assert (got.tenant, got.queue) == ("default", "q")
    (settled,) = (await client.ask("ack", receipts=[got.receipt], results=[{"value": b"\xff\x00"}])).results
    assert (settled.ok, settled.receipt) == (True, got.receipt)
    assert (await client.ask("result", id=first)).value == b"\xff\x00"
    rows = (await client.ask("trace", id=first)).rows
    assert [row.op for row in rows] == ["add", "poll", "ack"]
    assert {row.remote for row in rows} == {"127.0.0.1"}
    assert {row.userAgent for row in rows} == {"tests"}
    facts = (await client.ask("message", id=delayed)).message
    assert (facts.state, facts.body, facts.bodyHidden, facts.leaseUntil) == ("delayed", b"", False, -1)
    stats = (await client.ask("stats")).stats
    assert (stats.ready, stats.delayed, stats.ackedTotal, stats.status) == (0, 1, 1, "active")


async def test_42_leases_are_fenced_and_batches_answered_in_order(server: Server, connect: Connect) -> None:
    """Each receipt has its own outcome, and lost leases do not affect others."""
    client = await connect(server)
    await client.add(b"a", b"b", b"c")
    a, b, c = await client.poll(max=3)
    done = (await client.ask("ack", receipts=[a.receipt, "nonsense", b.receipt])).results
    assert [(one.ok, one.error.code) for one in done] == [(True, ""), (False, "lease_lost"), (True, "")]
    again = (await client.ask("ack", receipts=[a.receipt])).results
    assert (again[0].ok, again[0].error.code) == (False, "lease_lost")
    (extended,) = (await client.ask("extend", receipts=[c.receipt], leaseMs=90_000)).results
    assert extended.leaseUntil > c.leaseUntil
    assert (await client.ask("release", receipts=[c.receipt])).results[0].ok
    (again_c,) = await client.poll(max=3)
    assert (again_c.id, again_c.attempt) == (c.id, 1)
    removed = (await client.ask("remove", ids=[c.id, a.id])).results
    assert [(one.ok, one.error.code) for one in removed] == [(True, ""), (False, "not_found")]


async def test_42_priorities_go_first_and_keys_add_once(server: Server, connect: Connect) -> None:
    """Higher priorities come first, and a repeated key returns the earlier ID."""
    client = await connect(server)
    await client.ask("add", messages=[{"body": b"low"}, {"body": b"high", "priority": 9}])
    assert [one.body for one in await client.poll(max=2)] == [b"high", b"low"]
    once, twice = [
        (await client.ask("add", queue="k", messages=[{"body": b"x", "key": "order-1"}])).messages[0] for _ in range(2)
    ]
    assert (once.id, once.duplicate, twice.duplicate) == (twice.id, False, True)
    other = await client.refused("add", queue="k", messages=[{"body": b"y", "key": "order-1"}])
    assert other.code == "conflict"


async def test_42_failed_messages_become_dead_letters_and_are_redriven(server: Server, connect: Connect) -> None:
    """They keep reason and history."""
    client = await connect(server)
    put = await client.ask("putQueue", config=json.dumps({"max_attempts": 2, "backoff_base_ms": 0}))
    assert put.created
    assert json.loads(put.queue.config)["max_attempts"] == 2
    (id,) = await client.add(b"bad")
    for _ in range(2):
        (got,) = await client.poll()
        assert (await client.ask("nack", receipts=[got.receipt], delayMs=0, reason="no luck")).results[0].ok
    (dead,) = (await client.ask("peek", queue="q-dlq")).messages
    assert (dead.id, dead.dead.reason, dead.dead.source, dead.dead.attempts) == (id, "no luck", "q", 2)
    assert [one.outcome for one in dead.history] == ["nacked", "nacked"]
    dry = (await client.ask("redrive", dryRun=True)).redrive
    assert (dry.moved, dry.dryRun) == (1, True)
    task = (await client.ask("redrive")).redrive.task
    assert [one.id for one in await client.poll(waitMs=10_000)] == [id]
    state = (await client.ask("redriveStatus", task=task)).redrive
    assert (state.state in {"running", "done"}, state.moved) == (True, 1)


async def test_42_waiting_poll_is_woken(server: Server, connect: Connect) -> None:
    """The first message, which creates the queue, wakes it, or its timeout ends it; waiting for a result works too."""
    client = await connect(server)
    waiting = asyncio.ensure_future(client.poll(waitMs=60_000))
    assert await client.poll(waitMs=20) == []
    (id,) = await client.add(b"now")
    (got,) = await waiting
    assert got.id == id
    result = asyncio.ensure_future(client.ask("result", id=id, waitMs=60_000))
    await client.ask("ack", receipts=[got.receipt], results=[{"error": "it broke"}])
    assert (await result).failed == "it broke"


async def test_42_queues_are_created_listed_paused_purged_and_deleted(server: Server, connect: Connect) -> None:
    """Fields and confirmations are those of HTTP."""
    client = await connect(server)
    for name in ("a", "b", "c"):
        await client.ask("putQueue", queue=name, config='{"lease_ms": 5000}')
    page = await client.ask("listQueues", limit=2)
    assert ([one.name for one in page.queues], page.cursor) == (["a", "b"], "b")
    rest = await client.ask("listQueues", limit=2, cursor="b")
    assert ([one.name for one in rest.queues], rest.cursor) == (["c"], "")
    assert (await client.ask("pauseQueue", queue="a")).queue.stats.status == "paused"
    assert (await client.ask("resumeQueue", queue="a")).queue.stats.status == "active"
    await client.add(b"x", b"y", queue="a")
    hasty = await client.refused("purge", queue="a", confirm="a", reason="why")
    assert (hasty.code, hasty.message.partition(":")[0]) == ("invalid", "reason")
    assert (await client.ask("purge", queue="a", confirm="a", reason="it was a test")).purged == 2
    assert (await client.ask("deleteQueue", queue="a", confirm="a", reason="it was a test")).which() == "done"
    assert (await client.refused("getQueue", queue="a")).code == "not_found"
    for config in ("{", "[]", '{"lease_ms": "long"}', '{"no_such": 1}'):
        assert (await client.refused("putQueue", queue="b", config=config)).code == "invalid"


async def test_42_missing_ref_means_the_credentials_tenant_and_queue_default(
    server: Server, connect: Connect, make_key: MakeKey
) -> None:
    """Omitting the ref gives nobody access to the tenant 'default'."""
    admin = await connect(server)
    await admin.add(b"legacy", queue=None)
    (got,) = await admin.poll(queue=None)
    assert (got.tenant, got.queue, got.body) == ("default", "default", b"legacy")
    acme = await connect(server, await make_key("acme"))
    await acme.add(b"own", queue="")
    (got,) = await acme.poll(queue="")
    assert (got.tenant, got.queue) == ("acme", "default")
    assert (await acme.refused("add", queue=None, bodies=[b"x"])).code == "forbidden"


async def test_42_anonymous_callers_use_default_if_allowed(serve: Serve, connect: Connect) -> None:
    """As over HTTP, ``anonymous_default`` turns it on."""
    from tenantq.service.gate_settings import GateSettings  # noqa: PLC0415

    open_server, closed_server = await serve(gates=GateSettings(anonymous_default=True)), await serve()
    legacy = await connect(open_server, "")
    await legacy.add(b"x", queue=None)
    assert (await legacy.poll(queue=None))[0].tenant == "default"
    stranger = await connect(closed_server, None)
    assert (await stranger.login("")).error.code == "unauthenticated"


async def test_42_another_tenant_looks_unknown_and_the_attempt_is_journaled(
    server: Server, connect: Connect, make_key: MakeKey
) -> None:
    """The error is the same whether it exists or not; the row has address and request ID."""
    acme, globex = await connect(server, await make_key("acme")), await connect(server, await make_key("globex"))
    await acme.add(b"secret")
    (got,) = await acme.poll()
    there = await globex.refused("poll", tenant="acme", requestId="look-1")
    nowhere = await globex.refused("poll", tenant="no-such")
    assert (there.code, there.message) == (nowhere.code, nowhere.message)
    assert there.requestId == "look-1"
    assert (await globex.refused("message", id=got.id)).code == "not_found"
    stolen = (await globex.ask("ack", receipts=[got.receipt], queue="own")).which()
    assert stolen == "error"
    rows = await _denied(server, "acme")
    assert [(row["op"], row["remote"], row["request_id"]) for row in rows] == [("poll", "127.0.0.1", "look-1")]


async def _denied(server: Server, tenant: str) -> list[dict[str, Any]]:
    """Return the denied calls in a tenant's audit trail."""
    await server.service.admission.write_notes()
    page = await server.service.audit.query(Call(bearer=ADMIN), tenant, AuditQuery(result="DENIED"))
    return [{name: getattr(row, name) for name in row.__struct_fields__} for row in page.rows]


async def test_42_rates_roles_and_quotas_apply(server: Server, connect: Connect, make_key: MakeKey) -> None:
    """Code, retry time and figures are those of HTTP."""
    limited = await make_key("acme", limits={"write": {"ops_per_sec": 2, "burst": 2}}, quotas={"queues": 1})
    client = await connect(server, limited)
    await client.add(b"1", b"2")
    error = await client.refused("add", bodies=[b"3", b"4"])
    assert (error.code, error.tenant, error.limit) == ("rate_limited", "acme", 2)
    assert 0 < error.retryAfterMs <= 1_000
    assert (await client.refused("putQueue", queue="second", config="{}")).code == "quota_exceeded"
    producer, viewer = [await connect(server, await make_key("globex", role)) for role in ("producer", "viewer")]
    (id,) = await producer.add(b"secret")
    assert (await producer.refused("poll")).code == "forbidden"
    seen = (await viewer.ask("message", id=id)).message
    assert (seen.bodyHidden, seen.body, seen.size) == (True, b"", 6)


async def test_42_revoked_key_ends_a_live_session(server: Server, connect: Connect, make_key: MakeKey) -> None:
    """The next call is refused, and messages of a waiting poll are returned."""
    token = await make_key("acme")
    client, other = await connect(server, token), await connect(server, await make_key("acme"))
    await client.add(b"x")
    await client.poll(leaseMs=60_000)
    waiting = asyncio.ensure_future(client.refused("poll", waitMs=60_000))
    await other.poll(waitMs=10)
    admin = Call(bearer=ADMIN)
    await server.service.access.revoke_key(admin, "acme", token.split("_")[1])
    assert (await client.refused("add", bodies=[b"y"])).code == "unauthenticated"
    await other.add(b"z")
    assert (await waiting).code == "unauthenticated"
    assert [one.body for one in await other.poll()] == [b"z"]
    assert (await client.login(token)).error.code == "unauthenticated"


async def test_42_suspended_key_gets_its_own_error(server: Server, connect: Connect, make_key: MakeKey) -> None:
    """This holds on open and new connections."""
    token = await make_key("acme", "producer")
    client = await connect(server, token)
    await client.add(b"x")
    await server.service.containment.contain_local(suspension("acme", token.split("_")[1]))
    assert (await client.refused("add", bodies=[b"y"])).code == "key_suspended"
    assert (await client.login(token)).error.code == "key_suspended"


async def test_42_fleet_serves_the_tenants_it_is_granted(server: Server, connect: Connect, make_key: MakeKey) -> None:
    """It serves all of them or those named, and no others."""
    for tenant in ("acme", "globex"):
        await (await connect(server, await make_key(tenant))).add(tenant.encode())
    fleet = await connect(server)
    got = (await fleet.ask("fleetPoll", max=10)).messages
    assert sorted((one.tenant, one.body) for one in got) == [("acme", b"acme"), ("globex", b"globex")]
    acme = await connect(server, await make_key("acme", "consumer"))
    assert (await acme.refused("fleetPoll", tenants=["acme", "globex"])).code == "forbidden"
    assert (await acme.refused("fleetPoll", tenant="acme", tenants=["globex"])).code == "invalid"
    assert (await acme.ask("fleetPoll", tenant="acme")).which() == "messages"


async def test_every_reply_states_its_durability(server: Server, serve: Serve, connect: Connect) -> None:
    """This includes replies to logins and errors."""
    for one, durability in ((server, "fsync"), (await serve(shard=ShardSettings(durability="os")), "os")):
        client = await connect(one, None)
        assert (await client.login("wrong")).durability == durability
        assert (await client.login(ADMIN)).durability == durability
        (id,) = await client.add(b"x")
        given: dict[str, dict[str, Any]] = {
            "add": {"bodies": [b"x"]},
            "ack": {"receipts": ["x"]},
            "remove": {"ids": [id]},
            "putQueue": {"config": "{}"},
        }
        told = {method: await client.ask(method, **given.get(method, {})) for method in METHODS}
        assert {str(reply.durability) for reply in told.values()} == {durability}
        kinds = {told[method].which() for method in ("add", "poll", "ack", "remove", "putQueue", "purge")}
        assert kinds == {"messages", "results", "queue", "error"}


async def test_42_errors_name_what_is_wrong(server: Server, connect: Connect) -> None:
    """The checks are those of HTTP, and messages of a batch are checked separately."""
    client = await connect(server)
    for method, given, word in (
        ("poll", {"max": 0}, "max"),
        ("poll", {"waitMs": -2}, "wait_ms"),
        ("add", {"bodies": []}, "messages"),
        ("add", {"messages": [{"body": b"", "priority": 10}]}, "priority"),
        ("add", {"bodies": [bytes((1 << 20) + 1)]}, "body"),
        ("nack", {"receipts": ["x"], "delayMs": -7}, "delay_ms"),
    ):
        error = await client.refused(method, **given)
        assert error.code in {"invalid", "too_large"}
        assert word in error.message
    assert (await client.refused("poll", queue="no such")).code == "invalid"
    twice = [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]
    reply = await client.ask("add", messages=[{"body": b"good"}, {"body": b"bad", "attributes": twice}])
    good, bad = reply.messages
    assert (bool(good.id), good.error.code, bad.id, bad.error.code) == (True, "", "", "invalid")


async def test_42_suspended_tenant_may_only_settle_its_leases(
    server: Server, connect: Connect, make_key: MakeKey
) -> None:
    """Adds and polls are refused; a suspended queue is named."""
    client, admin = await connect(server, await make_key("acme")), Call(bearer=ADMIN)
    await client.add(b"x")
    (got,) = await client.poll(leaseMs=60_000)
    await server.service.tenants.suspend(admin, "acme", reason="it was asked for")
    assert (await client.refused("add", bodies=[b"y"])).code == "forbidden"
    assert (await client.refused("poll")).code == "forbidden"
    assert (await client.ask("ack", receipts=[got.receipt])).results[0].ok
    await server.service.tenants.resume(admin, "acme")
    assert not (await client.ask("getQueue")).queue.suspension.mode
    await server.service.queues.suspend(admin, "acme", "q", reason="it was asked for")
    told = (await client.ask("getQueue")).queue.suspension
    assert (told.mode, told.reason, told.by[:4], told.at > 0) == ("settle", "it was asked for", "key:", True)


async def test_reading_settings_is_journaled(server: Server, connect: Connect, make_key: MakeKey) -> None:
    """As over HTTP: the first read of a caller at once, repeats as one row with their count."""
    client = await connect(server, await make_key("acme"))
    await client.ask("putQueue", queue="work")
    for _ in range(3):
        await client.ask("getQueue", queue="work")
        await client.ask("listQueues", limit=9)
    await server.service.admission.write_notes()
    page = await server.service.audit.query(Call(bearer=ADMIN), "acme")
    read = [(row.op, row.queue, row.outcome, row.count) for row in page.rows if row.op in VIEWS]
    assert read == [
        ("get_queue", "work", "ok", 1),
        ("list_queues", "", "ok", 1),
        ("get_queue", "work", "ok", 2),
        ("list_queues", "", "ok", 2),
    ]
