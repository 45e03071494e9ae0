"""A limit on the items of a large JSON body, checked before the body is decoded.

A few kilobytes, once inflated, can hold millions of list items or keys. The decoder would create all of them in one turn of the
event loop. Items are separated by commas, so this module counts the commas outside strings, in slices.
"""

import re
from typing import Final

from tenantq.errors import Invalid
from tenantq.runtime.loop_slices import SLICE_BYTES, next_slice

_STRINGS_BYTES: Final = 16 << 10  # searched for strings at a time: thousands of them fit into that
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_WHOLE: Final = re.compile(rb'(?:[^"]*+"[^"\\]*+(?:\\.[^"\\]*+)*+")*+[^"]*+', re.DOTALL)
_INSIDE: Final = re.compile(rb"[^\"\\]*+(?:\\.[^\"\\]*+)*+", re.DOTALL)


async def check_item_count(body: bytes, items_max: int) -> None:
    """Raise Invalid if a JSON body has more than ``items_max`` list items and object members."""
    commas = 0
    for start in range(0, len(body), SLICE_BYTES):
        commas += body.count(b",", start, start + SLICE_BYTES)
        if commas > items_max:
            await _check_outside_strings(body, items_max)
            return
        await next_slice()


async def _check_outside_strings(body: bytes, items_max: int) -> None:
    at, inside, commas = 0, False, 0
    while at < len(body):
        end = at + (SLICE_BYTES if inside else _STRINGS_BYTES)
        found = (_INSIDE if inside else _WHOLE).match(body, at, end)
        assert found is not None  # both match nothing, too
        if not inside:
            commas += _STRINGS.sub(b"", found[0]).count(b",")
            if commas > items_max:
                raise Invalid(f"body: too many items (more than {items_max}). Send fewer at a time.")
            at, inside = found.end() + 1, found.end() < min(end, len(body))
            if not inside:
                at -= 1
        elif body[found.end() : found.end() + 1] == b'"' and found.end() < end:
            at, inside = found.end() + 1, False
        elif found.end() == at:
            return  # a string without an end, which the decoder reports
        else:
            at = found.end()
        await next_slice()
