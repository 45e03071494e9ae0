"""The bounds of the Cap'n Proto transport: sizes in bytes, times in milliseconds."""

from __future__ import annotations

import msgspec

from tenantq.domain.message import check_int


class RpcSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the listener takes from its clients, and how long it waits for them."""

    connections_max: int = 10_000  # open at a time; one more is told so and closed
    calls_max: int = 512  # of one connection under way before reading from it stops
    sessions_max: int = 64  # of one connection; one more login is refused
    strangers_messages_max: int = 64  # that a connection may send before its first login
    segments_max: int = 64  # that one message may have
    message_bytes_max: int = 32 << 20  # one message; beyond it the connection is told so and closed
    buffered_bytes_max: int = 256 << 20  # requests of all connections together; beyond it `unavailable`
    login_timeout_ms: int = 10_000  # from the connection's begin to its first login
    idle_timeout_ms: int = 600_000  # without a call, after which a connection is told so and closed
    message_timeout_ms: int = 30_000  # in which message_progress_bytes must arrive, or the message's end
    message_progress_bytes: int = 1_024
    write_timeout_ms: int = 30_000  # in which a client must take something of what waits for it
    write_buffer_bytes: int = 256 << 10  # unsent bytes above which a connection's next call waits
    unsent_bytes_max: int = 512 << 20  # of all connections together; beyond it the one with most of it is cut


_RANGES: dict[str, tuple[int, int]] = {
    "connections_max": (1, 1_000_000),
    "calls_max": (1, 100_000),
    "sessions_max": (1, 10_000),
    "strangers_messages_max": (4, 10_000),
    "segments_max": (1, 511),
    "message_bytes_max": (1_024, 1 << 30),
    "buffered_bytes_max": (1_024, 1 << 40),
    "login_timeout_ms": (100, 3_600_000),
    "idle_timeout_ms": (100, 86_400_000),
    "message_timeout_ms": (100, 3_600_000),
    "message_progress_bytes": (1, 1 << 30),
    "write_timeout_ms": (100, 3_600_000),
    "write_buffer_bytes": (1_024, 1 << 30),
    "unsent_bytes_max": (1_024, 1 << 40),
}


def check_rpc(settings: RpcSettings) -> RpcSettings:
    """Return ``settings`` if each is in its range, else raise Invalid naming it."""
    for field, (low, high) in _RANGES.items():
        check_int(f"rpc_listener.{field}", getattr(settings, field), low, high)
    return settings
