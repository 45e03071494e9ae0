"""The documentation of access says what the code does."""

from __future__ import annotations

import pytest

from tenantq.domain.access import ACTIONS, MATRIX, ROLES
from tenantq.gates.certificate import CertificateGrant
from tenantq.gates.json_web_token import JwtSettings
from tests.unit.gates.documented_matrix import DOCUMENT, DOCUMENTED, rows


def test_52_the_documented_matrix_is_the_one_in_the_code() -> None:
    """Every role, every action, every cell."""
    assert list(DOCUMENTED) == list(ROLES)
    assert [row[0] for row in rows("## The matrix")[1:]] == list(ACTIONS)
    assert {role: frozenset(actions) for role, actions in DOCUMENTED.items()} == MATRIX


@pytest.mark.parametrize(
    ("kind", "heading"), [(JwtSettings, "### `JwtSettings`"), (CertificateGrant, "### `CertificateSettings`")]
)
def test_every_setting_of_the_gates_is_documented_with_its_default(kind: type, heading: str) -> None:
    """And nothing stands there that does not exist."""
    table = {row[0]: row[1] for row in rows(heading)[1:]}
    fields = kind.__struct_fields__  # type: ignore[attr-defined]  # of msgspec
    defaults = kind.__struct_defaults__  # type: ignore[attr-defined]  # the same
    shown = dict.fromkeys(fields, "required") | dict(zip(fields[-len(defaults) :], map(_shown, defaults), strict=True))
    assert table == shown


def _shown(default: object) -> str:
    if default is None:
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return ", ".join(default)
    return f"{default:,}" if isinstance(default, int) else str(default)


def test_every_role_is_described() -> None:
    """In the list of roles."""
    for role in ROLES:
        assert f"- `{role}`: " in DOCUMENT
