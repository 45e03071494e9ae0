"""A limit on the items of a batch, enforced while they are decoded.

A few kilobytes, once inflated, can hold millions of empty items. Creating objects for all of them would take gigabytes of
memory and block the event loop for seconds. So the decoder stops at the first item beyond the limit.
"""

import types
from functools import cache
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec

from tenantq.domain.limits import BATCH_MESSAGES_MAX

FEW_ITEMS_BYTES_MAX: Final = 3 * BATCH_MESSAGES_MAX
"""A body up to this size has at most as many items as a batch may have: each is at least ``{}`` and a comma or bracket."""


class _Decoding:
    """Items that may still be decoded of the current request. The event loop decodes one request at a time."""

    __slots__ = ("left",)
    left: int


_decoding: Final = _Decoding()


def begin_decoding() -> None:
    """Reset the count. Call this before a request is decoded."""
    _decoding.left = BATCH_MESSAGES_MAX


class _CountedItem:
    __slots__ = ()

    def __post_init__(self) -> None:
        _decoding.left -= 1
        if _decoding.left < 0:
            raise ValueError(f"too many items in one batch (allowed: 1 to {BATCH_MESSAGES_MAX})")


def with_counted_items(request: Any) -> Any:
    """Return a subtype of a request whose lists of structs are counted, or the type itself if it has none."""
    if not isinstance(request, type) or not issubclass(request, msgspec.Struct):
        return request
    changed = []
    for field in msgspec.structs.fields(request):
        counted = _counted(field.type)
        if counted != field.type:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            changed.append((field.name, counted) if field.required else (field.name, counted, default))
    return (
        msgspec.defstruct(request.__name__, changed, bases=(request,), frozen=True, kw_only=True)
        if changed
        else request
    )


def _counted(hint: Any) -> Any:
    """Return a type with the structs in its lists replaced by counted ones."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[_counted(arguments[0]), *hint.__metadata__]
    if origin in {Union, types.UnionType}:
        return Union[tuple(_counted(one) for one in arguments)]  # noqa: UP007  # of a tuple that is known only here
    if origin is list:
        return list[_counted_item(arguments[0])]  # type: ignore[misc]  # a type that is known only here
    return hint


@cache
def _counted_item(item: Any) -> Any:
    if get_origin(item) in {Union, types.UnionType}:
        return Union[tuple(_counted_item(one) for one in get_args(item))]  # noqa: UP007  # likewise
    if not isinstance(item, type) or not issubclass(item, msgspec.Struct):
        return item
    return msgspec.defstruct(item.__name__, [], bases=(_CountedItem, item), frozen=True, kw_only=True)
