"""Hides tracebacks of tenantq's errors. Spark prints the full trace of an error in a task or plan."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tenantq.errors import TenantqError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def without_traceback(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Raise a TenantqError of ``function`` without its traceback and its cause."""

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except TenantqError as error:
            raise error.with_traceback(None) from None

    return wrapped
