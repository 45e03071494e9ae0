"""Attributes of messages: typed for clients of Amazon SQS, plain text for all others.

A value is stored under the name of its attribute, bytes in base64. Types other than String and attributes that only Amazon SQS
has are stored under names that start with ``AWS.``, which clients cannot use.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tenantq.sqs.failures import invalid
from tenantq.sqs.requests import AttributeValue
from tenantq.sqs.xml_text import ILLEGAL_TEXT, is_legal

ATTRIBUTES_MAX: Final = 10
NAME_CHARS_MAX: Final = 256
TYPE_CHARS_MAX: Final = 256
TYPES: Final = "AWS.Types"
TRACE_HEADER: Final = "AWSTraceHeader"
OWN: Final = "AWS."
_NAME: Final = re.compile(r"[\w-]+(?:\.[\w-]+)*", re.ASCII)
_TYPE: Final = re.compile(r"(String|Number|Binary)(?:\.[^\x00-\x1f]+)?")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_encode = msgspec.json.Encoder().encode
_decode_types = msgspec.json.Decoder(dict[str, str]).decode


class TypedValue(msgspec.Struct, frozen=True, gc=False):
    """A value and its type, as the client names it."""

    type: str
    value: str | bytes

    @property
    def size(self) -> int:
        """Bytes of type and value."""
        return len(self.type.encode()) + len(self.value if isinstance(self.value, bytes) else self.value.encode())

    def shown(self) -> dict[str, Any]:
        """Return the value as clients get it."""
        if isinstance(self.value, bytes):
            return {"BinaryValue": self.value, "DataType": self.type}
        return {"StringValue": self.value, "DataType": self.type}


def read_attributes(given: Mapping[str, AttributeValue] | None) -> dict[str, TypedValue]:
    """Return the attributes of a message to send. Raises SqsFailure if one is invalid."""
    if not given:
        return {}
    if len(given) > ATTRIBUTES_MAX:
        raise invalid(f"Number of message attributes [{len(given)}] exceeds the allowed maximum [{ATTRIBUTES_MAX}].")
    return {_checked_name(name): read_value(name, value) for name, value in given.items()}


def _checked_name(name: str) -> str:
    if not name:
        raise invalid("Message (user) attribute names must not be empty.")
    if len(name) > NAME_CHARS_MAX:
        raise invalid(f"Message (user) attribute names must be shorter than {NAME_CHARS_MAX} Bytes.")
    if name.lower().startswith(("aws.", "amazon.")):
        raise invalid(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved."
        )
    if _NAME.fullmatch(name) is None:
        raise invalid(
            "Can only include alphanumeric characters, hyphens, underscores, or periods. "
            "A name neither begins nor ends with a period, nor has two in a row."
        )
    return name


def read_value(name: str, given: AttributeValue) -> TypedValue:
    """Return a typed value. Raises SqsFailure if it is invalid."""
    kind = given.data_type
    if not kind:
        raise invalid(f"The message attribute '{name}' must contain a non-empty message attribute type.")
    if len(kind) > TYPE_CHARS_MAX or (found := _TYPE.fullmatch(kind)) is None:
        raise invalid(
            f"The message attribute '{name}' has an invalid message attribute type, the set of supported type prefixes is "
            "Binary, Number, and String."
        )
    value: str | bytes | None = given.binary_value if found[1] == "Binary" else given.string_value
    if not value:
        raise invalid(f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'.")
    if isinstance(value, str) and not is_legal(value):
        raise invalid(ILLEGAL_TEXT)
    if found[1] == "Number" and isinstance(value, str) and _NUMBER.fullmatch(value.strip()) is None:
        raise invalid(f"Can't cast the value of message attribute '{name}' to a number.")
    return TypedValue(kind, value)


def size_of(attributes: Mapping[str, TypedValue]) -> int:
    """Return how many bytes attributes count for in a message's size."""
    return sum(len(name.encode()) + value.size for name, value in attributes.items())


def body_digest(body: bytes) -> str:
    """Return the MD5 with which clients verify a body."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def attributes_digest(attributes: Mapping[str, TypedValue]) -> str:
    """Return the MD5 with which clients verify attributes: over lengths, names, types and values, in order of the names."""
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        for text in (name.encode(), value.type.encode()):
            digest.update(len(text).to_bytes(4) + text)
        raw = value.value if isinstance(value.value, bytes) else value.value.encode()
        digest.update((b"\x02" if isinstance(value.value, bytes) else b"\x01") + len(raw).to_bytes(4) + raw)
    return digest.hexdigest()


def stored(attributes: Mapping[str, TypedValue], own: Mapping[str, str]) -> dict[str, str]:
    """Return attributes as tenantq stores them, with the SQS-specific ones."""
    kept = {OWN + name: value for name, value in own.items()}
    types: dict[str, str] = {}
    for name, value in attributes.items():
        kept[name] = base64.b64encode(value.value).decode() if isinstance(value.value, bytes) else value.value
        if value.type != "String":
            types[name] = value.type
    if types:
        kept[TYPES] = _encode(types).decode()
    return kept


def typed(kept: Mapping[str, str]) -> dict[str, TypedValue]:
    """Return the attributes that clients see. One that was not added over Amazon SQS is a String."""
    if not kept:
        return {}
    types: dict[str, str] = {}
    if TYPES in kept:
        try:
            types = _decode_types(kept[TYPES])
        except msgspec.DecodeError:
            types = {}  # not written by this endpoint
    return {
        name: _typed(types.get(name, "String"), value)
        for name, value in kept.items()
        if not name.startswith(OWN) and value and is_legal(value)
    }


def _typed(kind: str, value: str) -> TypedValue:
    if kind.startswith("Binary"):
        try:
            return TypedValue(kind, base64.b64decode(value, validate=True))
        except (binascii.Error, ValueError):
            return TypedValue("String", value)
    return TypedValue(kind, value)


def chosen(attributes: dict[str, TypedValue], wanted: Iterable[str]) -> dict[str, TypedValue]:
    """Return the attributes that a receive asks for: by name, by prefix (``prefix.*``), or all."""
    found: dict[str, TypedValue] = {}
    for name in wanted:
        if name in {"All", ".*", "*"}:
            return attributes
        if name.endswith(".*"):
            found.update({one: value for one, value in attributes.items() if one.startswith(name[:-2])})
        elif name in attributes:
            found[name] = attributes[name]
    return found
