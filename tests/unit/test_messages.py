"""New messages: the type, range and text of every field."""

import math

import msgspec
import pytest

from tenantq.domain import limits
from tenantq.domain.message import NewMessage, Result, check_message, check_result
from tenantq.domain.validation import check_field
from tenantq.errors import Invalid, TenantqError, TooLarge

NAN, INFINITY = math.nan, math.inf


def with_field(field: str, value: object) -> NewMessage:
    """Return a message with one field set to any value."""
    return msgspec.structs.replace(NewMessage(body=b""), **{field: value})


NUMBERS = {
    "priority": (0, 9),
    "delay_ms": (0, limits.DELAY_MS_MAX),
    "ttl_ms": (1, limits.TTL_MS_MAX),
    "max_attempts": (0, limits.ATTEMPTS_MAX),
}


@pytest.mark.parametrize("field", NUMBERS)
def test_numbers_in_range_are_accepted(field: str) -> None:
    """Both ends are included."""
    low, high = NUMBERS[field]
    check_message(with_field(field, low))
    check_message(with_field(field, high))


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("wrong", [True, False, 1.0, NAN, INFINITY, "1", b"1", [1], -1, 1 << 70, "low", "high"])
def test_other_numbers_are_refused_with_field_value_and_range(field: str, wrong: object) -> None:
    """Including booleans and floats with integer values."""
    low, high = NUMBERS[field]
    value = {"low": low - 1, "high": high + 1}.get(wrong, wrong) if isinstance(wrong, str) else wrong
    with pytest.raises(Invalid, match=f"{field}: .*{low} to {high}") as caught:
        check_message(with_field(field, value))
    assert repr(value)[:40] in caught.value.message


@pytest.mark.parametrize("field", ["priority", "delay_ms"])
def test_none_is_refused_where_it_is_not_the_default(field: str) -> None:
    """None means the queue's value only where there is one."""
    with pytest.raises(Invalid, match=field):
        check_message(with_field(field, None))


@pytest.mark.parametrize("field", ["ttl_ms", "max_attempts", "key", "group"])
def test_none_means_the_queues_own_value(field: str) -> None:
    """Or no value at all."""
    check_message(with_field(field, None))


@pytest.mark.parametrize("wrong", [None, "text", bytearray(b"x"), memoryview(b"x"), 1, ["x"]])
def test_a_body_is_bytes(wrong: object) -> None:
    """Mutable buffers and text are refused."""
    with pytest.raises(Invalid, match="body"):
        check_message(with_field("body", wrong))


def test_a_body_may_be_empty_and_as_large_as_the_limit() -> None:
    """One byte more is too large."""
    check_message(NewMessage(body=b""))
    check_message(NewMessage(body=bytes(limits.BODY_BYTES_MAX)))
    with pytest.raises(TooLarge, match=str(limits.BODY_BYTES_MAX)):
        check_message(NewMessage(body=bytes(limits.BODY_BYTES_MAX + 1)))


TEXTS = {"key": limits.KEY_CHARS_MAX, "group": limits.GROUP_CHARS_MAX}


@pytest.mark.parametrize("field", TEXTS)
def test_texts_up_to_the_maximum_length_are_accepted(field: str) -> None:
    """Counted in characters, not bytes."""
    check_message(with_field(field, "é" * TEXTS[field]))


@pytest.mark.parametrize("field", TEXTS)
@pytest.mark.parametrize("wrong", ["", "long", "a\0b", "\ud800", "a\udfff", 1, True, b"x", ["x"]], ids=repr)
def test_other_texts_are_refused(field: str, wrong: object) -> None:
    """Empty, too long, with NUL or a lone surrogate, or not text."""
    value = "x" * (TEXTS[field] + 1) if wrong == "long" else wrong
    with pytest.raises(Invalid, match=field):
        check_message(with_field(field, value))


def test_attributes_within_their_limits_are_accepted() -> None:
    """At the maximum number and length."""
    check_message(with_field("attributes", {}))
    check_message(with_field("attributes", {f"{n:0256}": "" for n in range(limits.ATTRIBUTES_MAX)}))
    check_message(with_field("attributes", {"a": "x" * (limits.ATTRIBUTES_BYTES_MAX - 1)}))


@pytest.mark.parametrize(
    "wrong",
    [
        {"": "x"},
        {"a" * 257: "x"},
        {"a\0": "x"},
        {"\ud800": "x"},
        {"a": "\ud800"},
        {"a": 1},
        {"a": None},
        {"a": b"x"},
        {1: "x"},
        {f"{n}": "" for n in range(33)},
        {"a": "x" * limits.ATTRIBUTES_BYTES_MAX},
        [("a", "b")],
        "ab",
    ],
    ids=lambda value: repr(value)[:24],
)
def test_other_attributes_are_refused(wrong: object) -> None:
    """Names and values must be texts, few, and not too large together."""
    with pytest.raises((Invalid, TooLarge), match="attributes"):
        check_message(with_field("attributes", wrong))


@pytest.mark.parametrize("wrong", [None, [], "", 0, ()])
def test_empty_values_that_are_not_mappings_are_refused_as_attributes(wrong: object) -> None:
    """Stored with a group, they could not be read again."""
    with pytest.raises(Invalid, match="attributes"):
        check_message(with_field("attributes", wrong))


def test_attribute_names_and_values_are_counted_in_bytes() -> None:
    """The names are short in characters, and exceed the limit in bytes together with the values."""
    names = {("€" * 250) + f"{n:02}": "x" * 1_400 for n in range(32)}
    with pytest.raises(TooLarge, match="attributes"):
        check_message(with_field("attributes", names))


def test_subclasses_of_int_are_refused() -> None:
    """Only an int itself is accepted."""

    class Pretender(int):
        pass

    with pytest.raises(Invalid, match="n: "):
        check_field("n", Pretender(1), limits.Priority)


def test_a_huge_invalid_value_is_truncated_in_the_error() -> None:
    """The error stays readable."""
    with pytest.raises(Invalid) as caught:
        check_field("n", "x" * 10_000, limits.Priority)
    assert len(caught.value.message) < 120


def test_a_valid_text_is_returned() -> None:
    """Unchanged."""
    assert check_field("t", "ok", limits.GroupName) == "ok"


@pytest.mark.parametrize(
    "result", [Result("completed", b""), Result("failed", None, "why"), Result("failed", b"part", "why")]
)
def test_complete_results_are_accepted(result: Result) -> None:
    """A failed one may have a body."""
    check_result(result)


@pytest.mark.parametrize(
    "result", [Result("completed"), Result("failed"), Result("pending"), Result("failed", None, "\0")]
)
def test_incomplete_results_are_refused(result: Result) -> None:
    """The error names the result."""
    with pytest.raises(TenantqError, match="result"):
        check_result(result)
