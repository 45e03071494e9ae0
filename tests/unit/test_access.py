"""Actions, roles, grants and queue patterns."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantq.domain.access import ACTIONS, MATRIX, PATTERNS_MAX, ROLES, Grant, Principal, check_grant, matches
from tenantq.domain.limits import TIME_MS_MAX
from tenantq.errors import Invalid

# ---- roles ----


def test_the_matrix_has_every_role_and_only_known_actions() -> None:
    """The platform administrator has all actions."""
    assert set(MATRIX) == set(ROLES)
    assert MATRIX["platform-admin"] == set(ACTIONS)
    for allowed in MATRIX.values():
        assert allowed <= set(ACTIONS)


def test_a_viewer_and_an_auditor_never_read_bodies() -> None:
    """Although a viewer may browse messages."""
    assert "peek" in MATRIX["viewer"]
    for role in ("viewer", "auditor"):
        assert not MATRIX[role] & {"read_body", "add", "poll", "ack", "purge", "remove", "put_grant", "create_key"}


def test_only_administrators_manage_keys_and_grants() -> None:
    """No other role can extend its own rights."""
    for role in set(ROLES) - {"platform-admin", "tenant-admin"}:
        assert not MATRIX[role] & {"create_key", "revoke_key", "put_grant", "delete_grant", "revoke_token"}


# ---- grants ----


def test_a_grant_allows_its_role_and_its_actions_on_its_queues() -> None:
    """And nothing else."""
    grant = Grant(role="producer", actions=("peek",), queues=("in-*", "x"))
    assert grant.allows("add", "in-1", 0)
    assert grant.allows("peek", "x", 0)
    assert grant.allows("add", None, 0)
    assert not grant.allows("add", "out", 0)
    assert not grant.allows("poll", "in-1", 0)
    assert not grant.allows("nonsense", "in-1", 0)


def test_a_grant_expires_at_its_time() -> None:
    """From that millisecond on it allows nothing."""
    grant = Grant(role="producer", expires_at=100)
    assert grant.allows("add", "q", 99)
    assert not grant.allows("add", "q", 100)
    assert not Grant(role="producer", expires_at=0).allows("add", "q", 0)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_grant_of_a_role_allows_what_the_matrix_says(role: str, action: str) -> None:
    """Cell by cell."""
    assert Grant(role=role).allows(action, "q", 0) is (action in MATRIX[role])
    assert Grant(actions=(action,)).allows(action, "q", 0)


@pytest.mark.parametrize(
    "grant",
    [
        Grant(role="viewer"),
        Grant(actions=("add",)),
        Grant(role="viewer", actions=ACTIONS, queues=("a", "b-*", "c?.fifo")),
        Grant(role="viewer", queues=("x" * 80,) * PATTERNS_MAX, expires_at=TIME_MS_MAX),
    ],
)
def test_a_valid_grant_is_returned(grant: Grant) -> None:
    """Unchanged."""
    assert check_grant(grant) is grant


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "a grant requires one of them"),
        ({"role": "boss"}, "role: invalid value"),
        ({"role": ""}, "role: "),
        ({"role": "Viewer"}, "role: "),
        ({"actions": ("fly",)}, "actions.0.: invalid value"),
        ({"role": "viewer", "actions": ("add", "")}, "actions.1.: "),
        ({"role": "viewer", "queues": ()}, "queues: wrong length .0, allowed: 1 to 32"),
        ({"role": "viewer", "queues": ("q",) * 33}, "queues: wrong length .33, allowed: 1 to 32"),
        ({"role": "viewer", "queues": ("",)}, "queues.0.: "),
        ({"role": "viewer", "queues": ("x" * 81,)}, "queues.0.: "),
        ({"role": "viewer", "queues": ("a/b",)}, "queues.0.: "),
        ({"role": "viewer", "queues": ("[a]",)}, "queues.0.: "),
        ({"role": "viewer", "queues": ("a\n",)}, "queues.0.: "),
        ({"role": "viewer", "queues": ("é",)}, "queues.0.: "),
        ({"role": "viewer", "queues": (5,)}, "queues.0.: "),
        ({"role": "viewer", "expires_at": -1}, "expires_at: "),
        ({"role": "viewer", "expires_at": TIME_MS_MAX + 1}, "expires_at: "),
        ({"role": "viewer", "expires_at": True}, "expires_at: "),
        ({"role": "viewer", "expires_at": 1.5}, "expires_at: "),
    ],
)
def test_a_malformed_grant_is_refused(fields: dict[str, Any], text: str) -> None:
    """The error names the field."""
    with pytest.raises(Invalid, match=text):
        check_grant(Grant(**fields))


# ---- patterns ----


@pytest.mark.parametrize(
    ("pattern", "queue", "expected"),
    [
        ("*", "anything.fifo", True),
        ("orders", "orders", True),
        ("orders", "Orders", False),
        ("orders", "orders2", False),
        ("orders", "my-orders", False),
        ("orders-*", "orders-", True),
        ("orders-*", "orders", False),
        ("*-dlq", "orders-dlq", True),
        ("*-dlq", "orders-dlq2", False),
        ("?", "a", True),
        ("?", "ab", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("*.fifo", "a.fifo", True),
        ("a.b", "axb", False),
        ("**", "a", True),
        ("*a*b*", "xxaxxbxx", True),
        ("*a*b*", "xxbxxaxx", False),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, queue: str, *, expected: bool) -> None:
    """A star matches any characters, a question mark one, and every other character itself."""
    assert matches(pattern, queue) is expected


def _matches_naively(pattern: str, queue: str) -> bool:
    """Match by trying every prefix, column by column: slow and obviously right."""
    reached = {0}
    for letter in pattern:
        if letter == "*":
            reached = set(range(min(reached), len(queue) + 1)) if reached else set()
        else:
            reached = {at + 1 for at in reached if at < len(queue) and letter in {"?", queue[at]}}
    return len(queue) in reached


@settings(max_examples=500)
@given(
    pattern=st.text("ab-_.*?", min_size=1, max_size=12) | st.text("a*", min_size=1, max_size=80),
    queue=st.text("ab-_", min_size=1, max_size=12) | st.text("a", min_size=1, max_size=80),
)
def test_any_pattern_matches_like_a_naive_matcher(pattern: str, queue: str) -> None:
    """The naive matcher is too simple to be wrong."""
    assert matches(pattern, queue) is _matches_naively(pattern, queue)


@pytest.mark.parametrize(
    "pattern", ["*a" * 39 + "*b", "a*" * 39 + "b", "*" * 79 + "b", "?*" * 39 + "b", "*a?" * 26 + "b"]
)
def test_matching_never_takes_exponential_time(pattern: str) -> None:
    """A pattern that would take a backtracking matcher years is decided at once."""
    started = time.monotonic()
    assert not matches(pattern, "a" * 80)
    assert time.monotonic() - started < 2


# ---- principals ----


def test_a_platform_admin_belongs_to_no_tenant() -> None:
    """The role alone in a tenant is not enough, nor is the absence of a tenant."""
    role = (Grant(role="viewer"), Grant(role="platform-admin"))
    assert Principal("key:a", None, role).is_platform_admin
    assert not Principal("key:a", "acme", role).is_platform_admin
    assert not Principal("key:a", None, (Grant(role="tenant-admin"), Grant(actions=ACTIONS))).is_platform_admin
