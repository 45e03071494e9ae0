"""What providers make of an answer that says: not now."""

from __future__ import annotations

from tenantq.errors import KmsUnavailable


def not_now(provider: str, what: str, retry_after: object = None) -> KmsUnavailable:
    """Return the error for an outage or a throttled call; ``retry_after`` is the header of that name, in seconds."""
    error = KmsUnavailable(f"{provider}: it cannot answer now ({what}). Try again later.")
    text = str(retry_after)
    if text.isascii() and text.isdigit() and len(text) < 6:
        error.retry_after_ms = int(text) * 1_000
    return error


def not_reached(provider: str, error: Exception) -> KmsUnavailable:
    """Return the error for a connection that failed. The library's own text stays out: it may say too much."""
    return KmsUnavailable(f"{provider}: it was not reached ({type(error).__name__}). Try again later.")
