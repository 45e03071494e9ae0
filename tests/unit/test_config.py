"""Configuration: ranges with field, value and bounds in the text; nothing unknown, nothing half changed."""

import pytest

from tenantq import limits
from tenantq.config import QueueConfig, TenantConfig, change_queue, change_tenant
from tenantq.errors import Invalid

RANGES = {
    "lease_ms": (1, limits.LEASE_MS_MAX),
    "max_attempts": (0, limits.ATTEMPTS_MAX),
    "ttl_ms": (1, limits.TTL_MS_MAX),
    "backoff_base_ms": (0, limits.DELAY_MS_MAX),
    "backoff_max_ms": (0, limits.DELAY_MS_MAX),
    "dedup_ms": (1, limits.TTL_MS_MAX),
    "result_ttl_ms": (1, limits.TTL_MS_MAX),
    "low_priority_every": (2, 1_000),
    "low_priority_after_ms": (0, limits.TTL_MS_MAX),
}


def test_every_field_of_a_queue_has_a_test_here() -> None:
    """A new setting wants its range."""
    assert {*RANGES, "dead_letter"} == set(QueueConfig.__struct_fields__)
    assert set(TenantConfig.__struct_fields__) == {"weight", "create_queues"}


@pytest.mark.parametrize("field", RANGES)
def test_both_ends_of_a_range_are_taken(field: str) -> None:
    """And only that field changes."""
    for value in RANGES[field]:
        changed = change_queue(QueueConfig(), {field: value})
        assert getattr(changed, field) == value
        rest = [name for name in QueueConfig.__struct_fields__ if name != field]
        assert all(getattr(changed, name) == getattr(QueueConfig(), name) for name in rest)


@pytest.mark.parametrize("field", RANGES)
@pytest.mark.parametrize("kind", ["below", "above", True, 1.5, "1", float("nan")])
def test_outside_a_range_the_error_names_field_value_and_range(field: str, kind: object) -> None:
    """So that the reader can mend it."""
    low, high = RANGES[field]
    value = low - 1 if kind == "below" else high + 1 if kind == "above" else kind
    with pytest.raises(Invalid) as caught:
        change_queue(QueueConfig(), {field: value})
    assert caught.value.message == f"{field}: {value!r} is not a whole number from {low} to {high}"


def test_only_a_lifetime_can_be_none() -> None:
    """None is "for ever" there and a mistake elsewhere."""
    assert change_queue(QueueConfig(ttl_ms=5), {"ttl_ms": None}).ttl_ms is None
    assert change_queue(QueueConfig(dead_letter="x"), {"dead_letter": None}).dead_letter is None
    for field in set(RANGES) - {"ttl_ms"}:
        with pytest.raises(Invalid, match=field):
            change_queue(QueueConfig(), {field: None})


def test_an_unknown_field_is_refused_and_the_known_ones_listed() -> None:
    """For tenants as for queues; a long name is cut."""
    with pytest.raises(Invalid, match="colour: no such setting; there are lease_ms, max_attempts"):
        change_queue(QueueConfig(), {"colour": 1})
    with pytest.raises(Invalid, match="colour: no such setting; there are weight, create_queues"):
        change_tenant(TenantConfig(), {"colour": 1})
    with pytest.raises(Invalid) as caught:
        change_queue(QueueConfig(), {"x" * 1_000: 1})
    assert len(caught.value.message) < 400


def test_a_dead_letter_queue_has_a_queues_name() -> None:
    """Nothing else can be a queue."""
    for wrong in ("", "a/b", 5):
        with pytest.raises(Invalid, match="queue"):
            change_queue(QueueConfig(), {"dead_letter": wrong})


@pytest.mark.parametrize("wrong", [0, limits.WEIGHT_MAX + 1, True, 1.0, None])
def test_a_weight_is_a_whole_number_in_range(wrong: object) -> None:
    """A weight of nothing would starve."""
    with pytest.raises(Invalid, match=f"weight: .* 1 to {limits.WEIGHT_MAX}"):
        change_tenant(TenantConfig(), {"weight": wrong})


@pytest.mark.parametrize("wrong", [0, 1, None, "true"])
def test_a_switch_is_true_or_false(wrong: object) -> None:
    """Nothing that merely looks like it."""
    with pytest.raises(Invalid, match=r"create_queues: .* is not true or false"):
        change_tenant(TenantConfig(), {"create_queues": wrong})
