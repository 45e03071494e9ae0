"""The request that the running task serves. Log records get its fields."""

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol


class LoggedRequest(Protocol):
    """A request that log records can name."""

    def log_fields(self) -> Mapping[str, Any]:
        """Return its fields so far: tenant, queue, principal, request ID and trace ID."""


served_request: Final[ContextVar[LoggedRequest | None]] = ContextVar("tenantq_request", default=None)
"""Set by transports when a request begins, and by admission once it has identified the caller and the tenant."""

_OWN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def add_request_fields(record: logging.LogRecord) -> bool:
    """Add the fields of the current request to a log record, except those that it has. For a logging handler's filters."""
    request = served_request.get()
    if request is not None:
        for name, value in request.log_fields().items():
            if not hasattr(record, name):
                setattr(record, name, value)
    return True


def extra_fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the fields that were passed as ``extra``, or added by ``add_request_fields``."""
    return {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}
