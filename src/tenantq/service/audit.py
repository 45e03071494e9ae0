"""Audit: queries of the journal by tenants and by the platform."""

from __future__ import annotations

from typing import Final

import msgspec

from tenantq.service.admission import Admission
from tenantq.service.audit_trail import AuditPage, AuditQuery, AuditTrail, check_query
from tenantq.service.call import Call
from tenantq.service.other_shards import OtherShards

ALL_ROWS: Final = AuditQuery()


class Audit:
    """Answers audit queries."""

    def __init__(self, admission: Admission, audit_trail: AuditTrail, other_shards: OtherShards) -> None:
        self._admission, self._audit_trail, self._other_shards = admission, audit_trail, other_shards

    async def query(self, call: Call, tenant: str | None, query: AuditQuery = ALL_ROWS) -> AuditPage:
        """Return a page of the tenant's journal. Callers limited to some queues see the rows of these only."""
        check_query(query)
        with await self._admission.admit(call, tenant, "audit") as admitted:
            queues = self._admission.authorizer.patterns(admitted.principal, admitted.tenant, "audit")
            first = admitted.state.since
            return await self._audit_trail.page(query, tenant=admitted.tenant, first_seq=first, queues=queues)

    async def query_platform(self, call: Call, query: AuditQuery = ALL_ROWS) -> AuditPage:
        """Return a page of the journals of all shards: all tenants, deleted ones too, and the platform itself."""
        check_query(msgspec.structs.replace(query, cursor=None))  # a cursor over several shards has its own form
        await self._admission.admit_platform(call, "audit_platform")
        return await self._other_shards.audit(query, self.query_local)

    async def query_local(self, query: AuditQuery) -> AuditPage:
        """Return a page of this shard's whole journal, for a caller that was authorized."""
        return await self._audit_trail.page(query, tenant=None)
