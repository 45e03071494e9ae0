"""Bodies: which values a caller may pass, and that the same bytes are delivered."""

from __future__ import annotations

import dataclasses
import datetime as dt

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.client.bodies import from_json, from_wire, to_bytes
from tenantq.client.outgoing_message import prepare_message, prepare_text
from tenantq.client.received import bounded_reason, reason_of
from tenantq.domain import limits
from tenantq.domain.message import NewMessage
from tenantq.errors import Invalid
from tenantq.wire.json_bytes import SHORT_BYTES, text_or_base64


class Mail(msgspec.Struct):
    to: str
    copies: int = 1


@dataclasses.dataclass
class Job:
    name: str
    done: bool = False


@dataclasses.dataclass
class Share:
    part: float


class Model:
    """An object with the interface of a pydantic model."""

    def __init__(self, to: str) -> None:
        self.to = to

    def model_dump_json(self) -> str:
        """Return it as JSON."""
        return msgspec.json.encode({"to": self.to}).decode()

    @classmethod
    def model_validate_json(cls, data: bytes) -> Model:
        """Return an instance from JSON; pydantic's ValidationError is a ValueError too."""
        raw = msgspec.json.decode(data)
        if not isinstance(raw, dict) or "to" not in raw:
            raise ValueError("to: field required")
        return cls(raw["to"])


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        ("grüß", "grüß".encode()),
        ({"a": [1, None, True]}, b'{"a":[1,null,true]}'),
        (7, b"7"),
        (None, b"null"),
        (Mail("x"), b'{"to":"x","copies":1}'),
        (Job("x"), b'{"name":"x","done":false}'),
        (Model("x"), b'{"to":"x"}'),
        ([Model("x"), {"mails": (Model("y"), None)}], b'[{"to":"x"},{"mails":[{"to":"y"},null]}]'),
        (
            {"of": Mail("x"), "null": 0xCB7FF800000000, "no": None},
            b'{"of":{"to":"x","copies":1},"null":57280123400880128,"no":null}',
        ),
        (dt.date(2024, 2, 29), b'"2024-02-29"'),
    ],
)
def test_a_body_is_bytes_text_or_json(given: object, sent: bytes) -> None:
    """Bytes as they are, text as UTF-8, anything else as JSON."""
    assert to_bytes(given) == sent


class UnserializableModel(Model):
    """A model with a value that cannot be serialized."""

    def model_dump_json(self) -> str:
        """Fail with an error of the model's own."""
        raise KeyError("unable to serialize unknown type")


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    "body", [NAN, {"a": [1.5, -INFINITY]}, [None, Share(INFINITY)], {"b": Share(NAN), "c": "null"}]
)
def test_nan_and_infinity_are_refused(body: object) -> None:
    """They would arrive as null without an error."""
    with pytest.raises(Invalid, match="NaN or infinity"):
        to_bytes(body)


@pytest.mark.parametrize(
    "body",
    [
        object(),
        {1, object()},
        "\ud800",
        {"a": object()},
        Model,
        [Model],
        UnserializableModel("x"),
        {"a": [UnserializableModel("x")]},
    ],
)
def test_an_unsupported_body_is_refused(body: object) -> None:
    """The error names the field, and no other exception escapes."""
    with pytest.raises(Invalid, match="body"):
        to_bytes(body)


@given(st.binary(max_size=200) | st.text(max_size=50).map(lambda text: text.encode("utf-8", "replace")))
def test_bodies_round_trip(body: bytes) -> None:
    """Text is sent as text, everything else as base64."""
    text, encoded = text_or_base64(body)
    assert (text is None) != (encoded is None)
    assert from_wire(text, encoded) == body


@given(st.integers(SHORT_BYTES + 1, 3 * SHORT_BYTES), st.floats(0, 1), st.booleans())
def test_an_encoded_body_is_little_larger_than_the_body(size: int, part: float, ascii: bool) -> None:  # noqa: FBT001
    """A control character takes six bytes in JSON, so a body with one eighth of them is sent as base64."""
    controls = int(size * part)
    body = b"\0" * controls + (b"x" if ascii else b"\xff") * (size - controls)
    text, encoded = text_or_base64(body)
    assert len(msgspec.json.encode(text if text is not None else encoded)) <= size * 13 // 8 + 8
    assert from_wire(text, encoded) == body
    short = prepare_text(body.decode("latin-1"), 0)
    assert (short is not None) is (text is not None)


@given(st.text(), st.integers(-1, len(limits.PRIORITIES)))
def test_the_fast_path_encodes_text_like_the_general_one(text: str, priority: int) -> None:
    """It leaves any other message to the general encoder."""
    short = prepare_text(text, priority)
    plain = text.isascii() and priority in limits.PRIORITIES
    assert (short is not None) is plain
    if plain:
        assert short == prepare_message(NewMessage(body=text.encode(), priority=priority))
    assert prepare_text("x" * (limits.BODY_BYTES_MAX + 1), 0) is None


def test_a_reply_without_a_body_has_none() -> None:
    """Invalid base64 in a reply is a typed error."""
    assert from_wire(None, None) is None
    with pytest.raises(Invalid):
        from_wire(None, "***")


def test_json_is_decoded_into_a_type() -> None:
    """Structs, dataclasses, plain types, and models that validate themselves."""
    assert from_json(b'{"to":"x"}', Mail) == Mail("x")
    assert from_json(b'{"name":"x"}', Job) == Job("x")
    assert from_json(b"[1,2]", list[int]) == [1, 2]
    assert from_json(b'{"to":"x"}', Model).to == "x"
    assert from_json(b'{"to":"x"}') == {"to": "x"}


@pytest.mark.parametrize(("data", "kind"), [(b"{", dict), (b'{"to":1}', Mail), (b"\xff", str), (b"{}", Model)])
def test_json_of_another_type_is_a_typed_error(data: bytes, kind: type) -> None:
    """It says what was expected."""
    with pytest.raises(Invalid, match="expected"):
        from_json(data, kind)


@given(st.text(max_size=3_000))
def test_a_reason_is_made_acceptable_to_the_server(text: str) -> None:
    """Short enough, without NUL or lone surrogates, and unchanged if it already is."""
    reason = bounded_reason(text)
    assert len(reason) <= limits.REASON_CHARS_MAX
    assert "\0" not in reason
    reason.encode()


def test_the_reason_of_an_exception_is_its_name_and_text() -> None:
    """Or only its name if there is no text."""

    class Textless(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert reason_of(ValueError("bad \ud800 input")) == "ValueError: bad ? input"
    assert reason_of(KeyError()) == "KeyError"
    assert reason_of(Textless()) == "Textless"
    assert bounded_reason("short") == "short"
    assert bounded_reason("x" * 5_000).endswith("…")
