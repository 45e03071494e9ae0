"""Settings of the gates that apply to the whole server."""

from typing import Annotated

import msgspec

from tenantq.domain.limits import DAY_MS
from tenantq.domain.validation import about, between
from tenantq.gates.signals import GateLimit, SignalSettings
from tenantq.service.request_log import RequestLogMode


class GateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much work the gates admit at one time, and what they journal."""

    server_requests: Annotated[GateLimit, about("Requests in flight on the server.")] = 10_000
    connection_requests: Annotated[GateLimit, about("Requests in flight on one Cap'n Proto connection.")] = 256
    waiting_per_tenant: Annotated[int, between(0, 1_000_000, "Requests of a tenant that may wait for a slot.")] = 1_000
    slot_wait_ms: Annotated[int, between(0, 600_000, "How long a request waits for a slot.")] = 5_000
    consumer_idle_ms: Annotated[int, between(1_000, DAY_MS, "Idle time after which a consumer is gone.")] = 60_000
    refusal_rows_per_second: Annotated[
        GateLimit, about("Refused calls of a tenant journaled one by one; the rest are counted in one row.")
    ] = 20
    view_window_ms: Annotated[
        int,
        between(
            1_000, DAY_MS, "Repeated reads of the same settings by one caller are journaled as one row this often."
        ),
    ] = 600_000
    anonymous_default: Annotated[bool, about("Callers without a credential may use the tenant `default`.")] = False
    request_log: Annotated[RequestLogMode, about("Log calls: none, those that failed, or all.")] = "off"
    request_log_per_second: Annotated[GateLimit, about("Most lines of the request log; more calls are sampled.")] = 100
    signals: SignalSettings = SignalSettings()
