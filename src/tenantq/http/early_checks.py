"""Checks of a request before the service gets it: because its body is large, or its error would tell too much."""

from __future__ import annotations

from typing import Final

from tenantq.errors import Invalid, TenantqError, TooLarge
from tenantq.http.protocol_route import ProtocolRoute
from tenantq.http.request import Request
from tenantq.service.residency import CONTENT_ACTIONS

_OF_INPUT: Final = frozenset((Invalid.code, TooLarge.code))


def region_refusal(request: Request) -> TenantqError | None:
    """Return the error for a tenant that does not allow the region of this server or shard, before the body is read."""
    admission, route = request.context.service.admission, request.route
    if not admission.residency.misplaced or route is None or route.action not in CONTENT_ACTIONS:
        return None
    try:
        admission.check_residency_early(request.call, request.tenant, route.action, request.queue or None)
    except TenantqError as refusal:
        return refusal
    return None


async def authorize(request: Request) -> None:
    """Raise if the caller may not make this call, before its body is decompressed or errors in it are described."""
    route, admission = request.route, request.context.service.admission
    assert route is not None
    if not route.secured:
        return
    if route.scope == "any":
        await admission.identify(request.call, route.action or "topology")
    else:
        tenant = "" if route.scope == "platform" else request.tenant
        await admission.authorize(request.call, tenant, route.action, request.queue or None)


async def visible_error(request: Request, error: TenantqError) -> TenantqError:
    """Return the error to reply with. Errors in the input are described to authorized callers only."""
    if error.code in _OF_INPUT and request.route is not None and type(request.route) is not ProtocolRoute:
        try:
            await authorize(request)
        except TenantqError as refusal:
            return refusal
    return error
