"""Errors as callers see them, on every transport: a stable code, a text, and when to retry."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from tenantq.domain.message import AddResult
from tenantq.errors import Limited, StoreFailed, TenantqError, Unavailable
from tenantq.wire.base_types import Problem, WireError

DETAIL_CHARS_MAX: Final = 1_000
RETRY_AFTER_DEFAULT_MS: Final = 1_000
NAME_CHARS_MAX: Final = 80


def problem_of(error: TenantqError, request_id: str, title: str = "") -> Problem:
    """Return the problem of a refused call. Clients can rely on ``code`` and ``status``."""
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
    """Return the error of one refused item of a batch."""
    return WireError(code=error.code, detail=detail_of(error))


def detail_of(error: TenantqError) -> str:
    """Return the text for the caller. Errors of the store name files and devices, so only the log shows them."""
    if isinstance(error, StoreFailed):
        return f"{type(error)().message} See the server log."
    return error.message[:DETAIL_CHARS_MAX]


def _name(name: str | None) -> str | None:
    """Return a name, or None if it is too long to be one."""
    return name if name and len(name) <= NAME_CHARS_MAX else None


def forget_frames(error: BaseException | None) -> None:
    """Drop the frames of an error that is being answered.

    They hold the request's body, and often the error itself: a cycle that keeps the body until the next garbage collection.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def fault() -> TenantqError:
    """Return the problem of an internal error, without its details."""
    return TenantqError("internal server error; see the server log for this request ID")


def no_room() -> TenantqError:
    """Return the error while unfinished requests use all the memory they may."""
    return Unavailable("the server has too many unfinished requests. Retry later.")


def refusal_of_all(added: Sequence[AddResult]) -> TenantqError | None:
    """Return the common error of all messages of a batch, or None if some were added or the errors differ."""
    first = added[0].error if added else None
    if first is not None and all(
        one.error is not None and one.error.code == first.code and one.error.message == first.message for one in added
    ):
        return first
    return None
