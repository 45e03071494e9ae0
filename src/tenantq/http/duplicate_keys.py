"""Duplicate keys of JSON objects. The decoder would silently keep the last one."""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tenantq.errors import Invalid
from tenantq.runtime.loop_slices import next_slice

_TOKENS: Final = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")\s*+:|"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}]', re.DOTALL)
_SLICE_TOKENS: Final = 2_000
_encode: Final = msgspec.json.Encoder().encode
_SPACES: Final = (b'" ', b'"\n', b'"\r', b'"\t')


def check_keys(body: bytes, decoded: Any) -> None:
    """Raise Invalid if an object in a valid JSON body has a key twice. ``decoded`` is the body as its request type.

    A body that equals ``decoded`` encoded again, as those of the SDK do, has nothing else in it. Otherwise colons are counted: the
    members of ``decoded`` that are not at their default were all in the body. If it encodes to as many colons as the body has, the
    decoder dropped nothing. That holds for almost every request, and costs less than a search.
    """
    try:
        encoded = _encode(decoded)
        if encoded == body:
            return
        colons = body.count(b":")
        if colons <= 1:
            return  # one member at most
        if b"\\u003" not in body and colons == encoded.count(b":"):  # \u003a would only be counted decoded
            return
        members = _members(msgspec.json.decode(body))
    except RecursionError:
        members = -1
    if colons == members:
        return
    if body.count(b'":') == members and not any(space in body for space in _SPACES):
        return
    for _ in _search(body):
        pass


async def check_keys_in_slices(body: bytes) -> None:
    """Raise Invalid as ``check_keys`` does, for a large body."""
    for _ in _search(body):
        await next_slice()


def _members(value: Any) -> int:
    """Return how many members the objects of a decoded value have."""
    if type(value) is dict:
        return len(value) + sum([_members(one) for one in value.values() if type(one) in {dict, list}])
    return sum([_members(one) for one in value if type(one) in {dict, list}]) if type(value) is list else 0


def _search(body: bytes) -> Iterator[None]:
    """Look at every key; yield after each slice of the work."""
    keys: set[bytes] = set()
    outer: list[set[bytes]] = []
    for count, token in enumerate(_TOKENS.finditer(body), 1):
        key = token[1]
        if key is not None:
            if b"\\" in key:
                key = msgspec.json.encode(msgspec.json.decode(key))
            if key in keys:
                raise Invalid(f"body: duplicate key {key.decode(errors='replace')}. Send each key of an object once.")
            keys.add(key)
        elif token[0] == b"{":
            outer.append(keys)
            keys = set()
        elif token[0] == b"}":
            keys = outer.pop()
        if count % _SLICE_TOKENS == 0:
            yield
