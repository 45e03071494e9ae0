"""Settings of the HTTP transport: sizes in bytes, times in milliseconds."""

from typing import Annotated

from tenantq.domain.validation import about, between
from tenantq.runtime.listener_settings import BufferBytes, ListenerSettings, TimeoutMs


class HttpSettings(ListenerSettings, frozen=True, kw_only=True):
    """What one listener accepts from its clients, and how long it waits for them."""

    pipeline_max: Annotated[
        int, between(1, 10_000, "Waiting requests of a connection before reading from it stops.")
    ] = 16
    request_target_bytes_max: Annotated[int, between(256, 1 << 20, "Path and query; more gets 414.")] = 8 << 10
    headers_max: Annotated[int, between(8, 10_000, "Headers of a request; more gets 431.")] = 100
    header_bytes_max: Annotated[int, between(1_024, 16 << 20, "Names and values of all headers; more gets 431.")] = (
        32 << 10
    )
    body_bytes_max: Annotated[int, between(1_024, 1 << 30, "Body as sent and as inflated; more gets 413.")] = 32 << 20
    processed_bytes_max: Annotated[
        BufferBytes, about("Bodies above 64 KiB being processed, as inflated; further ones wait.")
    ] = 64 << 20
    head_timeout_ms: Annotated[TimeoutMs, about("From the first byte of a request to the end of its headers.")] = 10_000
    body_timeout_ms: Annotated[TimeoutMs, about("Time for body_progress_bytes or the end of the body.")] = 30_000
    body_progress_bytes: Annotated[int, between(1, 1 << 30, "Bytes that must arrive in body_timeout_ms.")] = 1_024
    idle_timeout_ms: Annotated[int, between(100, 86_400_000, "Between requests, and before the first one.")] = 75_000
    linger_ms: Annotated[int, between(0, 60_000, "How long a refused client may keep sending, to read the error.")] = (
        2_000
    )
    gzip_min_bytes: Annotated[int, between(64, 1 << 40, "Smaller replies are not compressed.")] = 1_024
