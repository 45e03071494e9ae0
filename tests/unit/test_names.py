"""Names of tenants and queues."""

import pytest

from tenantq.domain.names import check_queue_name, check_tenant_name, dead_letter_name
from tenantq.errors import Invalid


@pytest.mark.parametrize("name", ["abc", "a-b", "0a0", "default", "a" * 32, "a--b", "123"])
def test_a_tenant_name_is_3_to_32_lower_case_letters_digits_and_hyphens(name: str) -> None:
    """Valid names are returned unchanged."""
    assert check_tenant_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ab",
        "a" * 33,
        "-ab",
        "ab-",
        "Abc",
        "a_b",
        "a.b",
        "a/b",
        "../x",
        "abc\n",
        "äbc",
        "a b",
        "a\0b",
        None,
        3,
        b"abc",
    ],
)
def test_other_tenant_names_are_refused_without_echo(name: object) -> None:
    """The error says what is allowed, and does not show the name."""
    with pytest.raises(Invalid, match="tenant: ") as caught:
        check_tenant_name(name)
    assert "../x" not in caught.value.message


@pytest.mark.parametrize("name", ["a", "A", "_", "-", "x-y", "x_y", "0", "q" * 80, "a.fifo", "q" * 75 + ".fifo"])
def test_a_queue_name_is_1_to_80_characters_with_an_optional_fifo_suffix(name: str) -> None:
    """The suffix counts towards the 80."""
    assert check_queue_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "q" * 81,
        "q" * 76 + ".fifo",
        ".fifo",
        "a.fif",
        "a.fifo.fifo",
        "a.b",
        "a/b",
        "a\n",
        "a b",
        "ä",
        "a\0",
        None,
        1,
        b"a",
    ],
)
def test_other_queue_names_are_refused(name: object) -> None:
    """The error begins with the field's name."""
    with pytest.raises(Invalid, match="queue: "):
        check_queue_name(name)


@pytest.mark.parametrize(
    ("queue", "letters"),
    [
        ("work", "work-dlq"),
        ("work.fifo", "work-dlq.fifo"),
        ("q" * 76, "q" * 76 + "-dlq"),
    ],
)
def test_the_name_of_a_dead_letter_queue_is_the_queue_and_dlq(queue: str, letters: str) -> None:
    """The FIFO suffix is kept."""
    assert dead_letter_name(queue) == letters


@pytest.mark.parametrize("queue", ["q" * 80, "q" * 75 + ".fifo", "q" * 76 + "-dlq", "q" * 77, "q" * 76 + "abcd"])
def test_a_long_name_has_a_unique_dead_letter_queue(queue: str) -> None:
    """Its name is valid and differs from the queue and from every other queue's."""
    letters = dead_letter_name(queue)
    assert check_queue_name(letters) == letters
    assert letters != queue
    assert letters != dead_letter_name("q" * 76)
    assert letters.endswith(".fifo") == queue.endswith(".fifo")
