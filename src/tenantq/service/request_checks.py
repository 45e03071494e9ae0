"""Checks of request arguments that several facets share."""

from collections.abc import Iterable
from typing import Any

from tenantq.domain import limits
from tenantq.errors import Invalid


def check_settings(changes: object) -> dict[str, Any]:
    """Return ``changes``. Raises Invalid unless it is an object with text as names."""
    if not isinstance(changes, dict):
        raise Invalid(f"settings: must be an object, not {type(changes).__name__}")
    for name in changes:
        if type(name) is not str:
            raise Invalid(f"settings: names must be text, not {type(name).__name__}")
    return changes


def check_destroy(name: str, confirm: str, reason: str) -> None:
    """Raise Invalid unless ``confirm`` repeats the name and a meaningful reason is given."""
    if confirm != name:
        raise Invalid("confirm: must repeat the name of what is deleted")
    check_reason(reason)


def check_reason(reason: str) -> None:
    """Raise Invalid if the reason is too short."""
    if type(reason) is not str or len(reason.strip()) < limits.REASON_CHARS_MIN:
        raise Invalid(f"reason: too short (at least {limits.REASON_CHARS_MIN} characters)")


def page_of_names(names: Iterable[str], after: str | None, limit: int) -> list[str]:
    """Return the first ``limit`` names after ``after``, sorted."""
    if after is not None and type(after) is not str:
        raise Invalid(f"after: must be the last name of the previous page, not {type(after).__name__}")
    return sorted(name for name in names if after is None or name > after)[:limit]
