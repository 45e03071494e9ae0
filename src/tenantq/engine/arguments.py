"""Checks of arguments that several operations share."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

from tenantq.domain import limits
from tenantq.domain.names import check_queue_name, check_tenant_name
from tenantq.domain.validation import check_field
from tenantq.errors import Invalid

Check = Callable[[Any], object]
"""Raises Invalid unless a value is valid."""


def check_of(field: str, kind: Any) -> Check | None:
    """Return what checks an argument of a type; None if the engine's caller has checked it.

    It follows from the type: a bool, one of several texts, a range of ``domain.limits``, or a type with its own check.
    """
    if kind is bool:
        return lambda value: check_bool(field, value)
    if get_origin(kind) is Literal:
        return lambda value: check_choice(field, value, get_args(kind))
    if get_origin(kind) is not Annotated:
        return None
    check = kind.__metadata__[0]
    return check if callable(check) else lambda value: check_field(field, value, kind)


def check_reason(reason: str) -> None:
    """Raise Invalid unless ``reason`` is empty or text that fits the journal."""
    if type(reason) is not str or reason:
        check_field("reason", reason, limits.Reason)


def check_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise Invalid unless ``value`` is one of several."""
    if value not in choices:
        raise Invalid(f"{field}: must be one of {', '.join(choices)}")


def check_bool(field: str, value: object) -> None:
    """Raise Invalid unless ``value`` is true or false."""
    if type(value) is not bool:
        raise Invalid(f"{field}: must be true or false, not {type(value).__name__}")


QueueArgument = Annotated[str, check_queue_name]
TenantArgument = Annotated[str, check_tenant_name]
ReasonArgument = Annotated[str, check_reason]
