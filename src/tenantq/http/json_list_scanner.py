"""Finds the items of the lists in a large JSON body, in slices, without decoding them."""

import re
from array import array
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from tenantq.runtime.loop_slices import SLICE_BYTES

Path = tuple[str, ...]
"""The keys that lead to a list."""

_OPEN, _CLOSE, _QUOTE, _COMMA, _LIST, _LIST_END = b"[{", b"]}", ord('"'), ord(","), ord("["), ord("]")
_TOKEN_COST: Final = 128  # finding one takes as long as passing this many bytes
_BYTES_PER_COST: Final = 4

_TO_STRING: Final = re.compile(rb'[^"\[\]{}]*+')
_TO_COMMA: Final = re.compile(rb'(?:[^"\[\]{},]++|"[^"\\]{0,256}+")*+', re.DOTALL)
_TO_BRACKET: Final = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]{0,256}+")*+', re.DOTALL)
_ESCAPES: Final = re.compile(rb'(?:\\.[^"\\]*+)*+', re.DOTALL)


class JsonListScanner:
    """Where the items of some lists are in a body: the start of each, behind its comma or bracket, and the end of the last."""

    def __init__(self, body: bytes, paths: Collection[Path]) -> None:
        self._body = body
        self._paths = paths
        self._prefixes = {path[:size] for path in paths for size in range(1, len(path))}
        self.found: dict[Path, array[int]] = {}
        self.is_whole = False  # the end of the body's object was found

    def find(self) -> Iterator[None]:
        """Find the lists; yield after each slice of the work. It ends early if the body is not JSON.

        Then, and if a list comes twice, ``rest`` has what the decoder refuses.
        """
        body, end = self._body, len(self._body)
        keys: list[str] = []  # of the objects that lead to a list, outermost first
        bounds: array[int] | None = None  # of the list that is being read
        depth = at = cost = 0  # brackets that are open inside an item, or inside a value of no interest
        string, inside = (0, 0), False  # the last string at a key's place; whether ``at`` is inside a string
        while at < end:
            began = at
            if inside:
                at, inside = _pass_string(body, at)
                string = string[0], at
            else:
                pattern = _TO_BRACKET if depth else _TO_COMMA if bounds is not None else _TO_STRING
                at = pattern.match(body, at, min(end, at + SLICE_BYTES)).end()  # type: ignore[union-attr]  # it matches nothing, too
                token = body[at] if at < end else 0
                at += 1
                if token == _QUOTE:
                    string, inside = (at - 1, at), True
                elif token == _COMMA and bounds is not None and not depth:
                    bounds.append(at)
                elif token in _OPEN:
                    if depth or bounds is not None:
                        depth += 1
                    elif not keys:
                        if token == _LIST:
                            return
                        keys.append("")
                    else:
                        keys[-1] = self._key(*string)
                        path = tuple(keys)
                        if token == _LIST and path in self._paths and path not in self.found:
                            bounds = array("q", (at,))
                        elif token != _LIST and path in self._prefixes:
                            keys.append("")
                        else:
                            depth = 1
                elif token in _CLOSE:
                    if depth:
                        depth -= 1
                    elif bounds is not None:
                        if token != _LIST_END:
                            return
                        bounds.append(at)
                        self.found[tuple(keys)], bounds = bounds, None
                    else:
                        keys.pop()
                        if not keys:
                            self.is_whole = True
                            return
                else:
                    at -= 1  # the end of a slice, or of the body
            cost += _TOKEN_COST + (at - began) // _BYTES_PER_COST
            if cost >= SLICE_BYTES:
                cost = 0
                yield

    def _key(self, start: int, end: int) -> str:
        try:
            key = msgspec.json.decode(self._body[start:end])
        except ValueError:
            return ""
        return key if isinstance(key, str) else ""

    def rest(self) -> bytes:
        """Return the body with nothing in the lists that were found."""
        parts, at = list[memoryview](), 0
        view = memoryview(self._body)
        for bounds in self.found.values():
            parts.append(view[at : bounds[0]])
            at = bounds[-1] - 1
        return b"".join((*parts, view[at:]))


def _pass_string(body: bytes, at: int) -> tuple[int, bool]:
    """Return where to continue, at most a slice behind ``at``, and whether that is still inside the string."""
    stop = at + SLICE_BYTES
    quote = body.find(b'"', at, stop)
    escape = body.find(b"\\", at, quote if quote >= 0 else stop)
    if escape < 0:
        return (quote + 1, False) if quote >= 0 else (stop, True)
    passed = _ESCAPES.match(body, escape, escape + SLICE_BYTES)
    assert passed is not None  # it matches nothing, too
    return (passed.end() if passed.end() > escape else escape + 2), True
