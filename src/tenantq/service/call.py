"""The call context that transports create, and values that facets return."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tenantq.domain.config import QueueConfig, TenantConfig
from tenantq.domain.message import Caller, QueueStats
from tenantq.domain.validation import projected
from tenantq.engine.queue_state import TenantState
from tenantq.engine.restrictions import Hold, Suspension
from tenantq.wire.tenants import TenantFigures


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The context of one request, created by a transport."""

    bearer: str | None = None  # an API key or JSON web token
    certificate: dict[str, Any] | None = None  # of the peer, verified by the listener, as the ssl module gives it
    remote: str = ""  # address of the client, without the port
    request_id: str = ""
    user_agent: str = ""
    traceparent: str = ""  # the W3C trace context that the client sent
    connection: Any = None  # identity of a connection that carries several calls at once, for its limit of requests
    entry_region: str | None = msgspec.field(default=None, name="entered_in")
    """Region of the server that the client called; None: the cluster has no regions."""

    @property
    def trace_id(self) -> str:
        """The trace that the call belongs to; empty if the client sent no context."""
        return self.traceparent[3:35]

    def caller(self, principal_id: str) -> Caller:
        """Return the caller as journaled."""
        return Caller(principal_id, self.remote, self.request_id, self.user_agent)

    def log_fields(self) -> dict[str, Any]:
        """Return the fields of log records about this request before its caller is known."""
        return {name: value for name in ("request_id", "trace_id") if (value := getattr(self, name))}


def as_given(certificate: Any) -> Any:
    """Return a decoded certificate in the form of the ssl module: with tuples, which are hashable."""
    if isinstance(certificate, dict):
        return {name: as_given(value) for name, value in certificate.items()}
    if isinstance(certificate, list):
        return tuple(as_given(one) for one in certificate)
    return certificate


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue with its configuration and figures."""

    tenant: str
    name: str
    id: int
    config: QueueConfig
    stats: QueueStats
    suspension: Suspension | None = None


class TenantInfo(msgspec.Struct, frozen=True):
    """A tenant with its configuration."""

    name: str
    id: int
    status: Literal["active", "suspended"]
    version: int
    config: TenantConfig
    hold: Hold | None = None
    suspension: Suspension | None = None
    figures: TenantFigures | None = None

    @classmethod
    def of(cls, tenant: TenantState, figures: TenantFigures | None = None) -> TenantInfo:
        return projected(cls, tenant, figures=figures)
