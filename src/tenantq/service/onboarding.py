"""Approval of sign-ups: from a sign-up to a tenant with its first key."""

from tenantq.domain.access import Grant
from tenantq.domain.validation import projected
from tenantq.errors import Conflict, NotFound
from tenantq.service.call import Call
from tenantq.service.service import Service
from tenantq.wire.signups import ApprovedSignup


async def approve_signup(
    service: Service, call: Call, id: str, plan: str | None, template: str | None = None
) -> ApprovedSignup:
    """Create the tenant of a sign-up, and return its first key. Raises Conflict if the tenant exists.

    The tenant may belong to any shard, so ``service`` is the one that transports use.
    """
    found = await service.signups.get(call, id)
    known = await service.templates.list(call, "") if template is not None else ()
    if template is not None and not any(one.name == template and not one.owner for one in known):
        raise NotFound(f"template {template!r} of the platform does not exist")
    try:
        await service.tenants.get(call, found.tenant)
    except NotFound:
        plan = plan or found.plan
        created, tenant = await service.tenants.put(call, found.tenant, {"plan": plan} if plan else {})
    else:
        created = False
    if not created:
        raise Conflict("the tenant already exists. Reject the sign-up.", tenant=found.tenant)
    applied = await service.templates.apply(call, found.tenant, template, owner="") if template is not None else ()
    await service.signups.approve(call, id)
    key = await service.access.create_key(call, found.tenant, "first key", Grant(role="tenant-admin"))
    return projected(
        ApprovedSignup, key, tenant=found.tenant, contact=found.contact, plan=tenant.config.plan, applied=[*applied]
    )
