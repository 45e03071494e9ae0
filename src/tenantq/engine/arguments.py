"""Checks of arguments that several operations share."""

from typing import get_args

from tenantq.domain import limits
from tenantq.domain.validation import check_field
from tenantq.engine.queue_state import SuspensionMode
from tenantq.errors import Invalid


def check_reason(reason: str) -> None:
    """Raise Invalid unless ``reason`` is empty or text that fits the journal."""
    if type(reason) is not str or reason:
        check_field("reason", reason, limits.Reason)


def check_mode(mode: object) -> None:
    """Raise Invalid unless ``mode`` is a mode of suspension."""
    if mode not in get_args(SuspensionMode):
        raise Invalid(f"mode: must be one of {', '.join(get_args(SuspensionMode))}")


def check_bool(field: str, value: object) -> None:
    """Raise Invalid unless ``value`` is true or false."""
    if type(value) is not bool:
        raise Invalid(f"{field}: must be true or false, not {type(value).__name__}")
