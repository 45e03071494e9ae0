"""Settings that all listeners have."""

from typing import Annotated

from msgspec import Meta, Struct


def _about(description: str) -> Meta:
    return Meta(description=description)


TimeoutMs = Annotated[int, Meta(ge=100, le=3_600_000)]
BufferBytes = Annotated[int, Meta(ge=1_024, le=1 << 40)]
_Connections = Annotated[int, Meta(ge=1, le=1_000_000)]


class ListenerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every listener accepts from its clients: sizes in bytes, times in milliseconds."""

    connections_max: Annotated[_Connections, _about("Open connections; one more gets an error and is closed.")] = 10_000
    connections_per_address_max: (
        Annotated[_Connections, _about("Open connections of one address. Default: half of connections_max.")] | None
    ) = None
    connections_per_credential_max: (
        Annotated[_Connections, _about("Open connections of one credential. Default: half of connections_max.")] | None
    ) = None
    buffered_bytes_max: Annotated[BufferBytes, _about("Requests of all connections; more gets `unavailable`.")] = (
        256 << 20
    )
    write_timeout_ms: Annotated[TimeoutMs, _about("Time for a client to read some of the waiting reply.")] = 30_000
    write_buffer_bytes: Annotated[
        int, Meta(ge=1_024, le=1 << 30, description="Unsent bytes above which the connection's next request waits.")
    ] = 256 << 10
    unsent_bytes_max: Annotated[
        BufferBytes, _about("Unsent bytes of all connections; beyond it the one with the most is closed.")
    ] = 512 << 20
