"""Settings of the Cap'n Proto transport: sizes in bytes, times in milliseconds."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tenantq.domain.validation import about, between

_Bytes = Annotated[int, between(1_024, 1 << 40)]
_TimeoutMs = Annotated[int, between(100, 3_600_000)]


class RpcSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the listener accepts from its clients, and how long it waits for them."""

    connections_max: Annotated[
        int, between(1, 1_000_000, "Open connections; one more gets an error and is closed.")
    ] = 10_000
    connections_per_address_max: (
        Annotated[int, between(1, 1_000_000, "Open connections of one address; none: half of connections_max.")] | None
    ) = None
    connections_per_credential_max: (
        Annotated[int, between(1, 1_000_000, "Open connections of one credential; none: half of connections_max.")]
        | None
    ) = None
    calls_max: Annotated[int, between(1, 100_000, "Calls of a connection in flight before reading from it stops.")] = (
        512
    )
    sessions_max: Annotated[int, between(1, 10_000, "Sessions of a connection; one more login is refused.")] = 64
    strangers_messages_max: Annotated[int, between(4, 10_000, "Messages of a connection before its first login.")] = 64
    segments_max: Annotated[int, between(1, 511, "Segments of one message.")] = 64
    message_bytes_max: Annotated[int, between(1_024, 1 << 30, "One message; a larger one closes the connection.")] = (
        32 << 20
    )
    buffered_bytes_max: Annotated[_Bytes, about("Requests of all connections; more gets `unavailable`.")] = 256 << 20
    login_timeout_ms: Annotated[_TimeoutMs, about("From the start of a connection to its first login.")] = 10_000
    idle_timeout_ms: Annotated[int, between(100, 86_400_000, "Time without a call before a connection is closed.")] = (
        600_000
    )
    message_timeout_ms: Annotated[_TimeoutMs, about("Time for message_progress_bytes or the end of the message.")] = (
        30_000
    )
    message_progress_bytes: Annotated[int, between(1, 1 << 30, "Bytes that must arrive in message_timeout_ms.")] = 1_024
    write_timeout_ms: Annotated[_TimeoutMs, about("Time for a client to read some of the waiting reply.")] = 30_000
    write_buffer_bytes: Annotated[
        int, between(1_024, 1 << 30, "Unsent bytes above which the connection's next call waits.")
    ] = 256 << 10
    unsent_bytes_max: Annotated[
        _Bytes, about("Unsent bytes of all connections; beyond it the one with the most is closed.")
    ] = 512 << 20
