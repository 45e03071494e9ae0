"""Values that a credential may not be allowed to read: the value itself, or ``NOT_GRANTED``."""

from collections.abc import Awaitable
from typing import Final, TypeVar

import msgspec

from tenantq.errors import Forbidden

T = TypeVar("T")


class NotGranted(msgspec.Struct, frozen=True):
    """Replaces a value that the credential's role does not include."""


NOT_GRANTED: Final = NotGranted()
NOT_GRANTED_TEXT: Final = "not granted"


async def or_not_granted(call: Awaitable[T]) -> T | NotGranted:
    """Return what ``call`` returns, or ``NOT_GRANTED`` if the server forbids it. Other errors are raised."""
    try:
        return await call
    except Forbidden:
        return NOT_GRANTED


def known(value: T | NotGranted) -> T | None:
    """Return a value, or None if it is not granted."""
    return None if isinstance(value, NotGranted) else value
