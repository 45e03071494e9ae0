"""Sign-ups: request, list, approve, reject."""

from tenantq.domain.signup import SignupRequest
from tenantq.http.handlers.access import NEVER_STORED
from tenantq.http.reply import JsonReply, json_reply
from tenantq.http.request import Request
from tenantq.service.onboarding import approve_signup as approve
from tenantq.service.service import Service
from tenantq.wire import signups as wire


async def request_signup(service: Service, request: Request, body: SignupRequest) -> wire.SignupReceipt:
    """Ask for a tenant, without a credential, if the server accepts sign-ups."""
    return wire.SignupReceipt(id=(await service.signups.request(request.call, body)).id)


async def list_signups(service: Service, request: Request, _: object) -> wire.SignupsReply:
    """List pending sign-ups."""
    return await service.signups.list(request.call)


async def approve_signup(
    service: Service, request: Request, body: wire.ApproveSignupRequest
) -> JsonReply[wire.ApprovedSignup]:
    """Create the tenant of a sign-up. Its first key is shown only once."""
    return json_reply(await approve(service, request.call, request.name, body.plan, body.template), 201, NEVER_STORED)


async def reject_signup(service: Service, request: Request, body: wire.RejectSignupRequest) -> wire.SignupItem:
    """Reject a sign-up."""
    return await service.signups.reject(request.call, request.name, body.reason)
