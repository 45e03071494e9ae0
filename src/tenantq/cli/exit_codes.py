"""Exit codes of the command line, documented in docs/reference/errors.md. Scripts rely on them."""

from typing import Final

from tenantq.errors import TenantqError

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
DENIED: Final = 4
LIMITED: Final = 5
UNAVAILABLE: Final = 6
CONFLICT: Final = 7
QUARANTINED: Final = 8  # the pipeline processed all good data and put the rest aside
SIGNAL: Final = 128  # plus the number of the signal that ended the command
INTERRUPTED: Final = SIGNAL + 2

_BY_STATUS: Final = {
    401: DENIED,
    403: DENIED,
    404: NOT_FOUND,
    409: CONFLICT,
    410: NOT_FOUND,
    421: CONFLICT,
    429: LIMITED,
    503: UNAVAILABLE,
}


def exit_code(error: TenantqError) -> int:
    """Return the exit code for an error. It depends on the HTTP status only."""
    if error.status in _BY_STATUS:
        return _BY_STATUS[error.status]
    return USAGE if 400 <= error.status < 500 else ERROR
