"""Errors as the user of Spark reads them: Spark prints the trace of whatever a task or a plan raises, so ours is kept to the line that counts."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from tenantq.errors import TenantqError

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_R = TypeVar("_R")


def plainly(act: Callable[_P, _R]) -> Callable[_P, _R]:
    """Raise a typed error of ``act`` without the calls that it went through and the errors that it came of."""

    @functools.wraps(act)
    def told(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return act(*args, **kwargs)
        except TenantqError as error:
            raise error.with_traceback(None) from None

    return told
