"""What operators and tools ask: health, readiness, metrics, and the description of the interface itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.http.reply import HTML, PROMETHEUS, Reply, json_reply

if TYPE_CHECKING:
    from tenantq.http.request import Request
    from tenantq.service import Service

_ALIVE: Final = Reply(b'{"status":"ok"}')
_PAGE_POLICY: Final = (
    b"Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\r\n"
    b"X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
)


class Health(msgspec.Struct, frozen=True):
    """The process serves."""

    status: str


class Readiness(msgspec.Struct, frozen=True):
    """Whether work should be sent here, and what it depends on."""

    status: str  # "ready", "not_ready" or "closing"
    details: dict[str, Any] = {}


async def healthz(_: Service, __: Request, ___: object) -> Reply:
    """Tell that the process serves."""
    return _ALIVE


async def readyz(service: Service, request: Request, _: object) -> Reply:
    """Tell whether work should be sent here."""
    details = service.status.readiness()
    if shards := service.other_shards.readiness():
        details["shards"] = shards
    if request.listener.is_closing or not request.listener.is_ready:
        return json_reply(Readiness("closing", details), 503, b"Retry-After: 1\r\n")
    if not details.get("ready"):
        return json_reply(Readiness("not_ready", details), 503, b"Retry-After: 1\r\n")
    return json_reply(Readiness("ready", details))


async def metrics(service: Service, request: Request, _: object) -> Reply:
    """Tell the service's and the listener's figures as Prometheus reads them."""
    return Reply(await service.status.metrics(request.call), 200, PROMETHEUS)


async def topology(service: Service, request: Request, _: object) -> Reply:
    """Tell the shards that this server knows."""
    return json_reply(await service.status.topology(request.call))


async def openapi(_: Service, request: Request, __: object) -> Reply:
    """Describe the interface to machines."""
    return request.listener.description.openapi


async def docs(_: Service, request: Request, __: object) -> Reply:
    """Describe the interface to people."""
    page = request.listener.description.page
    return Reply(page.body, 200, HTML, _PAGE_POLICY)
