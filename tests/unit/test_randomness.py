"""Message IDs and receipts."""

import itertools
import random
import uuid

import pytest

from tenantq.engine.ops.settle import parse_receipt
from tenantq.errors import Invalid
from tenantq.runtime.randomness import MessageIds, id_bytes, id_text, system_randomness


class HighestRandom:
    """Randomness that always returns its maximum."""

    def getrandbits(self, k: int, /) -> int:
        """Return all ones."""
        return (1 << k) - 1

    def random(self) -> float:
        """Return almost one."""
        return 0.999


def test_ids_are_version_7_uuids() -> None:
    """They begin with the time, and any UUID library can read them."""
    (raw,) = MessageIds(random.Random(1)).take(1_700_000_000_123, 1)
    parsed = uuid.UUID(bytes=raw)
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert int.from_bytes(raw[:6]) == 1_700_000_000_123


@pytest.mark.parametrize("source", [random.Random(1), HighestRandom()], ids=["random", "highest"])
def test_ids_increase_regardless_of_the_clock(source: random.Random) -> None:
    """If it stands still, advances or goes back, also if the random part overflows."""
    ids = MessageIds(source)
    taken = [id for now in (1_000, 1_000, 1_001, 900, 5, 1_001, 2_000) for id in ids.take(now, 500)]
    assert all(a < b for a, b in itertools.pairwise(taken))
    assert all(uuid.UUID(bytes=id).version == 7 for id in taken)
    assert ids.last == taken[-1]


@pytest.mark.parametrize("now", [1, 1_000, 5_000])
def test_ids_increase_across_a_restart(now: int) -> None:
    """They start from the last ID, although the random state is lost and the clock may be behind."""
    first = MessageIds(random.Random(1))
    before = first.take(1_000, 10)
    after = MessageIds(random.Random(1), first.last).take(now, 10)
    assert before[-1] < after[0]
    assert after == sorted(after)


def test_generating_no_ids_changes_nothing() -> None:
    """The last ID stays the last."""
    ids = MessageIds(random.Random(1))
    (one,) = ids.take(5, 1)
    assert ids.take(9, 0) == []
    assert ids.last == one


def test_two_sources_generate_different_ids() -> None:
    """Both are seeded by the system."""
    a, b = (MessageIds(system_randomness()).take(1_000, 1_000) for _ in range(2))
    assert not set(a) & set(b)


def test_an_id_is_parsed_from_its_text() -> None:
    """With or without hyphens, in upper or lower case, or as bytes."""
    (raw,) = MessageIds(random.Random(1)).take(1_000, 1)
    text = id_text(raw)
    assert text == str(uuid.UUID(bytes=raw))
    for form in (text, text.upper(), raw.hex(), raw):
        assert id_bytes(form) == raw


@pytest.mark.parametrize("wrong", ["", "x", "0" * 31, "g" * 32, "0" * 33, "z" * 36, b"", bytes(15), bytes(17), None, 7])
def test_an_invalid_id_is_refused_with_an_example(wrong: object) -> None:
    """The reader sees what an ID looks like."""
    with pytest.raises(Invalid, match="such as 0192f0c1"):
        id_bytes(wrong)


def test_a_receipt_is_an_id_and_a_token() -> None:
    """In hexadecimal."""
    assert parse_receipt("ab" * 16 + "00" * 7 + "07") == (b"\xab" * 16, 7)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "0" * 48,
        "a" * 47,
        "a" * 49,
        "g" * 48,
        "ab " * 16,
        "a" * 32 + " " * 16,
        "é" * 48,
        "\u0661" * 48,
        None,
        5,
        b"a" * 48,
    ],
    ids=repr,
)
def test_a_malformed_receipt_is_none(wrong: object) -> None:
    """It comes from a caller, so it is never an exception."""
    assert parse_receipt(wrong) is None
