"""Conversions: bodies, queries, accepted encodings, settings."""

from __future__ import annotations

import base64
import gzip

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.domain.message import NewMessage
from tenantq.domain.validation import validated
from tenantq.errors import Invalid, RateLimited, TenantqError
from tenantq.http import HttpSettings
from tenantq.http.handlers import messages
from tenantq.http.handlers.audit import AuditParameters
from tenantq.http.inflate import AT_ONCE_BYTES, inflate
from tenantq.http.problem import problem_reply
from tenantq.http.query import parse_query
from tenantq.http.reply import accepts_gzip, compress
from tenantq.wire.json_bytes import base64_pieces, bytes_of, text_or_base64
from tenantq.wire.messages import WireMessage


@given(st.binary(max_size=300))
def test_bytes_round_trip_through_text_or_base64(data: bytes) -> None:
    """For any bytes."""
    assert bytes_of(*text_or_base64(data), "body") == data


@pytest.mark.parametrize("text", ["%", "YQ", "YQ=", "YQ===", "YQ==\n", " YQ==", "YQ==YQ==", "Y Q=", "_-==", "ä"])
def test_non_canonical_base64_is_refused(text: str) -> None:
    """Only the standard alphabet with padding is accepted."""
    with pytest.raises(Invalid, match="body_base64"):
        bytes_of(None, text, "body")


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (b"gzip", True), (b"GZIP", True), (b"br, gzip", True), (b"*", True), (b"gzip;q=1.0", True), (b"gzip; q=0.001", True),
        (b"*;q=0, gzip", True), (b"gzip;q=0", False), (b"gzip;q=0.000", False), (b"gzip;q=0, *", False), (b"br", False),
        (b"", False), (b"identity", False), (b"xgzip", False), (b"*;q=0", False),
    ],
)  # fmt: skip
def test_accept_encoding_is_parsed(header: bytes, wanted: bool) -> None:  # noqa: FBT001  # a column of the table
    """With its weights."""
    assert accepts_gzip(header) is wanted


def test_queries_are_decoded_into_typed_values() -> None:
    """Unescaped, with numbers as numbers and defaults for missing fields."""
    query = parse_query(b"action=add&principal=key%3Aa+b&start=5&limit=7&&result=DENIED", AuditParameters)
    assert query == AuditParameters(action="add", principal="key:a b", start=5, limit=7, result="DENIED")
    assert parse_query(b"", AuditParameters) == AuditParameters()
    assert parse_query(b"", None) is None


@pytest.mark.parametrize(
    "query",
    [
        b"start=",
        b"start=1.0",
        b"start=1e3",
        b"start=0x1",
        b"start=--1",
        b"start=\xd9\xa1",
        b"result=Denied",
        b"=1",
        b"x",
    ],
)
def test_invalid_queries_are_refused(query: bytes) -> None:
    """The error names the field if there is one."""
    with pytest.raises(TenantqError, match=r"start|result|unknown query parameter|UTF-8"):
        parse_query(query, AuditParameters)


async def test_decompression_is_bounded_in_every_step() -> None:
    """A callback gets the size of each step and can stop the decompression."""
    held: list[int] = []
    data = bytes(AT_ONCE_BYTES * 3 + 5)
    assert await inflate([gzip.compress(data)], len(data), 0, held.append) == data
    assert sum(held) == len(data)
    assert max(held) <= AT_ONCE_BYTES

    def refuse(size: int) -> None:
        raise RateLimited

    with pytest.raises(RateLimited):
        await inflate([gzip.compress(data)], len(data), 0, refuse)


def test_compressed_output_is_valid_gzip() -> None:
    """With the gzip framing that HTTP requires."""
    assert gzip.decompress(compress(b"abc" * 1_000)) == b"abc" * 1_000


def test_settings_have_ranges() -> None:
    """Each setting is checked, and the error names it."""
    assert validated(HttpSettings()) == HttpSettings()
    for field in HttpSettings.__struct_fields__:
        for wrong in (-1, 1 << 60, "1", 1.5, True):
            settings = msgspec.structs.replace(HttpSettings(), **{field: wrong})
            with pytest.raises(Invalid, match=field):
                validated(settings)


def test_a_problem_is_short_and_names_no_class() -> None:
    """For an error text of any length."""
    reply = problem_reply(Invalid("x" * 100_000), "id")
    assert len(reply.body) < 2_000
    assert b"Invalid" not in reply.body


@pytest.mark.parametrize("size", [196_607, 196_608, 196_609, 1 << 20])
def test_long_base64_is_decoded_in_pieces_to_the_same_bytes(size: int) -> None:
    """A megabyte in one piece would block the interpreter for milliseconds."""
    data = bytes(range(256)) * (size // 256 + 1)
    text = base64.b64encode(data[:size]).decode()
    pieces = list(base64_pieces(text, "body"))
    assert b"".join(pieces) == data[:size]
    assert max(map(len, pieces)) <= 196_608


@pytest.mark.parametrize("at", [4, 262_140, 262_144, 300_000])
@pytest.mark.parametrize("bad", ["QQ==", "QUI=", "A\n==", "é===", "----"])
def test_padding_and_other_characters_inside_long_base64_are_refused(at: int, bad: str) -> None:
    """Also at the boundary of two pieces."""
    text = "A" * at + bad + "A" * (400_000 - at)
    with pytest.raises(Invalid, match="body_base64: must be base64"):
        bytes_of(None, text, "body")


async def test_long_base64_bodies_of_a_batch_are_converted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop gets turns inside one message too, and an invalid message is replaced by its error."""
    pauses: list[int] = []

    async def pause() -> None:
        pauses.append(1)

    monkeypatch.setattr(messages, "next_slice", pause)
    body = bytes(1 << 20)
    good = WireMessage(body_base64=base64.b64encode(body).decode(), priority=3)
    first, second, third = await messages._large_batch([good, WireMessage(body_base64="-" * (1 << 20)), good])
    assert isinstance(second, Invalid)
    assert first == third == NewMessage(body=body, priority=3)
    assert len(pauses) >= 12
