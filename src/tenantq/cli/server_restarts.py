"""Calls that wait while the server restarts."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tenantq.cli.output import said
from tenantq.errors import Unavailable

T = TypeVar("T")

TRY_AGAIN_S: Final = 1.0


def until_answered(call: Callable[[], T]) -> T:
    """Return what ``call`` returns. Retries while the server is unavailable."""
    while True:
        try:
            return call()
        except Unavailable as error:
            said(f"{error.message} Retrying.")
            time.sleep(TRY_AGAIN_S)
