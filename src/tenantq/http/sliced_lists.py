"""Decodes the lists of a large request in slices, so that no turn of the event loop decodes all of it."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec

from tenantq.http.duplicate_keys import check_keys, check_keys_in_slices
from tenantq.runtime.loop_slices import SlicedWork, next_slice

_PLACE: Final = re.compile(r"`\$\[(\d+)\]")
_SPACE_BYTES: Final = 6  # around the members of a request; a member that comes twice takes more
_TOGETHER: Final = 64
_TOGETHER_BYTES: Final = 64 << 10
_split: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


class SlicedLists:
    """The lists among the fields of a request type, and how their items are decoded."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._splitters: dict[str, Callable[[msgspec.Raw], list[msgspec.Raw] | None]] = {}
        self._decoders: dict[str, Callable[[bytes], list[Any]]] = {}
        fields: list[Any] = []
        if isinstance(request, type) and issubclass(request, msgspec.Struct):
            for one in msgspec.structs.fields(request):
                raw, item = _with_raw_items(one.type)
                kind = one.type
                if item is not None:
                    self._splitters[one.name] = msgspec.json.Decoder(raw).decode
                    self._decoders[one.name] = msgspec.json.Decoder(list[item]).decode  # type: ignore[valid-type]  # known only here
                    kind = Any  # only that it is there
                fields.append((one.name, kind) if one.required else (one.name, kind, _default_of(one)))
        if self._decoders:
            # Without rules between fields: they are checked when the whole request is built.
            rest = msgspec.defstruct(request.__name__, fields, frozen=True, kw_only=True, forbid_unknown_fields=True)
            self._decode_rest = msgspec.json.Decoder(rest).decode

    def __bool__(self) -> bool:
        return bool(self._decoders)

    async def decode(self, body: bytes | bytearray) -> Any:
        """Return the request in ``body``. Raises Invalid for duplicate keys, and what msgspec raises for other errors."""
        members = _split(body)
        await next_slice()
        lists = [name for name in self._decoders if name in members]
        rest = b",".join(b"%b:%b" % (_encode(name), b"0" if name in lists else raw) for name, raw in members.items())
        values = msgspec.structs.asdict(self._decode_rest(b"{%b}" % rest))
        accounted = len(rest) + sum(len(memoryview(members[name])) for name in lists)
        if len(body) - accounted > _SPACE_BYTES:  # perhaps members that the decoder dropped
            await check_keys_in_slices(body)
        for name in lists:
            try:
                raws = self._splitters[name](members[name])
            except msgspec.ValidationError as error:
                raise msgspec.ValidationError(f"{error} - at `$.{name}`") from error
            await next_slice()
            values[name] = raws if raws is None else await self._items(name, raws)
        try:
            return self._request(**values)
        except ValueError as error:  # a rule between fields
            raise msgspec.ValidationError(str(error)) from error

    async def _items(self, name: str, raws: list[msgspec.Raw]) -> list[Any]:
        decode, work = self._decoders[name], SlicedWork()
        items: list[Any] = []
        together: list[msgspec.Raw] = []
        size = 0
        for at, raw in enumerate(raws, 1):
            together.append(raw)
            size += len(memoryview(raw))
            if len(together) < _TOGETHER and size < _TOGETHER_BYTES and at < len(raws):
                continue
            text = b"[%b]" % b",".join(together)
            try:
                decoded = decode(text)
            except msgspec.ValidationError as error:
                raise msgspec.ValidationError(_in_whole_list(str(error), name, len(items))) from error
            check_keys(text, decoded)
            items += decoded
            if work.ends_slice(size):
                await next_slice()
            together, size = [], 0
        return items


def _in_whole_list(text: str, name: str, before: int) -> str:
    """Return an error about an item with the item's place in the request."""
    return _PLACE.sub(lambda found: f"`$.{name}[{before + int(found[1])}]", text, count=1)


def _with_raw_items(hint: Any) -> tuple[Any, Any]:
    """Return a list type with undecoded items, and the type of the items; None if it is no list."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        raw, item = _with_raw_items(arguments[0])
        return (Annotated[raw, *hint.__metadata__], item) if item is not None else (hint, None)
    if origin in {Union, types.UnionType}:
        changed = [_with_raw_items(one) for one in arguments]
        item = next((one for _, one in changed if one is not None), None)
        return Union[tuple(raw for raw, _ in changed)], item  # noqa: UP007  # of a tuple that is known only here
    return (list[msgspec.Raw], arguments[0]) if origin is list else (hint, None)


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return field.default
