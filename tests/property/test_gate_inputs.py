"""Invalid input to every service method raises one typed error, never another exception, and changes nothing.

All examples of a test share one harness. Refused calls change nothing, which is checked too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import unicodedata
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenantq.domain.access import ACTIONS, ROLES, Grant, matches
from tenantq.domain.config import QueueConfig
from tenantq.domain.message import NewMessage, Result
from tenantq.domain.names import check_queue_name, check_tenant_name
from tenantq.domain.template import Template
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.engine.settings import ShardSettings
from tenantq.errors import Forbidden, Invalid, NotFound, TenantqError, Unauthenticated
from tenantq.gates.authorize import covers
from tenantq.runtime.clock import ManualClock
from tenantq.service.audit_trail import AuditQuery
from tenantq.wire.cluster import GrowRequest, PlacementRequest
from tests.contract.gates.harness import REASON, ServiceHarness
from tests.contract.gates.service_calls import NO_ID, NO_RECEIPT, UNTIL
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tenantq.service.call import Call
from tenantq.service.tenant_export import TenantExport
from tests.administration import tenants

QUICK = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)

LOOK_ALIKES = [
    "\u0430cme",
    "\uff41\uff43\uff4d\uff45",
    "acme\u200b",
    "acme\u0301",
    "ACME",
    "acme.",
    "acme\n",
    "\ufeffacme",
    "acm\u0435",
    "\u24d0cme",
    "acme\u00ad",
]
ODD_TEXTS = [
    "", " ", ".", "..", "../acme", "/", "acme/work", "a\0b", "\0", "%00", "%2e%2e", "\ud800", "\udfff", "'; --", "{}", "*",
    "a" * 81, "a" * 100_000, "work\n", "work ", " work", "wörk", "\uff57\uff4f\uff52\uff4b", ".fifo", "x.fifo.fifo", "work.FIFO", "a:b", "a|b",
    *LOOK_ALIKES,
]  # fmt: skip
ODD_NUMBERS = [
    -1, 0, 1 << 31, 1 << 53, 1 << 63, 1 << 64, -(1 << 63), 10**400, True, False, 0.0, 1.5, -0.0, float("nan"), float("inf"),
    float("-inf"), 1e308,
]  # fmt: skip


class Stranger:
    """An object of a type that no caller would send."""

    def __repr__(self) -> str:
        raise ValueError("it cannot even say what it is")


anything: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.sampled_from(ODD_TEXTS),
    st.sampled_from(ODD_NUMBERS),
    st.text(max_size=20),
    st.integers(),
    st.floats(),
    st.binary(max_size=20),
    st.builds(list),
    st.lists(st.one_of(st.none(), st.text(max_size=5), st.integers(), st.builds(dict)), max_size=3),
    st.dictionaries(st.one_of(st.text(max_size=5), st.integers()), st.integers(), max_size=2),
    st.just({1, 2}),
    st.just(("a", 5)),
    st.builds(Stranger),
    st.just(Stranger),
    st.just(b"\xff\xfe"),
    st.just(NotFound("not yours")),
)

messages = st.one_of(
    anything,
    st.lists(
        st.one_of(
            anything,
            st.builds(
                NewMessage, body=anything, priority=anything, delay_ms=anything, ttl_ms=anything, key=anything,
                group=anything, attributes=anything, max_attempts=anything,
            ),
        ),
        max_size=3,
    ),
)  # fmt: skip
grants = st.one_of(
    anything,
    st.builds(Grant, role=anything, actions=anything, queues=anything, expires_at=anything),
    st.builds(
        Grant,
        role=st.sampled_from([None, *ROLES]),
        actions=st.lists(st.one_of(st.sampled_from(ACTIONS), anything), max_size=2).map(tuple),
        queues=st.lists(st.one_of(st.just("*"), anything), max_size=2).map(tuple),
        expires_at=anything,
    ),
)
results = st.one_of(
    anything, st.lists(st.one_of(anything, st.builds(Result, status=anything, value=anything, error=anything)), max_size=2)
)  # fmt: skip
filters = st.one_of(anything, st.builds(RedriveFilter, source=anything, reason=anything, ids=anything, limit=anything))
queries = st.builds(
    AuditQuery, action=anything, result=anything, principal=anything, start=anything, end=anything, queue=anything,
    message=anything, tenant=anything, order=anything, limit=anything, cursor=anything,
) | st.builds(AuditQuery, cursor=anything) | st.builds(AuditQuery, message=anything) | st.builds(AuditQuery, action=anything)  # fmt: skip
SETTING_NAMES = [
    "weight", "quotas", "limits", "concurrency", "regions", "encryption", "defaults", "create_queues", "lease_ms", "max_attempts",
    "ttl_ms", "dead_letter", "backoff_base_ms", "dedup_ms", "name", "caller", "self", "tenant", "changes", "backlog", "write",
    "read", "ops_per_sec", "burst", "bytes_per_sec", "soft_percent", "enabled", "requests", "polls", "in_flight",
]  # fmt: skip
names = st.one_of(st.sampled_from(SETTING_NAMES), anything.filter(lambda one: one.__hash__ is not None))
changes = st.one_of(
    anything,
    st.recursive(anything, lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3), max_leaves=5),
)
no_wait = anything.filter(lambda one: type(one) is not int or one < 1)  # a valid wait would really wait

Argument = tuple[Any, st.SearchStrategy[Any]]  # a valid value, and invalid ones
TENANT: Argument = ("acme", anything)
QUEUE: Argument = ("work", anything)
RECEIPTS: Argument = ([NO_RECEIPT], anything)
NUMBER: Argument = (1, anything)
NOT_THERE: Argument = (NotFound(), st.just(NotFound()))  # the transport's own
NOTHING: Argument = (None, anything)
REASONED: Argument = (REASON, anything)

# method: its positional and keyword arguments, without the call
ARGUMENTS: dict[str, tuple[tuple[Argument, ...], dict[str, Argument]]] = {
    "messages.add": ((TENANT, QUEUE, ([NewMessage(body=b"b")], messages)), {"key": NOTHING}),
    "messages.poll": ((TENANT, QUEUE), {"max": NUMBER, "wait_ms": (0, no_wait), "lease_ms": NUMBER, "consumer": NOTHING, "whole_groups": (True, anything)}),
    "fleet.poll": (
        (QUEUE,),
        {"tenants": (["acme"], anything), "max": NUMBER, "wait_ms": (0, no_wait), "lease_ms": NUMBER, "consumer": NOTHING},
    ),
    "settlement.ack_any": ((TENANT, QUEUE, RECEIPTS), {}),
    "settlement.ack": ((TENANT, QUEUE, RECEIPTS), {"results": ([Result("completed", b"r")], results)}),
    "settlement.nack": ((TENANT, QUEUE, RECEIPTS), {"delay_ms": NUMBER, "reason": REASONED}),
    "settlement.release": ((TENANT, QUEUE, RECEIPTS), {}),
    "settlement.extend": ((TENANT, QUEUE, RECEIPTS), {"lease_ms": NUMBER}),
    "settlement.remove": ((TENANT, QUEUE, ([NO_ID], anything)), {}),
    "message_reads.peek": ((TENANT, QUEUE), {"limit": NUMBER, "cursor": NOTHING}),
    "message_reads.open_snapshot": ((TENANT, QUEUE), {"keep_ms": (60_000, anything), "part_messages": NOTHING}),
    "message_reads.read_snapshot": ((TENANT, QUEUE, ("0" * 32, anything)), {"start": NOTHING, "end": NOTHING, "limit": NUMBER}),
    "message_reads.close_snapshot": ((TENANT, QUEUE, ("0" * 32, anything)), {}),
    "message_reads.get": ((TENANT, QUEUE, (NO_ID, anything)), {}),
    "message_reads.result": ((TENANT, QUEUE, (NO_ID, anything)), {"wait_ms": (0, no_wait)}),
    "message_reads.trace": ((TENANT, QUEUE, (NO_ID, anything)), {}),
    "queues.purge": ((TENANT, QUEUE), {"confirm": ("work", anything), "reason": REASONED}),
    "redrives.start": ((TENANT, QUEUE), {"filter": (RedriveFilter(), filters), "rate": NUMBER, "dry_run": (False, anything)}),
    "redrives.list": ((TENANT, QUEUE), {}),
    "sqs_lookup.find_tenant": ((NUMBER, ("get_queue", st.just("get_queue")), QUEUE), {}),
    "sqs_lookup.find_queue": ((NUMBER, ("get_queue", st.just("get_queue")), QUEUE), {}),
    "sqs_lookup.find_queues": ((NUMBER,), {"prefix": ("", anything), "dead_letter": NOTHING}),
    "redrives.get": ((TENANT, QUEUE, ("0" * 16, anything)), {}),
    "redrives.cancel": ((TENANT, QUEUE, ("0" * 16, anything)), {}),
    "queues.workers": ((TENANT,), {}),
    "queues.list": ((TENANT,), {"after": NOTHING, "limit": NUMBER}),
    "queues.get": ((TENANT, QUEUE), {}),
    "queues.put": ((TENANT, QUEUE, ({"lease_ms": 500}, changes)), {}),
    "queues.pause": ((TENANT, QUEUE), {}),
    "queues.unpause": ((TENANT, QUEUE), {}),
    "queues.delete": ((TENANT, ("gone", anything)), {"confirm": ("gone", anything), "reason": REASONED, "force": (False, anything)}),
    "tenants.get": ((TENANT,), {}),
    "tenants.usage": ((TENANT,), {}),
    "encryption.get": ((TENANT,), {}),
    "encryption.rotate": ((TENANT,), {}),
    "encryption.rewrap": ((TENANT,), {}),
    "legal_holds.place": ((TENANT, ("because a test says so", anything)), {}),
    "legal_holds.release": ((TENANT, ("because a test says so", anything)), {}),
    "exports.import_part": (
        (TENANT, QUEUE),
        {"export": ("ab" * 16, anything), "part": NUMBER, "messages": ([], anything), "results": ([], anything),
         "idempotency": ([], anything)},
    ),
    "exports.export": ((TENANT, (None, anything)), {}),
    "erasures.list": ((), {}),
    "erasures.get": ((("1-1", anything),), {}),
    "backups.create": ((("name", anything),), {}),
    "backups.list": ((), {}),
    "backups.test": ((("name", anything),), {}),
    "compliance.tenant": ((TENANT,), {}),
    "compliance.platform": ((), {}),
    "audit.query": ((TENANT, (AuditQuery(message=NO_ID, order="newest"), queries)), {}),
    "audit.query_platform": (((AuditQuery(), queries),), {}),
    "access.list_platform_keys": ((), {}),
    "access.create_platform_key": ((("name", anything), (Grant(role="platform-admin"), grants)), {}),
    "access.revoke_platform_key": ((("nobody", anything),), {}),
    "access.list_keys": ((TENANT,), {}),
    "access.create_key": ((TENANT, ("name", anything), (Grant(role="viewer"), grants)), {}),
    "access.revoke_key": ((TENANT, ("nobody", anything)), {}),
    "access.list_grants": ((TENANT,), {}),
    "access.put_grant": ((TENANT, ("jwt:x", anything), (Grant(role="viewer"), grants)), {}),
    "access.review_grant": ((TENANT, ("jwt:x", anything)), {}),
    "access.delete_grant": ((TENANT, ("jwt:y", anything)), {}),
    "access.revoke_token": ((TENANT,), {"token_id": ("j", anything), "principal": NOTHING, "until": NUMBER}),
    "tenants.plans": ((), {}),
    "templates.list": ((TENANT,), {}),
    "templates.put": ((TENANT, ("mail", anything), (Template(queues={"work": {}}), anything)), {}),
    "templates.apply": ((TENANT, ("mail", anything)), {"owner": NOTHING, "dry_run": (True, anything)}),
    "templates.delete": ((TENANT, ("mail", anything)), {}),
    "signups.list": ((), {}),
    "signups.get": ((("1-1", anything),), {}),
    "signups.approve": ((("1-1", anything),), {}),
    "signups.reject": ((("1-1", anything), REASONED), {}),
    "containment.list": ((), {}),
    "containment.release": ((("1-1-0", anything),), {}),
    "alerts.list": ((), {}),
    "alerts.list_tenant": ((TENANT,), {}),
    "alerts.test": ((TENANT,), {}),
    "tenants.list": ((), {"after": NOTHING, "limit": NUMBER}),
    "tenants.put": ((TENANT, ({"weight": 2}, changes)), {}),
    "tenants.suspend": ((("third", anything), REASONED, ("settle", anything)), {}),
    "tenants.resume": ((TENANT, REASONED), {}),
    "queues.suspend": ((("third", anything), ("gone", anything), REASONED, ("freeze", anything)), {}),
    "queues.resume": ((("third", anything), ("gone", anything), REASONED), {}),
    "exports.digest": ((TENANT, QUEUE), {"at": NUMBER, "export": ("ab" * 16, anything)}),
    "erasures.delete_tenant": ((("gone-tenant", anything),), {"confirm": ("gone-tenant", anything), "reason": REASONED}),
    "status.metrics": ((), {}),
    "status.tenant_metrics": ((TENANT,), {}),
    "status.cluster": ((), {}),
    "placement.get": ((("acme", anything),), {}),
    "placement.place": ((("acme", anything), (PlacementRequest(shard=1), anything)), {}),
    "placement.grow": (((GrowRequest(shards=99), anything),), {}),
    "status.drain_member": ((("m-1", anything),), {"drain": (True, anything)}),
    "tenants.residency": ((TENANT,), {}),
    "settlement.change_leases": ((TENANT, QUEUE, RECEIPTS), {"lease_ms": NUMBER, "held_ms_max": (9, st.just(9))}),
    "queues.change": ((TENANT, QUEUE, ({"lease_ms": 500}, changes)), {"expected": (QueueConfig(), st.just(QueueConfig()))}),
    "queues.create": ((TENANT, QUEUE, ({"lease_ms": 500}, changes)), {}),
    "sqs_lookup.note_refused": ((("acme", st.just("acme")), ("add", st.just("add")), ("work", st.just("work")), NOT_THERE), {}),
    "status.topology": ((), {}),
    "access.log_in": ((), {}),
}  # fmt: skip


@contextlib.asynccontextmanager
async def open_harness() -> AsyncIterator[tuple[ServiceHarness, list[Call]]]:
    """Open a harness with three tenants, and calls of the platform, of two tenant administrators, and of a stranger."""
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as directory:
        options = ShardSettings(durability="os")
        shard = Shard(Path(directory) / "data", clock=clock, randomness=random.Random(3), settings=options)
        async with shard:
            harness = await ServiceHarness(shard, clock).open()
            for name in ("acme", "other", "third"):
                await harness.tenant(name, quotas={"consumers_per_queue": 500})
                await harness.add(harness.admin, "work", tenant=name)
            calls = [harness.admin, await harness.key("acme"), await harness.key("other"), harness.call(None)]
            yield harness, calls
            await harness.close()


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[asyncio.AbstractEventLoop, ServiceHarness, list[Call]]]:
    """Open one harness for all examples, on a loop that each of them runs for a while."""
    loop = asyncio.new_event_loop()
    harness = open_harness()
    entered = loop.run_until_complete(harness.__aenter__())
    yield loop, *entered
    loop.run_until_complete(harness.__aexit__(None, None, None))
    loop.close()


def test_every_service_method_is_covered() -> None:
    """A new method cannot be forgotten."""
    from tests.contract.gates.service_calls import ANY_CREDENTIAL, SERVICE_CALLS  # noqa: PLC0415  # only for this list

    assert set(ARGUMENTS) == set(SERVICE_CALLS) | ANY_CREDENTIAL


@pytest.mark.parametrize("method", sorted(ARGUMENTS))
def test_invalid_input_raises_one_typed_error(
    opened: tuple[asyncio.AbstractEventLoop, ServiceHarness, list[Call]], method: str
) -> None:
    """The outcome is a reply or a TenantqError with a text, and the shard keeps working."""
    loop, harness, calls = opened
    positional, named = ARGUMENTS[method]
    count = len(positional) + len(named)

    @st.composite
    def invalid_arguments(draw: st.DrawFn) -> tuple[list[Any], dict[str, Any]]:
        """Draw arguments of which at least one is invalid."""
        bad = draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=2)) if count else set()
        values = [
            draw(wrong) if place in bad else good for place, (good, wrong) in enumerate([*positional, *named.values()])
        ]
        return values[: len(positional)], dict(zip(named, values[len(positional) :], strict=True))

    @settings(QUICK)
    @given(who=st.sampled_from([calls[0], calls[0], calls[1], calls[2], calls[3]]), arguments=invalid_arguments())
    def ask(who: Call, arguments: tuple[list[Any], dict[str, Any]]) -> None:
        async def act() -> None:
            refused: list[TenantqError] = []
            try:
                got = await asyncio.wait_for(
                    attrgetter(method)(harness.service)(who, *arguments[0], **arguments[1]), 10
                )
                if isinstance(got, TenantExport):
                    got.close()
            except TenantqError as error:
                refused.append(error)
            for one in refused:
                assert one.code in CODES
                assert 400 <= one.status < 500 or one.code == "unavailable"
                assert 1 <= len(one.message) < 3_000
            assert harness.shard.failure is None

        loop.run_until_complete(act())
        assert not harness.failures, harness.failures
        assert set(tenants(harness.shard)) >= {"default", "acme", "other"}

    ask()
    assert harness.admission.slots.in_flight == 0


CODES = {
    "unauthenticated", "forbidden", "invalid", "not_found", "conflict", "draining", "too_large", "rate_limited",
    "quota_exceeded", "unavailable", "legal_hold",
}  # fmt: skip


# ---- names ----


@QUICK
@given(st.one_of(st.sampled_from(LOOK_ALIKES), st.sampled_from(ODD_TEXTS), st.text(max_size=40)))
def test_valid_tenant_names_are_stable_under_normalization(name: str) -> None:
    """Normalization, case folding and IDNA leave a valid name unchanged."""
    try:
        check_tenant_name(name)
    except Invalid:
        return
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert unicodedata.normalize(form, name) == name
    assert name.casefold() == name == name.strip()
    assert name.encode("idna").decode() == name if not name.startswith("xn--") else True


@given(name=st.one_of(st.sampled_from(LOOK_ALIKES), st.sampled_from(ODD_TEXTS), st.text(max_size=12)))
@QUICK
def test_39_tenant_is_addressed_only_by_its_exact_name(
    opened: tuple[asyncio.AbstractEventLoop, ServiceHarness, list[Call]], name: str
) -> None:
    """Any other text is forbidden to tenants, and not found by the platform."""
    loop, harness, calls = opened
    if name in tenants(harness.shard):
        return

    async def act() -> None:
        for call in calls[1:]:
            with pytest.raises((Forbidden, Unauthenticated)):
                await harness.service.tenants.get(call, name)
        with pytest.raises(NotFound):
            await harness.service.tenants.get(harness.admin, name)

    loop.run_until_complete(act())


queue_names = st.from_regex(r"[A-Za-z0-9_-]{1,6}(\.fifo)?", fullmatch=True)
alike = st.builds(
    lambda stem, tails: sorted({check_queue_name(stem + tail) for tail in tails}),
    st.from_regex(r"[A-Za-z0-9_-]{1,4}", fullmatch=True),
    st.lists(st.sampled_from(["", "a", "A", "-", "_", "0", "-dlq", ".fifo", "aa", "-a"]), min_size=2, max_size=5),
)


@given(
    queues=alike,
    tenant_names=st.sets(st.from_regex(r"t[a-z0-9-]{1,3}[a-z0-9]", fullmatch=True), min_size=2, max_size=3),
)
@settings(QUICK, max_examples=40)
def test_39_similar_names_never_mix_through_the_service(
    opened: tuple[asyncio.AbstractEventLoop, ServiceHarness, list[Call]], queues: list[str], tenant_names: set[str]
) -> None:
    """Random names that are prefixes of each other: each queue holds exactly what was added to it."""
    loop, harness, _ = opened

    async def act() -> None:
        keys = {}
        for name in sorted(tenant_names):
            await harness.tenant(name)
            keys[name] = await harness.key(name)
        for name, call in keys.items():
            for queue in queues:
                await harness.add(call, queue, f"{name}/{queue}", key="the same key")
        for name, call in keys.items():
            listed = await harness.service.queues.list(call, None)
            assert sorted(one.name for one in listed) == queues
            for queue in queues:
                got = await harness.take(call, queue, max=10)
                assert [(one.body.decode(), one.tenant, one.queue) for one in got] == [(f"{name}/{queue}", name, queue)]
        for name in tenant_names:
            await harness.service.erasures.delete_tenant(harness.admin, name, confirm=name, reason=REASON)

    loop.run_until_complete(act())


# ---- grants ----

patterns = st.from_regex(r"[ab*?]{1,6}", fullmatch=True)


@settings(QUICK, max_examples=400)
@given(held=patterns, asked=patterns, queue=st.from_regex(r"[ab]{1,7}", fullmatch=True))
def test_52_covered_pattern_never_matches_more(held: str, asked: str, queue: str) -> None:
    """If one pattern covers another, it matches everything that the other matches."""
    if covers(held, asked) and matches(asked, queue):
        assert matches(held, queue)


@settings(QUICK, max_examples=60)
@given(
    held=st.builds(
        Grant,
        role=st.sampled_from(["tenant-admin", None]),
        actions=st.sets(st.sampled_from(ACTIONS), max_size=4).map(
            lambda some: (*sorted(some), "create_key", "put_grant")
        ),
        queues=st.lists(patterns, min_size=1, max_size=2).map(tuple),
    ),
    wanted=st.builds(
        Grant,
        role=st.sampled_from([None, *ROLES]),
        actions=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=3).map(tuple),
        queues=st.lists(patterns, min_size=1, max_size=2).map(tuple),
    ),
    queue=st.from_regex(r"[ab]{1,5}", fullmatch=True),
)
def test_52_created_key_never_allows_more_than_its_creator(
    opened: tuple[asyncio.AbstractEventLoop, ServiceHarness, list[Call]], held: Grant, wanted: Grant, queue: str
) -> None:
    """Every action on every queue that the new key allows, the old one allows."""
    loop, harness, _ = opened
    allowed = harness.admission.authorizer.allowed

    async def act() -> None:
        giver = harness.call((await harness.service.access.create_key(harness.admin, "acme", "giver", held)).token)
        try:
            made = await harness.service.access.create_key(giver, None, "taker", wanted)
        except Forbidden:
            return
        finally:
            old = await harness.admission.identify(giver, "create_key")
        new = await harness.admission.identify(harness.call(made.token), "create_key")
        for action in ACTIONS:
            for tenant in ("acme", "other", "default", ""):
                for place in (queue, None):
                    if allowed(new, tenant, action, place):
                        assert allowed(old, tenant, action, place), (action, place)

    loop.run_until_complete(act())


def test_far_future_time_is_valid() -> None:
    """Tests use the upper limit of times for "forever"."""
    assert Grant(role="viewer", expires_at=UNTIL).allows("peek", "q", UNTIL - 1)
