"""API keys: their format, creation and validity."""

from __future__ import annotations

import hashlib
import random
import re
from typing import TYPE_CHECKING

import pytest

from tenantq.domain.access import Grant
from tenantq.errors import Invalid, Unauthenticated
from tenantq.gates.api_key import check_token, find_key, key_principal, token_hash
from tenantq.gates.key_maker import KeyMaker
from tests.unit.gates.credentials import MemoryBook

if TYPE_CHECKING:
    from tenantq.runtime.clock import ManualClock


def test_a_key_consists_of_prefix_id_and_secret() -> None:
    """The ID is short, needs no escaping and has no underscore; the secret has 256 bits."""
    key = KeyMaker.temporary().new_key()
    assert re.fullmatch(r"tq_[a-z2-7]{16}_[a-z2-7]{52}", key.token)
    assert key.token.split("_") == ["tq", key.id, key.secret]
    assert key.token_hash == hashlib.sha256(key.token.encode()).digest() == token_hash(key.token)


def test_keys_use_the_injected_randomness() -> None:
    """Ten bytes for the ID, then the secret. Different bytes give different keys."""
    new_key = KeyMaker(bytes(32)).new_key
    asked: list[int] = []

    def random_bytes(count: int) -> bytes:
        asked.append(count)
        return bytes([len(asked)]) * count

    first, second = new_key(random_bytes), new_key(random_bytes)
    assert asked == [10, 10]
    assert first.id != second.id
    assert first.secret != second.secret
    assert new_key(random.Random(5).randbytes) == new_key(random.Random(5).randbytes)


def test_a_stored_key_names_its_principal(clock: ManualClock) -> None:
    """With its tenant, grant and expiry."""
    book = MemoryBook()
    grant = Grant(role="producer", queues=("orders",), expires_at=clock.wall_ms() + 5)
    made = book.put_key("acme", grant)
    key = find_key(book, made.token_hash, clock.wall_ms())
    assert key is not None
    principal = key_principal(key)
    assert principal.id == f"key:{made.id}"
    assert principal.tenant == "acme"
    assert principal.grants == (grant,)
    assert principal.expires_at == grant.expires_at


def test_revoked_and_expired_keys_are_refused_and_unknown_ones_not_found(clock: ManualClock) -> None:
    """To the millisecond, always with the same text."""
    book = MemoryBook()
    now = clock.wall_ms()
    ending = book.put_key("acme", Grant(role="producer", expires_at=now + 1))
    revoked = book.put_key("acme", Grant(role="producer"))
    book.revoke_key(revoked, now)
    assert find_key(book, ending.token_hash, now) is not None
    assert find_key(book, token_hash("tq_nobody_knows"), now) is None
    texts = set()
    for hash in (ending.token_hash, revoked.token_hash):
        with pytest.raises(Unauthenticated) as caught:
            find_key(book, hash, now + 1)
        texts.add(caught.value.message)
    assert texts == {Unauthenticated().message}


@pytest.mark.parametrize("token", ["x" * 16, "x" * 512, "a.token.with-dots-16", "!~tq_{}-of-some-kind"])
def test_a_chosen_token_may_be_any_16_to_512_characters(token: str) -> None:
    """Also if it looks like another kind of credential."""
    assert check_token(token) == token


@pytest.mark.parametrize(
    "token",
    [
        *(
            "",
            "x" * 15,
            "x" * 513,
            " " + "x" * 16,
            "x" * 16 + "\n",
            "x" * 16 + "\0",
            "x" * 15 + "\ud800",
            None,
            b"x" * 16,
        ),
        *("with spaces inside it", "sécret-sécret-sécret"),
    ],
)
def test_other_chosen_tokens_are_refused_without_echo(token: object) -> None:
    """The error says what is allowed, and does not show the token."""
    with pytest.raises(Invalid, match="token: ") as caught:
        check_token(token)
    assert "xxx" not in caught.value.message
