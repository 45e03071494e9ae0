"""Maps the server's problem documents to exceptions, by their stable code."""

from collections.abc import Mapping
from typing import Final

import msgspec

from tenantq import errors
from tenantq.errors import Limited, TenantqError
from tenantq.wire.base_types import Problem, WireError

_KINDS: Final = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TenantqError)]
BY_CODE: Final[dict[str, type[TenantqError]]] = {
    **{kind.code: kind for kind in reversed(_KINDS)},
    errors.RateLimited.code: errors.RateLimited,
}
"""The most general exception class of each code. More specific ones are internal to the server."""

_BY_STATUS: Final[dict[int, type[TenantqError]]] = {
    400: errors.Invalid,
    401: errors.Unauthenticated,
    403: errors.Forbidden,
    404: errors.NotFound,
    408: errors.Unavailable,
    409: errors.Conflict,
    413: errors.TooLarge,
    422: errors.Invalid,
    425: errors.Unavailable,
    429: errors.RateLimited,
    500: errors.TenantqError,
}
_decode_problem = msgspec.json.Decoder(Problem).decode


def from_item(error: WireError, *, tenant: str | None, queue: str | None, id: str | None = None) -> TenantqError:
    """Return the exception for one refused item of a batch."""
    kind = BY_CODE.get(error.code, TenantqError)
    return kind(error.detail, tenant=tenant, queue=queue, id=id)


def from_reply(status: int, headers: Mapping[str, str], body: bytes) -> TenantqError:
    """Return the exception for an error reply, also for one without our problem document."""
    try:
        problem = _decode_problem(body)
    except msgspec.MsgspecError:
        return _from_proxy(status, headers)
    kind = BY_CODE.get(problem.code) or _by_status(status)
    error = kind(problem.detail, tenant=problem.tenant, queue=problem.queue)
    after_ms = problem.retry_after_ms if problem.retry_after_ms is not None else _retry_after_ms(headers)
    if isinstance(error, Limited):
        error.limit, error.current = problem.limit or 0, problem.current or 0
    _set_retry_after(error, after_ms)
    if problem.request_id:
        error.add_note(f"request id: {problem.request_id}")
    return error


def _from_proxy(status: int, headers: Mapping[str, str]) -> TenantqError:
    """Return the exception for a reply that does not come from a tenantq server."""
    error = _by_status(status)(f"the reply (status {status}) is not from a tenantq server. Check the address.")
    _set_retry_after(error, _retry_after_ms(headers))
    return error


def _by_status(status: int) -> type[TenantqError]:
    return _BY_STATUS.get(status, errors.Unavailable if status >= 500 else errors.Invalid)


def _set_retry_after(error: TenantqError, after_ms: int | None) -> None:
    if after_ms is not None and isinstance(error, Limited | errors.Unavailable):
        error.retry_after_ms = after_ms


def _retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """Return the header in milliseconds. Dates, which this server never sends, are ignored."""
    text = headers.get("retry-after", "")
    return int(text) * 1_000 if text.isascii() and text.isdigit() and len(text) < 10 else None
