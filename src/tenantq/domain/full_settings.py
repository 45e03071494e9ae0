"""Settings in full: replies show every setting, also those that have their default."""

from __future__ import annotations

from typing import Any

import msgspec


def whole(struct: msgspec.Struct) -> dict[str, Any]:
    """Return a settings object as a mapping of all its fields."""
    return {field: _value(getattr(struct, field)) for field in struct.__struct_fields__}


def _value(value: Any) -> Any:
    return whole(value) if isinstance(value, msgspec.Struct) else value
