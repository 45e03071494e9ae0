"""Configuration: errors name the field, value and range, and a refused change changes nothing."""

import msgspec
import pytest

from tenantq.domain import limits
from tenantq.domain.config import QueueConfig, SqsQueue, TenantConfig, change_config
from tenantq.domain.validation import explain
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


def test_every_queue_setting_is_covered_by_these_tests() -> None:
    """A new setting needs its range here."""
    assert {*RANGES, "dead_letter", "dead_on_poll", "limits", "tags", "sqs"} == set(QueueConfig.__struct_fields__)
    plain = {"plan", "weight", "create_queues", "regions"}
    assert set(TenantConfig.__struct_fields__) == {*plain, *GROUPS, "defaults"}


GROUPS = {
    "quotas": ("backlog", 5, -1),
    "limits": ("write", {"ops_per_sec": 5}, {"ops_per_sec": 0}),
    "concurrency": ("requests", 5, 0),
    "encryption": ("rotate_every_ms", 3_600_000, 5),
    "alerts": ("quota_percent", 90, 0),
}
"""For each group of settings: one of them, a value that it takes, and one that it refuses."""


@pytest.mark.parametrize("group", GROUPS)
def test_only_the_given_fields_of_a_group_change(group: str) -> None:
    """An error names the field with its group."""
    setting, good, bad = GROUPS[group]
    changed = change_config(TenantConfig(), {group: {setting: good}})
    untouched = [name for name in TenantConfig.__struct_fields__ if name != group]
    assert all(getattr(changed, name) == getattr(TenantConfig(), name) for name in untouched)
    again = change_config(changed, {group: {}})
    assert again == changed
    with pytest.raises(Invalid, match=rf"^{group}\.{setting}"):
        change_config(changed, {group: {setting: bad}})
    strange: list[object] = [{"no_such": 1}, [], "text", 5, None]
    for wrong in strange:
        with pytest.raises(Invalid, match=rf"^{group}"):
            change_config(changed, {group: wrong})


def test_null_removes_a_limit() -> None:
    """For quotas and rates."""
    limited = change_config(TenantConfig(), {"quotas": {"backlog": 5}, "limits": {"read": {"ops_per_sec": 9}}})
    free = change_config(limited, {"quotas": {"backlog": None}, "limits": {"read": {"ops_per_sec": None}}})
    assert free == TenantConfig()


@pytest.mark.parametrize("regions", [["eu"], ["eu-1", "us"], []])
def test_regions_are_names(regions: list[str]) -> None:
    """Their order is kept."""
    assert change_config(TenantConfig(), {"regions": regions}).regions == tuple(regions)


@pytest.mark.parametrize("regions", ["eu", ["EU"], [""], [1], ["a" * 33], ["-eu"], ["e"] * 33, None])
def test_invalid_regions_are_refused(regions: object) -> None:
    """The error names the field."""
    with pytest.raises(Invalid, match=r"^regions"):
        change_config(TenantConfig(), {"regions": regions})


def test_the_defaults_of_new_queues_are_checked_like_a_queue() -> None:
    """Except for the dead-letter queue, which cannot be the same for all queues."""
    assert change_config(TenantConfig(), {"defaults": {"lease_ms": 5}}).defaults == QueueConfig(lease_ms=5)
    strange: list[object] = [{"lease_ms": 0}, {"dead_letter": "d"}, {"sqs": {"wait_s": 21}}, {"no_such": 1}, 5]
    for wrong in strange:
        with pytest.raises(Invalid):
            change_config(TenantConfig(), {"defaults": wrong})


@pytest.mark.parametrize("field", RANGES)
def test_both_ends_of_a_range_are_accepted(field: str) -> None:
    """Only that field changes."""
    for value in RANGES[field]:
        changed = change_config(QueueConfig(), {field: value})
        assert getattr(changed, field) == value
        rest = [name for name in QueueConfig.__struct_fields__ if name != field]
        assert all(getattr(changed, name) == getattr(QueueConfig(), name) for name in rest)


@pytest.mark.parametrize("field", RANGES)
@pytest.mark.parametrize("kind", ["below", "above", True, 1.5, "1", float("nan")])
def test_an_error_names_field_value_and_range(field: str, kind: object) -> None:
    """For values just outside the range."""
    low, high = RANGES[field]
    value = low - 1 if kind == "below" else high + 1 if kind == "above" else kind
    with pytest.raises(Invalid) as caught:
        change_config(QueueConfig(), {field: value})
    problem = f"out of range ({value!r}, allowed: {low} to {high})"
    if type(value) is not int:
        word = {bool: "true or false", float: "a decimal number", str: "text"}[type(value)]
        problem = f"must be a whole number, not {word} ({value!r}, allowed: {low} to {high})"
    assert caught.value.message == f"{field}: {problem}"


def test_tags_are_bounded_and_replaced_as_a_whole() -> None:
    """Both ends of each limit are accepted, and values beyond are refused."""
    tags = {f"{number:0128}": "v" * 256 for number in range(50)}
    assert change_config(QueueConfig(tags={"old": ""}), {"tags": tags}).tags == tags
    wrong: list[object] = [
        None, [], "a", {"": "x"}, {"k" * 129: "x"}, {"k": "v" * 257}, {1: "x"}, {"k": 1}, {"k": "\ud800"},
        {str(number): "" for number in range(51)},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(Invalid, match=r"^tags"):
            change_config(QueueConfig(), {"tags": given})


def test_sqs_settings_of_a_queue_change_field_by_field() -> None:
    """Within their ranges; None removes all of them."""
    first = change_config(QueueConfig(), {"sqs": {"delay_s": 900, "policy": "{}"}})
    second = change_config(first, {"sqs": {"delay_s": 0, "deduplication_scope": "messageGroup"}})
    assert second.sqs == SqsQueue(policy="{}", deduplication_scope="messageGroup")
    assert change_config(second, {"sqs": None}) == QueueConfig()
    wrong: list[object] = [
        {"delay_s": 901}, {"wait_s": -1}, {"message_bytes_max": 1_023}, {"kms_reuse_s": 59}, {"no_such": 1}, [], 5,
        {"deduplication_scope": "all"}, {"policy": "x" * (33 << 10)}, {"visible_at_once": 1},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(Invalid, match=r"^sqs"):
            change_config(QueueConfig(), {"sqs": given})
    with pytest.raises(Invalid, match=r"^dead_on_poll"):
        change_config(QueueConfig(), {"dead_on_poll": 1})


def test_only_the_time_to_live_accepts_none() -> None:
    """None means forever there and is invalid elsewhere."""
    assert change_config(QueueConfig(ttl_ms=5), {"ttl_ms": None}).ttl_ms is None
    assert change_config(QueueConfig(dead_letter="x"), {"dead_letter": None}).dead_letter is None
    for field in set(RANGES) - {"ttl_ms"}:
        with pytest.raises(Invalid, match=field):
            change_config(QueueConfig(), {field: None})


def test_an_unknown_field_is_refused_and_the_known_ones_listed() -> None:
    """For tenants and queues; a long name is truncated."""
    with pytest.raises(Invalid, match="colour: unknown field \\(allowed: lease_ms, max_attempts"):
        change_config(QueueConfig(), {"colour": 1})
    with pytest.raises(Invalid, match="colour: unknown field \\(allowed: plan, weight, create_queues"):
        change_config(TenantConfig(), {"colour": 1})
    with pytest.raises(Invalid) as caught:
        change_config(QueueConfig(), {"x" * 1_000: 1})
    assert len(caught.value.message) < 400


def test_a_dead_letter_queue_needs_a_valid_queue_name() -> None:
    """Any other value is refused."""
    for wrong in ("", "a/b", 5):
        with pytest.raises(Invalid, match=r"^dead_letter: "):
            change_config(QueueConfig(), {"dead_letter": wrong})


@pytest.mark.parametrize("wrong", [0, limits.WEIGHT_MAX + 1, True, 1.0, None])
def test_a_weight_is_an_integer_in_range(wrong: object) -> None:
    """A weight of zero would starve the tenant."""
    with pytest.raises(Invalid, match=f"weight: .*allowed: 1 to {limits.WEIGHT_MAX}"):
        change_config(TenantConfig(), {"weight": wrong})


@pytest.mark.parametrize("wrong", [0, 1, None, "true"])
def test_a_boolean_setting_accepts_only_true_or_false(wrong: object) -> None:
    """Values that merely look like booleans are refused."""
    with pytest.raises(Invalid, match=r"create_queues: must be true or false, not "):
        change_config(TenantConfig(), {"create_queues": wrong})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"encryption": {"key": "main"}}, "encryption.key: invalid value (allowed: provider:key with provider local"),
        ({"defaults": {"tags": {"": "x"}}}, "defaults.tags: invalid name: wrong length (allowed: 1 to 128 characters)"),
        ({"limits": {"write": {"burst": 3}}}, "limits.write.burst: requires ops_per_sec"),
        ({"limits": {"write": {"speed": 3}}}, "limits.write.speed: unknown field (allowed: ops_per_sec"),
        ({"regions": ["eu", "EU"]}, "regions[1]: invalid value (allowed: 1 to 32 characters"),
    ],
)
def test_an_error_names_the_full_path_and_the_range(changes: dict[str, object], text: str) -> None:
    """Also inside optional settings, lists and mappings."""
    with pytest.raises(Invalid) as caught:
        change_config(TenantConfig(), changes)
    assert caught.value.message.startswith(text), caught.value.message


def test_an_unknown_field_where_none_is_allowed_says_so() -> None:
    """The list of allowed fields is never blank."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"reason": "x"}, _Nothing)
    assert explain(caught.value, _Nothing) == "reason: unknown field (allowed: none)"


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A body without fields."""
