"""Encrypted records decrypt only in the place they were encrypted for."""

from __future__ import annotations

import os
from typing import Any, get_args

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from tenantq.errors import DecryptionFailed, Invalid
from tenantq.vault.envelope import (
    DIGEST_BYTES,
    FORMAT,
    NONCE_BYTES,
    OVERHEAD_BYTES,
    DataKey,
    Field,
    TenantSecret,
    key_number,
)

KEY = bytes(range(32))
TENANTS = st.integers(0, 2**32 - 1)
NUMBERS = st.integers(1, 2**32 - 1)
QUEUES = st.from_regex(r"[A-Za-z0-9_-]{1,80}", fullmatch=True)
IDS = st.binary(min_size=16, max_size=16)
KINDS = st.sampled_from(get_args(Field))
PLACES = st.tuples(QUEUES, IDS, KINDS)
BODIES = st.binary(max_size=300)


def encrypt(key: DataKey, place: tuple[str, bytes, Field], plaintext: bytes) -> bytes:
    """Encrypt with a fresh nonce."""
    return key.encrypt(*place, plaintext, os.urandom(NONCE_BYTES))


@given(tenant=TENANTS, number=NUMBERS, place=PLACES, body=BODIES)
def test_a_record_decrypts_in_its_place(tenant: int, number: int, place: tuple[str, bytes, Field], body: bytes) -> None:
    """Also with another object of the same key. The record names the key's number and has a fixed overhead."""
    blob = encrypt(DataKey(tenant, number, KEY), place, body)
    assert DataKey(tenant, number, KEY).decrypt(*place, blob) == body
    assert key_number(blob) == number
    assert len(blob) == len(body) + OVERHEAD_BYTES == len(body) + 33


@given(place=PLACES, body=BODIES, data=st.data())
def test_any_changed_byte_is_detected(place: tuple[str, bytes, Field], body: bytes, data: st.DataObject) -> None:
    """In the header, the nonce, the ciphertext or the tag."""
    key = DataKey(7, 3, KEY)
    blob = bytearray(encrypt(key, place, body))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DecryptionFailed):
        key.decrypt(*place, bytes(blob))


@given(place=PLACES, body=BODIES, data=st.data())
def test_a_shorter_or_longer_record_does_not_decrypt(
    place: tuple[str, bytes, Field], body: bytes, data: st.DataObject
) -> None:
    """Truncated at any length, or with extra bytes."""
    key = DataKey(7, 3, KEY)
    blob = encrypt(key, place, body)
    for other in (blob[: data.draw(st.integers(0, len(blob) - 1))], blob + data.draw(st.binary(min_size=1))):
        with pytest.raises(DecryptionFailed):
            key.decrypt(*place, other)


@given(place=PLACES, other=PLACES, body=BODIES)
def test_56_a_record_moved_to_another_queue_message_or_kind_does_not_decrypt(
    place: tuple[str, bytes, Field], other: tuple[str, bytes, Field], body: bytes
) -> None:
    """Each difference alone is enough."""
    key = DataKey(7, 3, KEY)
    blob = encrypt(key, place, body)
    for part in range(3):
        moved: Any = (*place[:part], other[part], *place[part + 1 :])
        if moved != place:
            with pytest.raises(DecryptionFailed):
                key.decrypt(moved[0], moved[1], moved[2], blob)


@given(tenants=st.lists(TENANTS, min_size=2, max_size=2, unique=True), place=PLACES, body=BODIES)
def test_56_a_record_moved_to_another_tenant_does_not_decrypt_with_the_same_key(
    tenants: list[int], place: tuple[str, bytes, Field], body: bytes
) -> None:
    """The tenant itself is authenticated, not only implied by its keys."""
    one, two = (DataKey(tenant, 1, KEY) for tenant in tenants)
    with pytest.raises(DecryptionFailed):
        two.decrypt(*place, encrypt(one, place, body))


@given(place=PLACES, body=BODIES)
def test_a_record_does_not_decrypt_with_another_key_or_number(place: tuple[str, bytes, Field], body: bytes) -> None:
    """The number is authenticated too."""
    blob = encrypt(DataKey(7, 1, KEY), place, body)
    for key in (DataKey(7, 1, bytes(32)), DataKey(7, 2, KEY)):
        with pytest.raises(DecryptionFailed):
            key.decrypt(*place, blob)


@given(queues=st.lists(QUEUES, min_size=2, max_size=2, unique=True), id=IDS)
def test_every_place_has_distinct_authenticated_data(queues: list[str], id: bytes) -> None:
    """A queue name cannot extend into the ID, which must have exactly 16 bytes."""
    key = DataKey(7, 1, KEY)
    for wrong in (id + queues[0].encode(), id[:-1], b""):
        with pytest.raises(Invalid):
            key.encrypt(queues[1], wrong, "body", b"", os.urandom(NONCE_BYTES))
        with pytest.raises(Invalid):
            key.decrypt(queues[1], wrong, "body", b"x" * 50)


def test_an_unknown_kind_is_refused() -> None:
    """For encryption and decryption."""
    key = DataKey(7, 1, KEY)
    with pytest.raises(Invalid, match="body, attributes, result"):
        key.encrypt("q", bytes(16), "other", b"", os.urandom(NONCE_BYTES))  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(Invalid):
        key.decrypt("q", bytes(16), "other", b"")  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    "blob", [b"", b"\xe1", b"plain text that is long enough to be one", bytes(40), b"\xe2" + bytes(40)]
)
def test_invalid_records_have_no_key_number(blob: bytes) -> None:
    """Including records of an unknown version."""
    with pytest.raises(DecryptionFailed, match="version"):
        key_number(blob)


def test_the_format_of_a_record_is_fixed() -> None:
    """A record built by hand from the documentation decrypts, so today's records can be read later."""
    id, queue, nonce = bytes(range(16)), "orders.fifo", b"n" * 12
    head = bytes([FORMAT]) + (5).to_bytes(4)
    aad = head + (7).to_bytes(4) + b"r" + id + queue.encode()
    blob = head + nonce + AESGCM(KEY).encrypt(nonce, b"hello", aad)
    assert DataKey(7, 5, KEY).decrypt(queue, id, "result", blob) == b"hello"
    assert DataKey(7, 5, KEY).encrypt(queue, id, "result", b"hello", nonce) == blob


def test_a_decryption_error_names_only_the_place() -> None:
    """Queue and message are named; neither bytes nor key are shown."""
    key = DataKey(7, 1, KEY)
    blob = key.encrypt("orders", bytes(16), "body", b"very secret", os.urandom(NONCE_BYTES))
    with pytest.raises(DecryptionFailed) as caught:
        key.decrypt("invoices", bytes(16), "body", blob)
    assert (caught.value.queue, caught.value.id) == ("invoices", "00000000-0000-0000-0000-000000000000")
    assert caught.value.__cause__ is None
    assert "secret" not in repr(caught.value)
    assert KEY.hex() not in repr(key) + repr(vars(caught.value))


@given(body=BODIES, other=BODIES)
def test_digests_are_equal_for_equal_plaintext_of_one_tenant_only(body: bytes, other: bytes) -> None:
    """They differ for other bodies, tenants and secrets, and from the digest without a key."""
    secret = TenantSecret(7, 0, KEY)
    digest = secret.digest(body)
    assert len(digest) == DIGEST_BYTES
    assert TenantSecret(7, 0, KEY).digest(body) == digest
    assert (secret.digest(other) == digest) == (other == body)
    assert TenantSecret(8, 0, KEY).digest(body) != digest
    assert TenantSecret(7, 0, bytes(32)).digest(body) != digest
