"""The documentation of access says what the code does."""

from __future__ import annotations

from tenantq.domain.access import ACTIONS, MATRIX, ROLES
from tests.unit.gates.documented_matrix import DOCUMENT, DOCUMENTED, rows


def test_52_the_documented_matrix_is_the_one_in_the_code() -> None:
    """Every role, every action, every cell."""
    assert list(DOCUMENTED) == list(ROLES)
    assert [row[0] for row in rows("### Matrix")[1:]] == list(ACTIONS)
    assert {role: frozenset(actions) for role, actions in DOCUMENTED.items()} == MATRIX


def test_every_role_is_described() -> None:
    """In the table of roles."""
    for role in ROLES:
        assert f"| `{role}` | " in DOCUMENT
