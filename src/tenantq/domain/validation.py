"""Conversion between settings and plain mappings."""

from __future__ import annotations

from typing import Any

import msgspec


def all_fields(struct: msgspec.Struct) -> dict[str, Any]:
    """Return a struct as a mapping of all its fields, including those that have their default."""
    return {field: _value(getattr(struct, field)) for field in struct.__struct_fields__}


def _value(value: Any) -> Any:
    return all_fields(value) if isinstance(value, msgspec.Struct) else value
