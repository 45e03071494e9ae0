"""The documentation of access matches the code."""

from __future__ import annotations

from tenantq.domain.access import ACTIONS, MATRIX, ROLES
from tests.unit.gates.documented_matrix import DOCUMENTED


def test_52_the_documented_matrix_matches_the_code() -> None:
    """Every role, every action, every cell."""
    assert sorted(DOCUMENTED) == sorted(ROLES)
    assert set().union(*DOCUMENTED.values()) == set(ACTIONS)
    assert {role: frozenset(actions) for role, actions in DOCUMENTED.items()} == MATRIX
