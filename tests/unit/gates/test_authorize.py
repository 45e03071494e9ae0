"""Authorization: what a principal may do where."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantq.domain.access import ACTIONS, ROLES, Grant, Principal, matches
from tenantq.errors import Forbidden, Invalid
from tenantq.gates.authenticate import ANONYMOUS
from tenantq.gates.authorize import PLATFORM_ACTIONS, TENANT_LISTS_MAX, Authorizer, covers
from tests.unit.gates.credentials import MemoryBook, claims, signed, verifier
from tests.unit.gates.documented_matrix import DOCUMENTED

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock

ADMIN = Principal("key:admin", None, (Grant(role="platform-admin"),))


def principal_with(*grants: Grant, tenant: str | None = "acme", expires_at: int | None = None) -> Principal:
    """Return a principal whose credential has these grants."""
    return Principal("key:k1", tenant, grants, expires_at)


@pytest.fixture
def book() -> MemoryBook:
    """Grants, none at first."""
    return MemoryBook()


@pytest.fixture
def gate(book: MemoryBook, clock: ManualClock) -> Authorizer:
    """Return an authorizer on that book."""
    return Authorizer(book, clock)


# ---- the matrix ----


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("role", ROLES)
def test_52_each_role_may_do_what_the_documented_matrix_says(
    gate: Authorizer, book: MemoryBook, role: str, action: str
) -> None:
    """And nothing else, by the credential's own grant or a stored one, and in no other tenant."""
    inside = action in DOCUMENTED[role] and action not in PLATFORM_ACTIONS
    own = principal_with(Grant(role=role))
    guest = principal_with(tenant="globex")
    book.put_grant("acme", guest.id, Grant(role=role))
    for principal in (own, guest):
        assert gate.allowed(principal, "acme", action, "orders") is inside
        assert gate.allowed(principal, "acme", action, None) is inside
    assert not gate.allowed(principal_with(Grant(role=role), tenant="globex"), "initech", action, "orders")
    assert not gate.allowed(own, "globex", action, "orders")
    assert not gate.allowed(own, "globex", action, None)


@pytest.mark.parametrize("action", ACTIONS)
def test_52_the_platform_administrator_may_do_everything_everywhere(gate: Authorizer, action: str) -> None:
    """Also in tenants that do not exist yet."""
    assert gate.allowed(ADMIN, "acme", action, "orders")
    assert gate.allowed(ADMIN, "not-there-yet", action, None)


@pytest.mark.parametrize("action", ACTIONS)
def test_52_nothing_is_allowed_by_default(gate: Authorizer, action: str) -> None:
    """Without a grant every action is denied."""
    for principal in (principal_with(), principal_with(tenant=None)):
        assert not gate.allowed(principal, "acme", action, "orders")
        with pytest.raises(Forbidden):
            gate.check(principal, "acme", action, None)


def test_52_a_stored_platform_admin_grant_is_a_tenant_admin_grant(gate: Authorizer, book: MemoryBook) -> None:
    """So is one in a tenant's own credential. Neither allows anything in other tenants."""
    book.put_grant("acme", "key:k1", Grant(role="platform-admin"))
    for principal in (
        principal_with(tenant="globex"),
        principal_with(tenant=None),
        principal_with(Grant(role="platform-admin")),
    ):
        allowed = {action for action in ACTIONS if gate.allowed(principal, "acme", action, None)}
        assert allowed == DOCUMENTED["tenant-admin"]
        assert not any(gate.allowed(principal, "initech", action, None) for action in ACTIONS)
        assert gate.tenants_for(principal, "poll", "orders") == ["acme"]


@pytest.mark.parametrize("action", sorted(PLATFORM_ACTIONS))
def test_52_platform_actions_need_a_platform_credential(gate: Authorizer, book: MemoryBook, action: str) -> None:
    """Listed in a tenant's grant they have no effect; on a platform key they are allowed, and "add" is not."""
    single = Grant(actions=(action, "add"))
    book.put_grant("acme", "key:k1", single)
    assert not gate.allowed(principal_with(single), "acme", action, None)
    platform = Principal("key:k2", None, (single,))
    assert gate.allowed(platform, "acme", action, None)
    assert not gate.allowed(platform, "acme", "add", "orders")


def test_an_unknown_action_is_denied(gate: Authorizer) -> None:
    """To administrators too."""
    assert not gate.allowed(ADMIN, "acme", "fly", None)
    assert not gate.allowed(principal_with(Grant(role="tenant-admin")), "acme", "fly", None)


# ---- grants ----


def test_a_refusal_does_not_reveal_whether_the_tenant_exists(gate: Authorizer, book: MemoryBook) -> None:
    """Nor whether the queue does."""
    book.put_grant("globex", "key:other", Grant(role="tenant-admin"))
    texts = set()
    for tenant, queue in [("globex", None), ("nowhere", None), ("globex", "orders"), ("acme", "orders")]:
        with pytest.raises(Forbidden) as caught:
            gate.check(principal_with(Grant(role="viewer")), tenant, "add", queue)
        assert (caught.value.tenant, caught.value.queue) == (tenant, queue)
        texts.add(caught.value.message.replace(f" on queue '{queue}'", ""))
    assert len(texts) == 1


def test_a_refusal_names_the_action_and_the_queue(gate: Authorizer) -> None:
    """The caller knows which grant to ask for."""
    with pytest.raises(Forbidden, match="action 'add' on queue 'orders' is not allowed"):
        gate.check(principal_with(Grant(role="viewer")), "acme", "add", "orders")


def test_own_and_stored_grants_add_up(gate: Authorizer, book: MemoryBook) -> None:
    """An action is allowed if any of them allows it."""
    principal = principal_with(Grant(role="producer", queues=("in-*",)), Grant(actions=("peek",)))
    book.put_grant("acme", principal.id, Grant(role="consumer", queues=("out",)))
    expected = {("add", "in-1"): True, ("add", "out"): False, ("poll", "out"): True, ("poll", "in-1"): False}
    expected |= {("peek", "out"): True, ("peek", "x"): True, ("purge", "out"): False}
    for (action, queue), allowed in expected.items():
        assert gate.allowed(principal, "acme", action, queue) is allowed


async def test_43_a_worker_without_the_scope_is_forbidden(gate: Authorizer, clock: ManualClock, tmp_path: Path) -> None:
    """A token's scope grants the actions it names, on the queues it names, and no others."""
    token = signed(claims(clock, role=..., scope="poll ack", queues=["mail-*"]))
    worker = (await verifier(clock, tmp_path).verify(token)).principal
    gate.check(worker, "acme", "poll", "mail-eu")
    gate.check(worker, "acme", "ack", "mail-eu")
    for action, queue in [("add", "mail-eu"), ("nack", "mail-eu"), ("poll", "bills"), ("read_body", "mail-eu")]:
        with pytest.raises(Forbidden):
            gate.check(worker, "acme", action, queue)


def test_stored_grants_do_not_apply_to_anonymous_callers(gate: Authorizer, book: MemoryBook) -> None:
    """A tenant cannot be made public by accident."""
    book.put_grant("acme", "anonymous", Grant(role="tenant-admin"))
    book.put_grant("default", "anonymous", Grant(role="tenant-admin"))
    assert not gate.allowed(ANONYMOUS, "acme", "poll", "orders")
    assert not gate.allowed(ANONYMOUS, "default", "purge", "orders")
    assert gate.allowed(ANONYMOUS, "default", "poll", "default")
    assert gate.tenants_for(ANONYMOUS, "poll", "orders") == ["default"]


# ---- time and change ----


def test_52_a_grant_expires_to_the_millisecond(gate: Authorizer, book: MemoryBook, clock: ManualClock) -> None:
    """Own or stored, although the decision was cached, and also after a jump of the wall clock."""
    end = clock.wall_ms() + 1_000
    own = principal_with(Grant(role="producer", expires_at=end))
    guest = principal_with(tenant="globex")
    book.put_grant("acme", guest.id, Grant(role="producer", expires_at=end))
    for principal in (own, guest):
        assert gate.allowed(principal, "acme", "add", "orders")
        assert gate.tenants_for(principal, "add", "orders") == ["acme"]
    clock.advance(999)
    assert all(gate.allowed(principal, "acme", "add", "orders") for principal in (own, guest))
    clock.jump_wall(1)
    for principal in (own, guest):
        assert not gate.allowed(principal, "acme", "add", "orders")
        assert gate.tenants_for(principal, "add", "orders") == []


def test_the_longer_of_two_grants_counts(gate: Authorizer, clock: ManualClock) -> None:
    """The expiry of one does not end what the other allows."""
    now = clock.wall_ms()
    principal = principal_with(
        Grant(role="producer", expires_at=now + 10), Grant(actions=("add",), expires_at=now + 20)
    )
    assert gate.allowed(principal, "acme", "add", "orders")
    clock.advance(10)
    assert gate.allowed(principal, "acme", "add", "orders")
    assert not gate.allowed(principal, "acme", "result", "orders")
    clock.advance(10)
    assert not gate.allowed(principal, "acme", "add", "orders")


def test_an_expired_credential_may_do_nothing(gate: Authorizer, book: MemoryBook, clock: ManualClock) -> None:
    """Stored grants and the platform administrator's role do not help."""
    end = clock.wall_ms() + 10
    guest = principal_with(tenant="globex", expires_at=end)
    admin = Principal("jwt:root", None, (Grant(role="platform-admin"),), end)
    book.put_grant("acme", guest.id, Grant(role="producer"))
    for principal in (guest, admin):
        assert gate.allowed(principal, "acme", "add", "orders")
    assert gate.tenants_for(admin, "add", "orders") is None
    clock.advance(10)
    for principal in (guest, admin):
        assert not gate.allowed(principal, "acme", "add", "orders")
        assert gate.tenants_for(principal, "add", "orders") == []


def test_an_expired_platform_admin_grant_allows_nothing(gate: Authorizer, clock: ManualClock) -> None:
    """It expires like any other grant."""
    admin = Principal("key:admin", None, (Grant(role="platform-admin", expires_at=clock.wall_ms() + 1),))
    assert gate.tenants_for(admin, "poll", "orders") is None
    clock.advance(1)
    assert not gate.allowed(admin, "acme", "add", "orders")
    assert gate.tenants_for(admin, "poll", "orders") == []
    with pytest.raises(Forbidden):
        gate.check_may_grant(admin, "acme", Grant(role="viewer"))


def test_52_decisions_are_cached_until_a_grant_changes(gate: Authorizer, book: MemoryBook) -> None:
    """The very next call after a change is decided again."""
    principal = principal_with()
    assert not gate.allowed(principal, "acme", "add", "orders")
    book.put_grant("acme", principal.id, Grant(role="producer"))
    assert gate.allowed(principal, "acme", "add", "orders")
    asked = book.asked
    for _ in range(10):
        assert gate.allowed(principal, "acme", "add", "orders")
    assert book.asked == asked
    assert gate.tenants_for(principal, "add", "orders") == ["acme"]
    book.put_grant("acme", principal.id)
    assert not gate.allowed(principal, "acme", "add", "orders")
    assert gate.tenants_for(principal, "add", "orders") == []


def test_principals_with_the_same_id_are_cached_separately(gate: Authorizer) -> None:
    """Two tokens of one subject may have different grants, and an object's address may be reused."""
    for _ in range(200):
        assert gate.allowed(principal_with(Grant(role="producer")), "acme", "add", "orders")
        assert not gate.allowed(principal_with(Grant(role="consumer")), "acme", "add", "orders")


def test_the_decision_cache_is_bounded(book: MemoryBook, clock: ManualClock) -> None:
    """Callers choose the queue names."""
    gate = Authorizer(book, clock, decisions_max=10)
    principal = principal_with(Grant(role="producer"))
    for number in range(200):
        assert gate.allowed(principal, "acme", "add", f"q{number}")
        assert gate.tenants_for(principal, "add", f"q{number}") == ["acme"]
    assert len(gate._decisions) == 10
    assert len(gate._tenants) == TENANT_LISTS_MAX


# ---- several tenants ----


def test_a_fleet_gets_the_tenants_it_is_granted(gate: Authorizer, book: MemoryBook) -> None:
    """Its own and those with a stored grant for the action and queue, in order."""
    fleet = Principal("jwt:fleet", "acme", (Grant(role="consumer", queues=("mail",)),))
    book.put_grant("initech", fleet.id, Grant(role="consumer"))
    book.put_grant("globex", fleet.id, Grant(role="consumer", queues=("mail", "bills")))
    book.put_grant("hooli", fleet.id, Grant(role="producer"))
    book.put_grant("umbrella", "jwt:other", Grant(role="consumer"))
    assert gate.tenants_for(fleet, "poll", "mail") == ["acme", "globex", "initech"]
    assert gate.tenants_for(fleet, "poll", "bills") == ["globex", "initech"]
    assert gate.tenants_for(fleet, "add", "mail") == ["hooli"]
    assert gate.tenants_for(fleet, "purge", "mail") == []
    assert gate.tenants_for(ADMIN, "poll", "mail") is None


def test_the_returned_tenant_list_is_a_copy(gate: Authorizer) -> None:
    """Changing it changes no decision."""
    principal = principal_with(Grant(role="consumer"))
    found = gate.tenants_for(principal, "poll", "mail")
    assert found is not None
    found.append("globex")
    assert gate.tenants_for(principal, "poll", "mail") == ["acme"]


# ---- delegation ----


@pytest.mark.parametrize("role", ROLES)
def test_only_the_platform_grants_platform_admin(gate: Authorizer, role: str) -> None:
    """A tenant administrator may grant every other role, the platform administrator all of them."""
    gate.check_may_grant(ADMIN, "acme", Grant(role=role))
    tenant_admin = principal_with(Grant(role="tenant-admin"))
    if role == "platform-admin":
        with pytest.raises(Forbidden, match="cannot exceed your own permissions"):
            gate.check_may_grant(tenant_admin, "acme", Grant(role=role))
    else:
        gate.check_may_grant(tenant_admin, "acme", Grant(role=role))
    with pytest.raises(Forbidden):
        gate.check_may_grant(tenant_admin, "globex", Grant(role=role))


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_can_be_granted_only_by_those_who_may_do_it(gate: Authorizer, action: str) -> None:
    """One action at a time, for every role."""
    for role in ROLES:
        giver = principal_with(Grant(role=role))
        if gate.allowed(giver, "acme", action, None):
            gate.check_may_grant(giver, "acme", Grant(actions=(action,)))
        else:
            with pytest.raises(Forbidden):
                gate.check_may_grant(giver, "acme", Grant(actions=(action,)))


def test_a_grant_cannot_exceed_the_grantors_queues_and_expiry(
    gate: Authorizer, book: MemoryBook, clock: ManualClock
) -> None:
    """Each pattern has to lie within one of the grantor's and expire no later."""
    end = clock.wall_ms() + 1_000
    giver = principal_with(Grant(role="tenant-admin", queues=("mail-*", "bills"), expires_at=end))
    for queues in [("mail-eu",), ("mail-*", "bills"), ("mail-??",), ("mail-eu-*",)]:
        gate.check_may_grant(giver, "acme", Grant(role="viewer", queues=queues, expires_at=end))
    for queues in [("*",), ("mail*",), ("mail-eu", "other"), ("bill?",), ("?ills",)]:
        with pytest.raises(Forbidden):
            gate.check_may_grant(giver, "acme", Grant(role="viewer", queues=queues, expires_at=end))
    for later in (end + 1, None):
        with pytest.raises(Forbidden):
            gate.check_may_grant(giver, "acme", Grant(role="viewer", queues=("bills",), expires_at=later))
    book.put_grant("acme", giver.id, Grant(role="viewer", queues=("bills",)))
    gate.check_may_grant(giver, "acme", Grant(role="viewer", queues=("bills",)))


def test_the_expiry_of_a_credential_does_not_limit_its_grants(gate: Authorizer, clock: ManualClock) -> None:
    """An administrator's token lives for minutes, the keys it creates for years."""
    giver = principal_with(Grant(role="tenant-admin"), expires_at=clock.wall_ms() + 1_000)
    gate.check_may_grant(giver, "acme", Grant(role="producer"))


def test_a_malformed_grant_is_invalid(gate: Authorizer) -> None:
    """It is checked before anything else."""
    with pytest.raises(Invalid, match="role"):
        gate.check_may_grant(ADMIN, "acme", Grant(role="boss"))


PATTERNS = st.text("ab*?", min_size=1, max_size=6)


@settings(max_examples=500)
@given(wide=PATTERNS, narrow=PATTERNS, data=st.data())
def test_a_covering_pattern_matches_everything_the_other_matches(wide: str, narrow: str, data: st.DataObject) -> None:
    """For every name generated from the narrower pattern."""
    fill = st.text("ab", max_size=3)
    name = "".join(
        data.draw(fill) if letter == "*" else data.draw(st.sampled_from("ab")) if letter == "?" else letter
        for letter in narrow
    )
    assert fnmatch.fnmatchcase(name, narrow)
    if name and covers(wide, narrow):
        assert matches(wide, name)
    assert covers(narrow, narrow)
    assert covers("*", narrow)


@given(pattern=PATTERNS, name=st.text("ab", min_size=1, max_size=8))
def test_a_pattern_covers_a_name_if_it_matches_it(pattern: str, name: str) -> None:
    """A name is a pattern without wildcards."""
    assert covers(pattern, name) is matches(pattern, name)


def test_pattern_coverage_is_fast_for_any_pattern() -> None:
    """Eighty stars against eighty letters take a moment."""
    assert not covers("*a" * 39 + "b", "a" * 80)
    assert not covers("*a" * 40, "*b" * 40)
