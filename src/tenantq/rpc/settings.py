"""Settings of the Cap'n Proto transport: sizes in bytes, times in milliseconds."""

from typing import Annotated

from tenantq.domain.validation import about, between
from tenantq.runtime.listener_settings import ListenerSettings, TimeoutMs


class RpcSettings(ListenerSettings, frozen=True, kw_only=True):
    """What the listener accepts from its clients, and how long it waits for them."""

    calls_max: Annotated[int, between(1, 100_000, "Calls in flight on a connection before reading pauses.")] = 512
    sessions_max: Annotated[int, between(1, 10_000, "Sessions of a connection; one more login is refused.")] = 64
    strangers_messages_max: Annotated[int, between(4, 10_000, "Messages of a connection before its first login.")] = 64
    segments_max: Annotated[int, between(1, 511, "Segments of one message.")] = 64
    message_bytes_max: Annotated[int, between(1_024, 1 << 30, "One message; a larger one ends the connection.")] = (
        32 << 20
    )
    login_timeout_ms: Annotated[TimeoutMs, about("From the start of a connection to its first login.")] = 10_000
    idle_timeout_ms: Annotated[int, between(100, 86_400_000, "Time without a call before a connection closes.")] = (
        600_000
    )
    message_timeout_ms: Annotated[TimeoutMs, about("Time for message_progress_bytes or the whole message.")] = 30_000
    message_progress_bytes: Annotated[int, between(1, 1 << 30, "Bytes that must arrive in message_timeout_ms.")] = 1_024
