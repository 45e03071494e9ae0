"""What came back from a server: a value, or that the credential may not have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from tenantq.domain.formatting import printable
from tenantq.errors import Forbidden, TenantqError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")


class NotGranted(msgspec.Struct, frozen=True):
    """The credential's role does not include this."""


NOT_GRANTED: Final = NotGranted()
NOT_GRANTED_TEXT: Final = "not granted"


async def granted(call: Awaitable[T]) -> T | NotGranted:
    """Return what ``call`` returns, or that it is not granted; any other error is raised."""
    try:
        return await call
    except Forbidden:
        return NOT_GRANTED


def known(answer: T | NotGranted) -> T | None:
    """Return a value, or None where it is not granted."""
    return None if isinstance(answer, NotGranted) else answer


def one_line(error: TenantqError) -> str:
    """Return an error as one line."""
    return printable(f"{' '.join(error.message.split())} [{error.code}]")


def is_out_of_reach(error: TenantqError) -> bool:
    """Tell whether the server was not reached, or takes no work: a matter of waiting."""
    return isinstance(error, Unavailable)
