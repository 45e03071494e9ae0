"""Rules between the fields of a struct, as JSON Schema states them.

A struct declares them in ``json_rules``, and OpenAPI shows them. They are written without ``oneOf``, because client
generators make a separate type of each of its options.
"""

from typing import Any

Schema = dict[str, Any]


def given(field: str, **more: Any) -> Schema:
    """Require a field that is not null."""
    return {"required": [field], "properties": {field: {"not": {"type": "null"}, **more}}}


def exactly_one(first: Schema, second: Schema) -> Schema:
    """Require one of two conditions, not both."""
    return {"if": first, "then": {"not": second}, "else": second}


def at_least_one(first: Schema, second: Schema) -> Schema:
    """Require one of two conditions, or both."""
    return {"if": {"not": first}, "then": second}
