"""Arguments and results between shards: how the values of a facet method's signature travel as msgpack.

The types come from the signature. Results are decoded by msgspec. Arguments are built without validation, because the facet
itself validates them, item by item, exactly as it does for a local call.
"""

from __future__ import annotations

import types
from collections import abc
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from tenantq.cluster.error_codec import decode_error, encode_error
from tenantq.errors import Invalid, TenantqError

Build = Callable[[Any], Any]
_ATOMS: Final = frozenset((Any, str, int, float, bool, bytes, object, types.NoneType, None))


def _encode_other(value: Any) -> Any:
    if isinstance(value, TenantqError):
        return encode_error(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be sent to another shard")


_pack: Final = msgspec.msgpack.Encoder(enc_hook=_encode_other).encode


def encode(value: Any) -> bytes:
    """Return a value as msgpack; raise Invalid for a number that does not fit."""
    try:
        return _pack(value)
    except OverflowError as error:
        raise Invalid("a number is out of range: at most 64 bits") from error


def result_decoder(hint: Any) -> Callable[[bytes], Any]:
    """Return what decodes results of a type."""
    return msgspec.msgpack.Decoder(hint, dec_hook=_decode_other).decode


def _decode_other(kind: type, value: Any) -> Any:
    if issubclass(kind, TenantqError):
        return decode_error(value)
    raise NotImplementedError(f"{kind.__name__} cannot come from another shard")


def argument_builder(hint: Any) -> Build | None:
    """Return what builds an argument of a type from plain values; None if the plain value is the argument."""
    origin = get_origin(hint)
    if hint in _ATOMS or origin is Literal:
        return None
    if origin is Annotated:
        return argument_builder(get_args(hint)[0])
    if origin in {Union, types.UnionType}:
        return _union_builder(get_args(hint))
    if origin in {list, abc.Sequence}:
        return _each(list, argument_builder(get_args(hint)[0]))
    if origin in {frozenset, set, tuple}:
        return _each(origin, argument_builder(get_args(hint)[0])) or origin
    if origin is dict:
        if argument_builder(get_args(hint)[1]) is not None:
            raise TypeError(f"{hint} cannot be sent to another shard")
        return None
    if isinstance(hint, type) and issubclass(hint, TenantqError):
        return decode_error
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _struct_builder(hint)
    raise TypeError(f"{hint} cannot be sent to another shard")


def _each(kind: Callable[[Any], Any], build: Build | None) -> Build | None:
    return None if build is None else lambda values: kind(map(build, values))


def _union_builder(options: tuple[Any, ...]) -> Build | None:
    """Return the builder of a union. At most one option is a struct (a map) and one an error (an array)."""
    built = {option: build for option in options if (build := argument_builder(option)) is not None}
    if not built:
        return None
    errors = [build for option, build in built.items() if build is decode_error]
    others = [build for option, build in built.items() if build is not decode_error]
    if len(errors) > 1 or len(others) > 1:
        raise TypeError(f"a union of {options} cannot be sent to another shard")
    if not errors:
        (build,) = others
        return lambda value: None if value is None else build(value)
    as_other = others[0] if others else None

    def build_either(value: Any) -> Any:
        if type(value) is list:
            return decode_error(value)
        return value if value is None or as_other is None else as_other(value)

    return build_either


def _struct_builder(kind: type[msgspec.Struct]) -> Build:
    fields = msgspec.structs.fields(kind)
    builders = [(field.name, build) for field in fields if (build := argument_builder(field.type)) is not None]
    if kind.__struct_config__.array_like:
        names = [field.name for field in fields]
        return lambda values: _built(kind, dict(zip(names, values, strict=False)), builders)
    renamed = {field.encode_name: field.name for field in fields if field.encode_name != field.name}
    if renamed:
        return lambda values: _built(kind, {renamed.get(key, key): one for key, one in values.items()}, builders)
    if builders:
        return lambda values: _built(kind, values, builders)
    return lambda values: kind(**values)


def _built(kind: type[msgspec.Struct], values: dict[str, Any], builders: list[tuple[str, Build]]) -> msgspec.Struct:
    for name, build in builders:
        if values.get(name) is not None:
            values[name] = build(values[name])
    return kind(**values)
