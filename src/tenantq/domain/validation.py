"""Ranges stated in types, and the text of every validation error.

A type states its range once, as in ``Annotated[int, between(1, 60_000, "Sync interval.")]``. msgspec enforces the range
when it decodes or converts, OpenAPI shows it, and the reference documentation lists it. ``build`` and ``validated`` raise
Invalid with one form of text: ``field: problem (value, allowed range)``.
"""

import re
import reprlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from tenantq.errors import Invalid

_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)

_NO_TRAILING_NEWLINE: Final = r"$(?!\n)"  # a lone $ also matches before a final line feed
_TEXT: Final = "^[^\0\ud800-\udfff]*$"  # neither NUL nor lone surrogates, which UTF-8 cannot carry
_TEXT_IN_JSON_SCHEMA: Final = r"^[^\u0000]*$"
_UNKNOWN: Final = object()
_WORDS: Final = {
    "int": "a whole number", "float": "a decimal number", "str": "text", "bool": "true or false", "bytes": "bytes",
    **dict.fromkeys(("array", "list", "tuple", "vartuple"), "a list"),
    **dict.fromkeys(("object", "dict", "struct"), "an object"),
    **dict.fromkeys(("null", "NoneType"), "null"),
}  # fmt: skip
"""What types are called in errors: by their names in JSON, in msgspec and in Python."""
_OWN_WORDS_OF_MSGSPEC: Final = ("Expected ", "Invalid ", "Object ")
_FIELD: Final = re.compile(r"[a-z_]+(, [a-z_]+)*: ")
_PATH: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


# ---- ranges ----


def between(low: int, high: int, description: str | None = None) -> msgspec.Meta:
    """Return the range of a whole number."""
    return msgspec.Meta(ge=low, le=high, description=description)


def text(chars_max: int, description: str | None = None, *, chars_min: int = 1) -> msgspec.Meta:
    """Return the length of a text without NUL characters."""
    return msgspec.Meta(min_length=chars_min or None, max_length=chars_max, pattern=_TEXT, description=description)


def matching(regex: str, allowed: str, description: str | None = None) -> msgspec.Meta:
    """Return the pattern of a whole text. Errors show ``allowed``, the pattern in words."""
    pattern = f"^(?:{regex}){_NO_TRAILING_NEWLINE}"
    return msgspec.Meta(pattern=pattern, description=description, extra={"allowed": allowed})


def items(low: int, high: int, description: str | None = None) -> msgspec.Meta:
    """Return the length of a list or mapping."""
    return msgspec.Meta(min_length=low or None, max_length=high, description=description)


def about(description: str) -> msgspec.Meta:
    """Return the description of a field without a range."""
    return msgspec.Meta(description=description)


def documented(kind: Any) -> msgspec.Meta:
    """Return the range of ``kind`` for the documentation only: the service checks the value, item by item of a batch."""
    return msgspec.Meta(extra_json_schema=plain_schema(msgspec.json.schema(kind)))


def plain_schema(schema: Any) -> Any:
    """Return a JSON schema with patterns that are valid in every dialect of regular expressions."""
    if isinstance(schema, dict):
        return {name: _plain_pattern(one) if name == "pattern" else plain_schema(one) for name, one in schema.items()}
    return [plain_schema(one) for one in schema] if isinstance(schema, list) else schema


def _plain_pattern(pattern: Any) -> Any:
    if pattern == _TEXT:
        return _TEXT_IN_JSON_SCHEMA
    if not isinstance(pattern, str) or not pattern.endswith(_NO_TRAILING_NEWLINE):
        return plain_schema(pattern)  # a field that happens to be called ``pattern``
    inner = pattern.removeprefix("^(?:").removesuffix(f"){_NO_TRAILING_NEWLINE}")
    return f"^({inner})$" if "|" in inner else f"^{inner}$"


# ---- validation ----


def build(kind: type[_T], given: object, prefix: str = "") -> _T:
    """Return ``given``, plain data or a struct with the same fields, as a ``kind``. Raises Invalid naming the field, which starts with ``prefix``."""
    try:
        return msgspec.convert(given, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        raise Invalid(prefix + explain(error, kind, given)) from error
    except UnicodeEncodeError as error:  # msgspec does not say where
        raise Invalid(f"{prefix}text must not contain lone surrogates") from error


def validated(struct: _S, prefix: str = "") -> _S:
    """Return ``struct`` if each field fits its type. Raises Invalid otherwise.

    msgspec checks decoded values, but not the arguments of a constructor.
    """
    build(type(struct), all_fields(struct), prefix)
    return struct


def check_field(field: str, value: Any, kind: Any) -> Any:
    """Return ``value`` if it fits an annotated ``int`` or ``str``. Raises Invalid naming the field.

    It is written by hand because every message, poll and receipt passes here, and msgspec compiles the type on each call.
    """
    meta = kind.__metadata__[0]
    if kind.__origin__ is int:
        if type(value) is int and meta.ge <= value <= meta.le:
            return value
    elif type(value) is str and _has_length(value, meta) and (not meta.pattern or _compiled(meta.pattern)(value)):
        return value
    raise Invalid(f"{field}: {_problem(inspect.type_info(kind), value)}")


def _has_length(value: str, meta: msgspec.Meta | inspect.StrType) -> bool:
    return (meta.min_length or 0) <= len(value) and (meta.max_length is None or len(value) <= meta.max_length)


@cache
def _compiled(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(pattern).search


def all_fields(struct: msgspec.Struct) -> dict[str, Any]:
    """Return a struct as a mapping of all its fields, including those that have their default."""
    return {field: _plain(getattr(struct, field)) for field in struct.__struct_fields__}


def projected(kind: type[_S], source: object, **given: Any) -> _S:
    """Return a ``kind`` with the fields that ``source`` also has, and ``given`` in place of the others."""
    return kind(**{name: getattr(source, name) for name in kind.__struct_fields__ if hasattr(source, name)} | given)


def _plain(value: Any) -> Any:
    return all_fields(value) if isinstance(value, msgspec.Struct) else value


# ---- texts ----


def explain(error: msgspec.ValidationError, kind: Any, given: object = _UNKNOWN, root: str = "body") -> str:
    """Return the text of a validation error: ``field: problem (value, allowed range)``.

    ``root`` names the value as a whole.
    """
    problem, found, place = str(error).rpartition(" - at `")
    problem, place = (problem, place.removesuffix("`")) if found else (place, "")
    is_key = place.startswith("key` in `")
    path = place.removeprefix("key` in `").removeprefix("$")
    info, value = _find(inspect.type_info(kind), given, path)
    field = path.removeprefix(".")[:200]
    unknown = re.fullmatch("Object contains unknown field `(.*)`", problem, re.DOTALL)
    missing = re.fullmatch("Object missing required field `(.*)`", problem)
    if unknown is not None or missing is not None:
        name = (unknown or missing)[1]  # type: ignore[index]  # one of them was found
        known = ", ".join(one.encode_name for one in getattr(_unwrapped(info)[0], "fields", ()))
        problem = f"unknown field (allowed: {known or 'none'})" if unknown is not None else "required"
        return f"{field and f'{field}.'}{name[:80]}: {problem}"
    if not problem.startswith(_OWN_WORDS_OF_MSGSPEC):  # a rule between fields, which names the field itself
        return problem if not field else f"{field}{'.' if _FIELD.match(problem) else ': '}{problem}"
    if is_key:
        return f"{field or root}: invalid name: {_problem(getattr(_unwrapped(info)[0], 'key_type', None), _UNKNOWN, problem)}"
    return f"{field or root}: {_problem(info, value, problem)}"


def _find(info: Any, value: object, path: str) -> tuple[Any, object]:
    """Return type and value at a path; None and _UNKNOWN if they cannot be found."""
    for name, place in _PATH.findall(path):
        info, _ = _unwrapped(info)
        if name:
            fields = getattr(info, "fields", ())
            info = next((one.type for one in fields if one.encode_name == name), None)
            value = value.get(name, _UNKNOWN) if isinstance(value, dict) else _UNKNOWN
        else:
            info = getattr(info, "item_type", None) or getattr(info, "value_type", None)
            known = isinstance(value, list | tuple) and place.isdigit() and int(place) < len(value)
            value = value[int(place)] if known else _UNKNOWN  # type: ignore[index]  # a list, as just seen
    return info, value


def _unwrapped(info: Any) -> tuple[Any, str]:
    """Return a type without its metadata and without null, and its allowed values in words, if given."""
    allowed = ""
    while True:
        if isinstance(info, inspect.Metadata):
            allowed = (info.extra or {}).get("allowed", allowed)
            info = info.type
        elif isinstance(info, inspect.UnionType):
            others = [one for one in info.types if not isinstance(one, inspect.NoneType)]
            if len(others) != 1:
                return info, allowed
            info = others[0]
        else:
            return info, allowed


def _problem(info: Any, value: object, problem: str = "") -> str:
    """Return what is wrong with a value of this type; ``problem`` is the text of msgspec."""
    kind, allowed = _unwrapped(info)
    allowed = allowed or describe_range(kind)
    shows = value is not _UNKNOWN and not isinstance(kind, inspect.StrType)  # a text may be secret
    shown = f"{_shown(value)}, " if shows else ""
    if isinstance(kind, inspect.LiteralType):
        return f"invalid value ({shown}allowed: {allowed})"
    wanted, got = _expected(kind), _got(problem, value)
    if wanted and got and got != wanted:
        return f"must be {wanted}, not {got}" + (f" ({shown}allowed: {allowed})" if allowed else "")
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return f"out of range ({shown}allowed: {allowed})"
    if not problem.startswith("Expected ") and problem:
        return problem  # of a rule between fields, or of base64
    if isinstance(kind, inspect.StrType) and "length" not in problem:
        if kind.pattern != _TEXT:
            return f"invalid value (allowed: {allowed})"
        if type(value) is not str or _has_length(value, kind):
            return f"must not contain NUL characters or lone surrogates (allowed: {allowed})"
    size = f"{len(value)}, " if isinstance(value, str | list | tuple | dict) else ""
    return f"wrong length ({size}allowed: {allowed})"


def _expected(kind: Any) -> str:
    return _WORDS.get(type(kind).__name__.removesuffix("Type").lower(), "")


def _got(problem: str, value: object) -> str:
    """Return the type of a value in words."""
    named = re.search("got `(.*)`$", problem)
    if named is None and (problem or value is _UNKNOWN):
        return ""
    name = named[1] if named is not None else type(value).__name__
    return _WORDS.get(name, name)


def _shown(value: object) -> str:
    """Return a short text for any value, even if its ``repr`` fails."""
    try:
        return reprlib.repr(value)[:60]
    except ValueError:
        return f"this {type(value).__name__}"


def describe_range(info: Any) -> str:
    """Return the allowed values of a type in words, or nothing where every value of the type is allowed."""
    kind, allowed = _unwrapped(info)
    if allowed:
        return allowed
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return _interval(kind.ge, kind.le)
    if isinstance(kind, inspect.LiteralType):
        return ", ".join(repr(value) for value in kind.values)
    if isinstance(kind, inspect.StrType):
        return _interval(kind.min_length, kind.max_length, " characters")
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return _interval(kind.min_length, kind.max_length, " items")
    if isinstance(kind, inspect.DictType):
        return _interval(kind.min_length, kind.max_length, " entries")
    return ""


def _interval(low: float | None, high: float | None, unit: str = "") -> str:
    if high is None:
        return "" if low is None else f"{low} or more{unit}"
    return f"{low or 0} to {high}{unit}"


# ---- reference ----


class FieldReference(msgspec.Struct, frozen=True):
    """One row of the reference documentation of a struct."""

    name: str
    kind: str  # such as "whole number" or "list of text"
    unit: str  # "ms", "s", "bytes", "percent", or nothing
    allowed: str  # such as "1 to 1000", or nothing
    default: Any  # msgspec.NODEFAULT: the field is required
    description: str
    section: type[msgspec.Struct] | None = None  # the struct of a field that is a group of fields


def reference(kind: type[msgspec.Struct]) -> Iterator[FieldReference]:
    """Yield the fields of a settings or wire type for the reference documentation."""
    for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]  # a struct has fields
        inner, _ = _unwrapped(field.type)
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        yield FieldReference(
            name=field.encode_name,
            kind=_kind_in_words(inner),
            unit=_unit(field.encode_name) if isinstance(inner, inspect.IntType) else "",
            allowed=describe_range(field.type),
            default=default,
            description=_description(field.type),
            section=inner.cls if isinstance(inner, inspect.StructType) else None,
        )


def _kind_in_words(info: Any) -> str:
    info, _ = _unwrapped(info)
    if isinstance(info, inspect.ListType | inspect.VarTupleType):
        return f"list of {_kind_in_words(info.item_type)}"
    if isinstance(info, inspect.LiteralType):
        return "text" if isinstance(info.values[0], str) else "whole number"
    if isinstance(info, inspect.StructType | inspect.DictType):
        return "table"
    return _expected(info).removeprefix("a ")


def _unit(name: str) -> str:
    for ending, unit in (("_ms", "ms"), ("_s", "s"), ("_percent", "percent")):
        if name.endswith(ending):
            return unit
    return "bytes" if "bytes" in name.split("_") and not name.endswith("_sec") else ""


def _description(info: Any) -> str:
    if isinstance(info, inspect.Metadata):
        return (info.extra_json_schema or {}).get("description", "") or _description(info.type)
    if isinstance(info, inspect.UnionType):
        return next((text for one in info.types if (text := _description(one))), "")
    return ""
