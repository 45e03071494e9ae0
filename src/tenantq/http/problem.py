"""Errors as ``application/problem+json``, with a stable code and their headers."""

import inspect
from http import HTTPStatus

import msgspec

from tenantq.errors import Limited, RateLimited, TenantqError
from tenantq.http.reply import PROBLEM, Reply
from tenantq.service.problems import problem_of

_encode = msgspec.json.Encoder().encode


class HttpError(TenantqError):
    """A request that the HTTP transport refuses. It does not reach the service."""

    def __init__(self, status: int, code: str, message: str, *, headers: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers  # further header lines of the reply, each with its line end


def malformed(message: str) -> HttpError:
    """Return the error for malformed HTTP or JSON."""
    return HttpError(400, "invalid", message)


_titles: dict[type[TenantqError], str] = {}


def _title(kind: type[TenantqError], status: int) -> str:
    """Return the title of a kind of error: the first sentence of its docstring."""
    if kind is HttpError or kind is TenantqError:
        return HTTPStatus(status).phrase
    title = _titles.get(kind)
    if title is None:
        title = inspect.cleandoc(kind.__doc__ or "").split(". ")[0].split(":")[0].removesuffix(".")
        _titles[kind] = title
    return title


def problem_reply(error: TenantqError, request_id: str) -> Reply:
    """Return the reply for ``error``. Clients can rely on ``code`` and ``status``."""
    status = error.status
    problem = problem_of(error, request_id, _title(type(error), status))
    headers = b""
    if isinstance(error, Limited):
        # Of a quota, current is what is used; of a rate, what is left.
        left = error.current if isinstance(error, RateLimited) else max(0, error.limit - error.current)
        headers = b"X-RateLimit-Limit: %d\r\nX-RateLimit-Remaining: %d\r\n" % (error.limit, left)
    elif status == HTTPStatus.UNAUTHORIZED:
        headers = b"WWW-Authenticate: Bearer\r\n"
    elif type(error) is HttpError:
        headers = error.headers
    if problem.retry_after_ms is not None:
        headers += b"Retry-After: %d\r\n" % max(1, -(-problem.retry_after_ms // 1_000))
    return Reply(_encode(problem), status, PROBLEM, headers)
