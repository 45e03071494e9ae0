"""What a caller is told of an error, on every transport: a stable code, a text, and when to come back."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from tenantq.domain.message import AddResult
from tenantq.errors import Limited, StoreFailed, TenantqError, Unavailable
from tenantq.wire.kinds import Problem, WireError

DETAIL_CHARS_MAX: Final = 1_000
RETRY_AFTER_DEFAULT_MS: Final = 1_000
NAME_CHARS_MAX: Final = 80


def problem_of(error: TenantqError, request_id: str, title: str = "") -> Problem:
    """Return what is told of a call that was refused; a client may rely on ``code`` and ``status``."""
    limit = current = retry_after_ms = None
    if isinstance(error, Limited):
        limit, current, retry_after_ms = error.limit, error.current, error.retry_after_ms
    elif error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        retry_after_ms = getattr(error, "retry_after_ms", 0) or RETRY_AFTER_DEFAULT_MS
    return Problem(
        type=f"urn:tenantq:error:{error.code}",
        title=title,
        status=error.status,
        detail=detail_of(error),
        code=error.code,
        request_id=request_id,
        tenant=_name(error.tenant),
        queue=_name(error.queue),
        limit=limit,
        current=current,
        retry_after_ms=retry_after_ms,
    )


def item_error(error: TenantqError) -> WireError:
    """Return what a batch says of one refused item."""
    return WireError(code=error.code, detail=detail_of(error))


def detail_of(error: TenantqError) -> str:
    """Return an error's text for whoever calls. What failed in the store is the operator's business: it names files and devices."""
    if isinstance(error, StoreFailed):
        return f"{type(error)().message} The server's log says more."
    return error.message[:DETAIL_CHARS_MAX]


def _name(name: str | None) -> str | None:
    """Return a name, if it can be one: what is longer was never anybody's."""
    return name if name and len(name) <= NAME_CHARS_MAX else None


def fault() -> TenantqError:
    """Return what is told of a mistake of the server's own: nothing of what is inside it."""
    return TenantqError("the server made a mistake; its log says which, under this request id")


def no_room() -> TenantqError:
    """Return what is told while the requests that are held take all the memory they may."""
    return Unavailable("the server holds as many unfinished requests as it may. Try again later.")


def refusal_of_all(added: Sequence[AddResult]) -> TenantqError | None:
    """Return the error for which all messages of a batch were refused; None: some were added, or the errors differ."""
    first = added[0].error if added else None
    if first is not None and all(
        one.error is not None and one.error.code == first.code and one.error.message == first.message for one in added
    ):
        return first
    return None
