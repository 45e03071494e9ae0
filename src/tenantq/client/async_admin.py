"""API keys, audit trail and templates, which a tenant and the platform both have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Literal
from urllib.parse import quote

from tenantq.client.session import ClientSession, query
from tenantq.wire.access import CreatedKey, CreateKeyRequest, KeyItem, KeysReply
from tenantq.wire.alerts import AlertsReply, AlertTestReply, AlertTestRequest, ContainmentItem, ContainmentsReply
from tenantq.wire.cluster import ClusterReply, DrainRequest, GrowRequest, PlacementReply, PlacementRequest
from tenantq.wire.compliance import ComplianceReply
from tenantq.wire.signups import ApprovedSignup, ApproveSignupRequest, RejectSignupRequest, SignupItem, SignupsReply
from tenantq.wire.templates import AppliedItem, AppliedReply, ApplyTemplateRequest, TemplateItem, TemplatesReply
from tenantq.wire.tenants import AuditReply, PlanItem, PlansReply


def _item(path: str, name: str) -> str:
    """Return the path of one item of a list, whose name may contain any character."""
    return f"{path}/{quote(name, safe='')}"


class AsyncAdminScope:
    """The API keys, the audit trail and the templates at the given paths."""

    def __init__(self, session: ClientSession, *, keys: str, audit: str, templates: str) -> None:
        self._session = session
        self._keys_path = keys
        self._audit_path = audit
        self._templates_path = templates

    async def audit(
        self,
        *,
        action: str | Sequence[str] | None = None,
        result: Literal["SUCCESS", "DENIED", "ERROR"] | None = None,
        principal: str | None = None,
        start: int | None = None,
        end: int | None = None,
        queue: str | None = None,
        message: str | None = None,
        order: Literal["oldest", "newest"] | None = None,
        tenant: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditReply:
        """Return a page of the audit trail. Its ``cursor`` leads to the next page.

        A page may have fewer rows than ``limit``, or none, and still a cursor. Continue until the cursor is None.
        ``tenant`` is for the platform's audit trail only.
        """
        actions = action if action is None or isinstance(action, str) else ",".join(action)
        parameters = query(
            action=actions, result=result, principal=principal, start=start, end=end, queue=queue, message=message,
            order=order, tenant=tenant, limit=limit, cursor=cursor,
        )  # fmt: skip
        return await self._session.request("GET", self._audit_path + parameters, AuditReply, gzip=True)

    async def create_key(
        self,
        name: str,
        *,
        role: str | None = None,
        actions: Sequence[str] = (),
        queues: Sequence[str] = ("*",),
        expires_at: int | None = None,
    ) -> CreatedKey:
        """Create an API key with a role or a list of actions, for queues that match a pattern.

        Only this reply contains its token.
        """
        body = CreateKeyRequest(
            name=name, role=role, actions=tuple(actions), queues=tuple(queues), expires_at=expires_at
        )
        return await self._session.request("POST", self._keys_path, CreatedKey, body, repeatable=False)

    async def keys(self) -> list[KeyItem]:
        """Return the API keys, without their secrets."""
        return (await self._session.request("GET", self._keys_path, KeysReply)).keys

    async def revoke_key(self, key_id: str) -> None:
        """Revoke an API key."""
        await self._session.request("DELETE", _item(self._keys_path, key_id), NoneType, repeatable=False)

    async def templates(self) -> list[TemplateItem]:
        """Return the templates that the tenant may use; for the platform, all."""
        return (await self._session.request("GET", self._templates_path, TemplatesReply)).templates

    async def put_template(
        self,
        name: str,
        *,
        description: str = "",
        queues: Mapping[str, Mapping[str, Any]] | None = None,
        settings: Mapping[str, Any] | None = None,
        shared_with: Sequence[str] = (),
    ) -> TemplateItem:
        """Create or replace a template of settings of ``queues`` and of the tenant.

        ``shared_with`` lists the other tenants that may use it; ``"*"`` means all.
        """
        texts = {"description": description, "shared_with": list(shared_with)}
        body = {**texts, "queues": queues or {}, "settings": settings or {}}
        return await self._session.request("PUT", _item(self._templates_path, name), TemplateItem, body)

    async def delete_template(self, name: str) -> None:
        """Delete a template. Queues and settings created from it stay."""
        await self._session.request("DELETE", _item(self._templates_path, name), NoneType, repeatable=False)

    async def apply_template(self, name: str, *, owner: str | None = None, dry_run: bool = False) -> list[AppliedItem]:
        """Apply a template to the tenant, each queue completely or not at all, and return the outcome of each.

        ``owner`` is the tenant that shares it, or empty for the platform. By default its own comes first.
        """
        target = f"{_item(self._templates_path, name)}/apply"
        body = ApplyTemplateRequest(owner=owner, dry_run=dry_run)
        return (await self._session.request("POST", target, AppliedReply, body)).results


class AsyncPlatform(AsyncAdminScope):
    """The platform itself, for its administrators."""

    def __init__(self, session: ClientSession) -> None:
        super().__init__(session, keys="/v1/platform/keys", audit="/v1/audit", templates="/v1/templates")

    async def cluster(self) -> ClusterReply:
        """Return the members and shards of the cluster. Raises Conflict if the server is not part of one."""
        return await self._session.request("GET", "/v1/cluster", ClusterReply)

    async def drain_member(self, member_id: str, *, drain: bool = True) -> ClusterReply:
        """Drain a member, or undo a drain."""
        target = f"{_item('/v1/cluster/members', member_id)}/drain"
        return await self._session.request("POST", target, ClusterReply, DrainRequest(drain=drain))

    async def alerts(self) -> AlertsReply:
        """Return the active alerts of all tenants and the server's targets."""
        return await self._session.request("GET", "/v1/alerts", AlertsReply)

    async def compliance(self) -> ComplianceReply:
        """Return the compliance controls of the platform and all tenants."""
        return await self._session.request("GET", "/v1/compliance", ComplianceReply)

    async def test_alert_target(self, target: str) -> AlertTestReply:
        """Send a test notification to a target, and return whether it was accepted."""
        body = AlertTestRequest(target=target)
        return await self._session.request("POST", "/v1/alerts/test", AlertTestReply, body, repeatable=False)

    async def containments(self) -> list[ContainmentItem]:
        """Return the active containments, including dry runs."""
        return (await self._session.request("GET", "/v1/containments", ContainmentsReply)).containments

    async def release_containment(self, id: str) -> ContainmentItem:
        """Release a containment early, and return it."""
        return await self._session.request("DELETE", _item("/v1/containments", id), ContainmentItem, repeatable=False)

    async def signups(self) -> list[SignupItem]:
        """Return the pending sign-ups."""
        return (await self._session.request("GET", "/v1/signups", SignupsReply)).signups

    async def approve_signup(self, id: str, *, plan: str | None = None, template: str | None = None) -> ApprovedSignup:
        """Create the tenant of a sign-up. Only this reply contains the token of its first key."""
        target, body = f"{_item('/v1/signups', id)}/approve", ApproveSignupRequest(plan=plan, template=template)
        return await self._session.request("POST", target, ApprovedSignup, body, repeatable=False)

    async def reject_signup(self, id: str, *, reason: str = "") -> SignupItem:
        """Reject a sign-up."""
        target, body = f"{_item('/v1/signups', id)}/reject", RejectSignupRequest(reason=reason)
        return await self._session.request("POST", target, SignupItem, body, repeatable=False)

    async def plans(self) -> list[PlanItem]:
        """Return the plans that can be applied to tenants."""
        return (await self._session.request("GET", "/v1/plans", PlansReply)).plans

    async def placement(self, tenant: str) -> PlacementReply:
        """Return the shard of a tenant, and its move in progress."""
        return await self._session.request("GET", _item("/v1/cluster/tenants", tenant), PlacementReply)

    async def place_tenant(self, tenant: str, request: PlacementRequest) -> PlacementReply:
        """Pin a tenant to a shard, give it its own shard, spread its queues, or unpin it. Returns before anything has moved."""
        return await self._session.request("PUT", _item("/v1/cluster/tenants", tenant), PlacementReply, request)

    async def grow_cluster(self, shards: int, *, dry_run: bool = False) -> ClusterReply:
        """Raise the number of shards."""
        body = GrowRequest(shards=shards, dry_run=dry_run)
        return await self._session.request("PUT", "/v1/cluster/shards", ClusterReply, body)
