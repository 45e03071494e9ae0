"""Audit: queries of the journal by tenants and by the platform."""

from typing import Final

import msgspec

from tenantq.domain import limits
from tenantq.engine.queue_state import TenantState
from tenantq.errors import NotFound
from tenantq.journal.record import JournalRow
from tenantq.runtime.randomness import id_bytes, id_text
from tenantq.service.admission import Admission
from tenantq.service.audit_trail import AuditPage, AuditQuery, AuditTrail, check_query
from tenantq.service.call import Call
from tenantq.service.other_shards import OtherShards

ALL_ROWS: Final = AuditQuery()
HISTORY_PAGES_MAX: Final = 100


class TenantJournal:
    """The journal of a tenant, on all shards that it has lived on."""

    def __init__(self, audit_trail: AuditTrail, other_shards: OtherShards) -> None:
        self._audit_trail, self._other_shards = audit_trail, other_shards

    async def page(self, query: AuditQuery, tenant: TenantState, queues: tuple[str, ...] | None = None) -> AuditPage:
        """Return a page of rows; with ``queues``, only those of queues that match a pattern."""
        if not tenant.earlier:
            check_query(query)
            return await self._audit_trail.page(query, tenant.name, tenant.since, queues)
        check_query(msgspec.structs.replace(query, cursor=None))  # a cursor over several shards has its own form
        firsts: dict[int, int] = {}
        for shard, since in (*tenant.earlier, (self._other_shards.number, tenant.since)):
            firsts[shard] = min(since, firsts.get(shard, since))
        return await self._other_shards.tenant_audit(query, tenant.name, firsts, queues, self._audit_trail.page)

    async def history(self, tenant: TenantState, queue: str, id: str) -> list[JournalRow]:
        """Return all rows about one message of a queue, oldest first. Raises NotFound if there are none.

        If the tenant has lived on this shard only, the search starts a day before the time in the message's ID.
        """
        raw, start, found = id_bytes(id), None, list[JournalRow]()
        if not tenant.earlier:
            start = min(max(0, self._audit_trail.time_of(raw) - limits.DAY_MS), limits.TIME_MS_MAX)
        query = AuditQuery(message=id_text(raw), start=start, limit=limits.PAGE_MAX)
        for _ in range(HISTORY_PAGES_MAX):
            page = await self.page(query, tenant)
            found += page.rows
            if page.cursor is None:
                break
            query = msgspec.structs.replace(query, cursor=page.cursor)
        if not any(row.queue == queue for row in found):
            raise NotFound("no such message in the journal", tenant=tenant.name, queue=queue, id=query.message)
        return found


class Audit:
    """Answers audit queries."""

    def __init__(
        self, admission: Admission, journal: TenantJournal, audit_trail: AuditTrail, other_shards: OtherShards
    ) -> None:
        self._admission, self._journal = admission, journal
        self._audit_trail, self._other_shards = audit_trail, other_shards

    async def query(self, call: Call, tenant: str | None, query: AuditQuery = ALL_ROWS) -> AuditPage:
        """Return a page of the tenant's journal. Callers limited to some queues see the rows of these only."""
        check_query(msgspec.structs.replace(query, cursor=None))
        with await self._admission.admit(call, tenant, "audit") as admitted:
            queues = self._admission.authorizer.patterns(admitted.principal, admitted.tenant, "audit")
            page = await self._journal.page(query, admitted.state, queues)
            if query.cursor is None:  # further pages are the same read
                self._admission.notes.note_view(admitted.caller, admitted.tenant, "audit")
            return page

    async def query_platform(self, call: Call, query: AuditQuery = ALL_ROWS) -> AuditPage:
        """Return a page of the journals of all shards: all tenants, deleted ones too, and the platform itself."""
        check_query(msgspec.structs.replace(query, cursor=None))  # a cursor over several shards has its own form
        caller = await self._admission.admit_platform(call, "audit_platform")
        page = await self._other_shards.audit(query, self.query_local)
        if query.cursor is None:
            self._admission.notes.note_view(caller, "", "audit_platform")
        return page

    async def query_local(self, query: AuditQuery) -> AuditPage:
        """Return a page of this shard's whole journal, for a caller that was authorized."""
        return await self._audit_trail.page(query, tenant=None)

    async def query_tenant_local(
        self, query: AuditQuery, tenant: str, first_seq: int, queues: tuple[str, ...] | None
    ) -> AuditPage:
        """Return a page of what this shard's journal has of a tenant, for its present shard."""
        return await self._audit_trail.page(query, tenant, first_seq, queues)
