"""Conversion of bodies and results between Python values, bytes and JSON."""

import math
import re
from typing import Any, Final, TypeVar, overload

import msgspec

from tenantq.errors import Invalid
from tenantq.wire.json_bytes import bytes_of

T = TypeVar("T")

_MAYBE_NON_FINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")  # NaN and the infinities in MessagePack


def to_bytes(value: object, field: str = "body") -> bytes:
    """Return the bytes of a body: bytes unchanged, text as UTF-8, anything else as JSON.

    JSON can be anything that msgspec encodes (dict, list, numbers, dates, UUIDs, Structs, dataclasses) and, also inside these, any
    object with ``model_dump_json()``, such as a pydantic model. NaN and infinity are refused, because JSON cannot express them.
    """
    if isinstance(value, bytes):
        return bytes(value) if type(value) is not bytes else value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise Invalid(f"{field}: not valid Unicode (it contains a lone surrogate)") from error
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        data = _encode(value)
        non_finite = data.find(b"null") >= 0 and _has_non_finite(value)  # ``in`` takes three times as long
    except Exception as error:  # a value's own code may raise anything
        raise Invalid(f"{field}: cannot convert {type(value).__name__} to JSON ({error})") from error
    if non_finite:
        raise Invalid(f"{field}: JSON has no NaN or infinity. Use null or a string.")
    return data


def _dumped(value: object) -> msgspec.Raw:
    """Return the JSON of a model inside a body."""
    dump = getattr(value, "model_dump_json", None)
    if not callable(dump) or isinstance(value, type):
        raise TypeError(f"encoding objects of type {type(value).__name__} is unsupported")
    return msgspec.Raw(dump())


def _has_non_finite(value: object) -> bool:
    """Return whether ``value`` contains NaN or infinity, which were encoded as null."""
    packed = _pack(value)
    return _MAYBE_NON_FINITE.search(packed) is not None and _is_non_finite(msgspec.msgpack.decode(packed))


def _is_non_finite(plain: object) -> bool:
    if isinstance(plain, dict):
        return any(map(_is_non_finite, plain.values()))
    if isinstance(plain, list):
        return any(map(_is_non_finite, plain))
    return isinstance(plain, float) and not math.isfinite(plain)


_encode = msgspec.json.Encoder(enc_hook=_dumped).encode
_pack = msgspec.msgpack.Encoder(enc_hook=lambda _: None).encode  # models encode their own numbers


def from_wire(text: str | None, encoded: str | None) -> bytes | None:
    """Return the bytes of a text or base64 field of a reply; None: neither is set. Raises Invalid if it is not base64."""
    return None if text is None and encoded is None else bytes_of(text, encoded, "body")


def from_json(data: bytes, type: Any = Any) -> Any:
    """Return ``data`` decoded from JSON and validated against ``type``. Raises Invalid.

    ``type`` is any type that msgspec supports, or a class with ``model_validate_json()``, such as a pydantic model.
    """
    validate = getattr(type, "model_validate_json", None)
    try:
        if callable(validate):
            return validate(data)
        return msgspec.json.decode(data, type=type)
    except (ValueError, msgspec.MsgspecError) as error:
        raise Invalid(f"the body does not match the expected JSON type: {str(error)[:500]}") from error


class JsonContent:
    """Shows bytes as text or JSON. Subclasses return the bytes."""

    __slots__ = ()

    def _content(self) -> bytes:
        raise NotImplementedError

    @property
    def text(self) -> str:
        """The content as text. Raises UnicodeDecodeError if it is not UTF-8."""
        return self._content().decode()

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    @overload
    def json(self, type: Any) -> Any: ...
    def json(self, type: Any = Any) -> Any:
        """Return the content decoded from JSON, validated against ``type``. Raises Invalid if it does not match."""
        return from_json(self._content(), type)


class Unset:
    """The type of UNSET."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()
"""Marks a missing value, because None is a value."""
