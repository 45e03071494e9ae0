"""Decodes the lists of a large request in slices, so that no turn of the event loop decodes all of it."""

from __future__ import annotations

import re
import types
from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

import msgspec

from tenantq.errors import TooLarge
from tenantq.http.duplicate_keys import check_keys
from tenantq.http.json_list_scanner import JsonListScanner, Path
from tenantq.runtime.loop_slices import SLICE_BYTES, SLICE_ITEMS, next_slice

REST_BYTES_MAX: Final = 1 << 20
"""For everything but the lists of a large request; decoded in one turn."""

_ITEM_BYTES_MAX: Final = 8 << 20  # more than the longest form of any item
_PLACE: Final = re.compile(r"`\$\[(\d+)\]")
_BLANK: Final = re.compile(rb"\s*+")


class _ListField(NamedTuple):
    kind: Any
    check_count: Callable[[bytes], Any]
    decode: Callable[[bytes], list[Any]]


class SlicedDecoder:
    """Decodes requests of one type. Finds the lists among the fields of the type and of its structs."""

    def __init__(self, request: Any) -> None:
        self._lists: dict[Path, _ListField] = {}
        self._structs: dict[Path, Any] = {(): request}
        if isinstance(request, type) and issubclass(request, msgspec.Struct):
            self._decode_rest = msgspec.json.Decoder(self._without_lists(request, ())).decode
        self.has_lists = bool(self._lists)

    def _without_lists(self, kind: Any, path: Path) -> Any:
        """Return a struct type in which lists may be anything. Its rules between fields are checked when ``kind`` is built."""
        fields: list[Any] = []
        for one in msgspec.structs.fields(kind):
            here, hint = (*path, one.name), one.type
            counted, item = _with_any_items(hint)
            if item is not None:
                decode = msgspec.json.Decoder(list[item]).decode  # type: ignore[valid-type]  # known only here
                self._lists[here] = _ListField(hint, msgspec.json.Decoder(counted).decode, decode)
                fields.append((one.name, Any) if one.required else (one.name, Any, msgspec.UNSET))
                continue
            if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
                before = len(self._lists)
                changed = self._without_lists(hint, here)
                if len(self._lists) > before:
                    self._structs[here] = hint
                    fields.append((one.name, changed) if one.required else (one.name, changed, msgspec.UNSET))
                    continue
            fields.append((one.name, hint) if one.required else (one.name, hint, _default_of(one)))
        return msgspec.defstruct(
            kind.__name__, fields, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
        )

    async def decode(self, body: bytes) -> Any:
        """Return the request in ``body``. Raises Invalid for duplicate keys, and what msgspec raises for other errors."""
        scanner = JsonListScanner(body, self._lists)
        for _ in scanner.find():
            await next_slice()
        rest = scanner.rest()
        if scanner.is_whole and len(rest) > REST_BYTES_MAX:
            raise TooLarge(f"body: too large outside its lists ({len(rest)} bytes, limit: {REST_BYTES_MAX})")
        decoded = self._decode_rest(rest)
        check_keys(rest, decoded)
        items = {path: await self._items(path, body, bounds) for path, bounds in scanner.found.items()}
        return self._build((), decoded, items)

    async def _items(self, path: Path, body: bytes, bounds: array[int]) -> list[Any]:
        name, field, view = ".".join(path), self._lists[path], memoryview(body)
        count = len(bounds) - 1
        if (
            count == 1
            and bounds[1] - bounds[0] <= _ITEM_BYTES_MAX
            and _BLANK.fullmatch(view[bounds[0] : bounds[1] - 1])
        ):
            count = 0
        try:
            field.check_count(b"[%b]" % b",".join([b"0"] * count))
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{error} - at `$.{name}`") from error
        items: list[Any] = []
        while (at := len(items)) < count:
            await next_slice()
            end = min(count, at + SLICE_ITEMS, max(at + 1, bisect_right(bounds, bounds[at] + SLICE_BYTES) - 1))
            if bounds[end] - bounds[at] > _ITEM_BYTES_MAX:
                raise TooLarge(f"{name}[{at}]: too large")
            text = b"".join((b"[", view[bounds[at] : bounds[end] - 1], b"]"))  # one copy, of a megabyte perhaps
            try:
                decoded = field.decode(text)
            except msgspec.ValidationError as error:
                raise msgspec.ValidationError(_in_whole_list(str(error), name, at)) from error
            if len(decoded) != end - at:
                raise msgspec.DecodeError("JSON is malformed: a list has an empty item")
            check_keys(text, decoded)
            items += decoded
        return items

    def _build(self, path: Path, rest: Any, items: dict[Path, list[Any]]) -> Any:
        """Return the struct at ``path`` with its lists."""
        values: dict[str, Any] = {}
        for name, value in msgspec.structs.asdict(rest).items():
            here = (*path, name)
            if value is msgspec.UNSET:
                continue
            if here in self._structs:
                value = self._build(here, value, items)  # noqa: PLW2901  # what it stands for
            elif here in items:
                value = items[here]  # noqa: PLW2901  # likewise
            elif here in self._lists:
                try:
                    msgspec.convert(value, self._lists[here].kind)
                except msgspec.ValidationError as error:
                    raise msgspec.ValidationError(f"{error} - at `$.{'.'.join(here)}`") from error
            values[name] = value
        try:
            return self._structs[path](**values)
        except ValueError as error:  # a rule between fields
            place = f" - at `$.{'.'.join(path)}`" if path else ""
            raise msgspec.ValidationError(f"{error}{place}") from error


def _in_whole_list(text: str, name: str, before: int) -> str:
    """Return an error about an item with the item's place in the request."""
    return _PLACE.sub(lambda found: f"`$.{name}[{before + int(found[1])}]", text, count=1)


def _with_any_items(hint: Any) -> tuple[Any, Any]:
    """Return a list type with any items, and the type of the items; None if it is not a list."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        changed, item = _with_any_items(arguments[0])
        return (Annotated[changed, *hint.__metadata__], item) if item is not None else (hint, None)
    if origin in {Union, types.UnionType}:
        each = [_with_any_items(one) for one in arguments]
        item = next((one for _, one in each if one is not None), None)
        return Union[tuple(one for one, _ in each)], item  # noqa: UP007  # of a tuple that is known only here
    return (list[Any], arguments[0]) if origin is list else (hint, None)


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return field.default
