"""The tenant of a token: one canonical claim and its aliases, which must agree."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tenantq.domain.names import check_tenant_name
from tenantq.errors import Forbidden, Invalid
from tests.unit.gates.credentials import claims, signed, signed_raw, verifier

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock

ALIASES = ("tenant", "tenant_id", "org")
FORBIDDEN = (
    "The token does not name exactly one tenant: its tenant claim is missing, malformed or contradicted by another. "
    "Get a token that names one."
)

BAD = [
    "",
    " ",
    "ACME",
    "Acme",
    "../x",
    "a/b",
    "x" * 64,
    "ab",
    "-abc",
    "abc-",
    "a_b",
    "acme\n",
    "acme\0",
    "\u0430cme",
    "\ufb01ne",
    "acme ",
]
NOT_TEXT = [None, 5, 1.5, True, ["acme"], {"name": "acme"}, []]


@pytest.mark.parametrize("value", [*BAD, *NOT_TEXT])
@pytest.mark.parametrize("alias", ALIASES)
async def test_40_a_malformed_tenant_claim_is_forbidden(
    clock: ManualClock, tmp_path: Path, alias: str, value: object
) -> None:
    """Alone and next to valid ones; the error text is constant and echoes nothing."""
    gate = verifier(clock, tmp_path, tenant_claims=ALIASES)
    for others in ({}, dict.fromkeys(ALIASES, "acme")):
        with pytest.raises(Forbidden) as caught:
            await gate.verify(signed(claims(clock, **{"tenant": ..., **others, alias: value})))
        assert caught.value.message == FORBIDDEN
        assert caught.value.tenant is None


async def test_40_conflicting_tenant_claims_are_forbidden(clock: ManualClock, tmp_path: Path) -> None:
    """No claim takes precedence."""
    gate = verifier(clock, tmp_path, tenant_claims=ALIASES)
    for alias in ALIASES:
        body = claims(clock, **{**dict.fromkeys(ALIASES, "acme"), alias: "globex"})
        with pytest.raises(Forbidden) as caught:
            await gate.verify(signed(body))
        assert caught.value.message == FORBIDDEN


async def test_40_a_missing_tenant_claim_is_forbidden(clock: ManualClock, tmp_path: Path) -> None:
    """There is no default tenant."""
    with pytest.raises(Forbidden) as caught:
        await verifier(clock, tmp_path, tenant_claims=ALIASES).verify(signed(claims(clock, tenant=..., Tenant="acme")))
    assert caught.value.message == FORBIDDEN


async def test_40_each_alias_alone_names_the_tenant(clock: ManualClock, tmp_path: Path) -> None:
    """Aliases that are not configured are ignored."""
    gate = verifier(clock, tmp_path, tenant_claims=ALIASES)
    for alias in ALIASES:
        token = await gate.verify(signed(claims(clock, **{"tenant": ..., "other": "globex", alias: "acme"})))
        assert token.principal.tenant == "acme"


@pytest.mark.parametrize("values", [("acme", "globex"), ("globex", "acme"), ("acme", "acme")])
@pytest.mark.parametrize("name", ["tenant", "sub", "role", "anything"])
async def test_40_a_duplicate_claim_is_forbidden(
    clock: ManualClock, tmp_path: Path, name: str, values: tuple[str, str]
) -> None:
    """Parsers differ on which of two equal JSON names applies."""
    rest = json.dumps(claims(clock, **{name: ...}))[1:-1]
    first, second = (f'"{name}": "{value}"' for value in values)
    spelled = f'"\\u{ord(name[0]):04x}{name[1:]}": "{values[1]}"'  # the same name, spelled with an escape
    for raw in (f"{{{first}, {rest}, {second}}}", f"{{{first}, {spelled}, {rest}}}"):
        with pytest.raises(Forbidden, match="malformed or duplicated"):
            await verifier(clock, tmp_path).verify(signed_raw(raw.encode()))


VALUES = (
    st.sampled_from(["acme", "globex", "acme", "acme", *BAD, *NOT_TEXT])
    | st.text(max_size=70)
    | st.from_regex(r"\A[a-z0-9-]{2,33}\Z")
    | st.lists(st.text(max_size=5), max_size=2)
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.dictionaries(st.sampled_from(ALIASES), VALUES),
    aliases=st.permutations(ALIASES),
    data=st.data(),
)
@example(values={"org": "acme", "tenant": "ACME"}, aliases=list(ALIASES), data=None)
async def test_40_the_order_of_aliases_is_irrelevant_and_nothing_is_echoed(
    clock: ManualClock, tmp_path: Path, values: dict[str, Any], aliases: list[str], data: st.DataObject | None
) -> None:
    """Valid and equal claims name that tenant; all others are forbidden with the one text."""
    expected = _tenant(list(values.values()))
    body = claims(clock, tenant=...)
    names = list(values) if data is None else data.draw(st.permutations(list(values)))
    body = {**{name: values[name] for name in names}, **body}
    gate = verifier(clock, tmp_path, tenant_claims=tuple(aliases))
    token = signed_raw(json.dumps(body).encode())
    if expected is None:
        with pytest.raises(Forbidden) as caught:
            await gate.verify(token)
        assert caught.value.message == FORBIDDEN
    else:
        assert (await gate.verify(token)).principal.tenant == expected


def _tenant(values: list[Any]) -> str | None:
    try:
        names = [check_tenant_name(value) for value in values]
    except Invalid:
        return None
    return names[0] if names and all(name == names[0] for name in names) else None


async def test_41_only_the_signed_claim_names_the_tenant(clock: ManualClock, tmp_path: Path) -> None:
    """Neither the token's header nor another claim nor the subject does."""
    body = claims(clock, sub="globex", tenant_id="globex", Tenant="globex", tenants=["globex"])
    token = await verifier(clock, tmp_path).verify(signed(body, tenant="globex", org="globex"))
    assert token.principal.tenant == "acme"
