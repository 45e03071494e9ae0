"""Settings of rate and concurrency limits: each invalid value raises a typed error that names it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.domain.config import TenantConfig, change_config
from tenantq.domain.rates import (
    BYTES_PER_SEC_MAX,
    CONCURRENCY_MAX,
    NO_LIMITS,
    OPS_PER_SEC_MAX,
    Concurrency,
    Limits,
    Rate,
)
from tenantq.domain.validation import build, validated
from tenantq.errors import Invalid


def test_by_default_there_is_no_rate_limit_and_moderate_concurrency() -> None:
    """A tenant without configuration has no rate limit."""
    assert validated(Limits()) == NO_LIMITS == Limits(write=Rate(), read=Rate())
    assert validated(Concurrency()) == Concurrency(requests=1_000, adds=256, polls=256)


def test_plain_mappings_become_limits() -> None:
    """The mappings are as decoded from JSON."""
    limits = build(Limits, {"write": {"ops_per_sec": 50, "burst": 100}, "read": {"bytes_per_sec": 1 << 20}})
    assert limits == Limits(write=Rate(ops_per_sec=50, burst=100), read=Rate(bytes_per_sec=1 << 20))
    assert build(Concurrency, {"adds": 7}) == Concurrency(adds=7)
    assert build(Limits, {"write": {"ops_per_sec": None}}) == NO_LIMITS


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"write": {"ops_per_sec": 0}}, f"limits.write.ops_per_sec: out of range (0, allowed: 1 to {OPS_PER_SEC_MAX})"),
        ({"read": {"bytes_per_sec": -1}}, f"limits.read.bytes_per_sec: out of range (-1, allowed: 1 to {BYTES_PER_SEC_MAX})"),
        ({"read": {"ops_per_sec": 1, "burst": 0}}, f"limits.read.burst: out of range (0, allowed: 1 to {OPS_PER_SEC_MAX})"),
        ({"write": {"burst": 5}}, "limits.write.burst: requires ops_per_sec"),
        ({"write": {"speed": 5}}, "limits.write.speed: unknown field (allowed: ops_per_sec, bytes_per_sec, burst)"),
        ({"delete": {}}, "limits.delete: unknown field (allowed: write, read)"),
        ({"write": 5}, "limits.write: must be an object, not a whole number"),
        (None, "limits: must be an object, not null"),
        ([], "limits: must be an object, not a list"),
    ],
)  # fmt: skip
def test_an_invalid_limit_is_named_with_value_and_range(limits: object, text: str) -> None:
    """The reader learns which setting to change."""
    with pytest.raises(Invalid) as raised:
        change_config(TenantConfig(), {"limits": limits})
    assert raised.value.message == text


def test_the_error_has_the_callers_name_for_the_field() -> None:
    """The limits of a queue inside a tenant's defaults have a longer name."""
    with pytest.raises(Invalid, match=r"^defaults\.limits\.write\.ops_per_sec: "):
        change_config(TenantConfig(), {"defaults": {"limits": {"write": {"ops_per_sec": "9"}}}})
    with pytest.raises(
        Invalid, match=rf"^tenant\.concurrency\.polls: out of range .0, allowed: 1 to {CONCURRENCY_MAX}"
    ):
        build(Concurrency, {"polls": 0}, "tenant.concurrency.")


_odd = st.one_of(
    st.floats(allow_nan=True),
    st.booleans(),
    st.text(max_size=5),
    st.integers(max_value=0),
    st.integers(min_value=BYTES_PER_SEC_MAX + 1),
    st.lists(st.integers(), max_size=2),
    st.just(10**5_000),
)


@given(field=st.sampled_from(["ops_per_sec", "bytes_per_sec"]), kind=st.sampled_from(["write", "read"]), value=_odd)
def test_anything_but_a_number_in_range_is_invalid(field: str, kind: str, value: object) -> None:
    """NaN, huge numbers, text and booleans are invalid, also inside a Rate."""
    for limits in ({kind: {field: value}}, Limits(**{kind: Rate(**{field: value})})):  # type: ignore[arg-type]  # that is the point
        with pytest.raises(Invalid, match=rf"^limits\.{kind}\.{field}: "):
            change_config(TenantConfig(), {"limits": limits})


@given(field=st.sampled_from(["requests", "adds", "polls"]), value=_odd | st.none())
def test_concurrency_limits_are_checked_too(field: str, value: object) -> None:
    """Each field must be a number."""
    with pytest.raises(Invalid, match=rf"concurrency\.{field}: "):
        change_config(TenantConfig(), {"concurrency": {field: value}})


def test_unknown_fields_are_refused_when_decoded() -> None:
    """The types refuse them, so code that decodes JSON directly is covered."""
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"write": {"opps": 1}}', type=Limits)
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"request": 1}', type=Concurrency)
