"""The bounds of the HTTP transport: sizes in bytes, times in milliseconds."""

from __future__ import annotations

import msgspec

from tenantq.domain.message import check_int


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one listener takes from its clients, and how long it waits for them."""

    connections_max: int = 10_000  # open at a time; one more is answered 503 and closed
    pipeline_max: int = 16  # requests of one connection that may wait for their turn before reading stops
    request_target_bytes_max: int = 8 << 10  # path and query; beyond it 414
    headers_max: int = 100  # beyond it 431
    header_bytes_max: int = 32 << 10  # names and values together; beyond it 431
    body_bytes_max: int = 32 << 20  # as sent and as inflated; beyond it 413
    buffered_bytes_max: int = 256 << 20  # bodies of all connections together; beyond it 503
    head_timeout_ms: int = 10_000  # from the first byte of a request to the end of its headers
    body_timeout_ms: int = 30_000  # in which body_progress_bytes must arrive, or the body's end
    body_progress_bytes: int = 1_024
    idle_timeout_ms: int = 75_000  # between requests, and before the first one
    write_timeout_ms: int = 30_000  # in which a client must take something of what waits for it
    write_buffer_bytes: int = 256 << 10  # unsent bytes above which a connection's next request waits
    unsent_bytes_max: int = 512 << 20  # of all connections together; beyond it the one with most of it is cut
    linger_ms: int = 2_000  # how long a refused client may go on sending, so that it can read the refusal
    gzip_min_bytes: int = 1_024  # smaller replies are never compressed


_RANGES: dict[str, tuple[int, int]] = {
    "connections_max": (1, 1_000_000),
    "pipeline_max": (1, 10_000),
    "request_target_bytes_max": (256, 1 << 20),
    "headers_max": (8, 10_000),
    "header_bytes_max": (1_024, 16 << 20),
    "body_bytes_max": (1_024, 1 << 30),
    "buffered_bytes_max": (1_024, 1 << 40),
    "head_timeout_ms": (100, 3_600_000),
    "body_timeout_ms": (100, 3_600_000),
    "body_progress_bytes": (1, 1 << 30),
    "idle_timeout_ms": (100, 86_400_000),
    "write_timeout_ms": (100, 3_600_000),
    "write_buffer_bytes": (1_024, 1 << 30),
    "unsent_bytes_max": (1_024, 1 << 40),
    "linger_ms": (0, 60_000),
    "gzip_min_bytes": (64, 1 << 40),
}


def check_http(settings: HttpSettings) -> HttpSettings:
    """Return ``settings`` if each is in its range, else raise Invalid naming it."""
    for field, (low, high) in _RANGES.items():
        check_int(field, getattr(settings, field), low, high)
    return settings
