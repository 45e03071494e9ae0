"""Looking: messages, results and histories, seen without being leased."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenantq.domain.message import Facts, Page, Result
from tenantq.errors import KmsError, NotFound, SealBroken
from tenantq.runtime.randomness import id_bytes, id_text
from tenantq.service.moving import Moving

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import TypeVar

    from tenantq.engine.queue_snapshots import SnapshotFacts
    from tenantq.journal.record import JournalRow
    from tenantq.service.call import Call
    from tenantq.service.encryption import MessageEncryption
    from tenantq.service.entered import Entered

    _T = TypeVar("_T")


class Looking(Moving):
    """What can be seen of a queue's messages; without bodies for who may not read them."""

    async def peek(
        self, call: Call, tenant: str | None, queue: str, *, limit: int = 10, cursor: str | None = None
    ) -> Page:
        """Return waiting messages without leasing them; without bodies for who may not read them."""
        with await self._enter_queue(call, tenant, "peek", queue, rate="read") as entered:
            page = await self._found(
                call, entered, "peek", queue, self.shard.peek(entered.tenant, queue, limit=limit, cursor=cursor)
            )
            return await self._shown(call, entered, queue, page)

    async def _shown(self, call: Call, entered: Entered, queue: str, page: Page) -> Page:
        """Return a page as the caller may see it, and count it as read; one message was paid for on entering."""
        seen = page.messages
        if not self._may_read(entered, queue):
            seen = [_hidden(one) for one in seen]
        else:
            if entered.state.id in self.shard.data_keys:
                seen = await self._vault().open_facts(entered.state.id, seen)
            if seen:
                self.gates.traces.note_look(call, entered, "peek", queue, f"{len(seen)} messages")
        self.gates.charge(entered, queue, "read", len(seen) - 1 if seen else 0, sum(len(one.body) for one in seen))
        return Page(seen, page.cursor)

    async def open_snapshot(
        self, call: Call, tenant: str | None, queue: str, *, keep_ms: int = 60_000, part_messages: int | None = None
    ) -> SnapshotFacts:
        """Keep everything that a queue holds now, to be read in pages."""
        with await self._enter_queue(call, tenant, "peek", queue, rate="read") as entered:
            opening = self.shard.open_snapshot(entered.tenant, queue, keep_ms=keep_ms, part_messages=part_messages)
            return await self._found(call, entered, "peek", queue, opening)

    async def read_snapshot(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        id: str,
        *,
        start: str | None = None,
        end: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Return messages of a snapshot by id; without bodies for who may not read them."""
        with await self._enter_queue(call, tenant, "peek", queue, rate="read") as entered:
            try:
                page = self.shard.read_snapshot(entered.tenant, queue, id, start=start, end=end, limit=limit)
            except NotFound as error:
                self.gates.traces.refuse(call, entered.principal, entered.tenant, "peek", queue, error)
                raise
            return await self._shown(call, entered, queue, page)

    async def close_snapshot(self, call: Call, tenant: str | None, queue: str, id: str) -> None:
        """Let a snapshot go before its time."""
        with await self._enter_queue(call, tenant, "peek", queue) as entered:
            self.shard.close_snapshot(entered.tenant, queue, id)

    async def get(self, call: Call, tenant: str | None, queue: str, id: str) -> Facts:
        """Return everything known of a message; without its body for who may not read it."""
        with await self._enter_queue(call, tenant, "get", queue, rate="read") as entered:
            facts = await self._found(call, entered, "get", queue, self.shard.get(entered.tenant, queue, id))
            seen = facts
            if not self._may_read(entered, queue):
                seen = _hidden(facts)
            else:
                if facts.sealed:
                    (seen,) = await self._vault().open_facts(entered.state.id, [facts])
                    if seen.body_error:
                        raise SealBroken(tenant=entered.tenant, queue=queue, id=facts.id)
                self.gates.traces.note_look(call, entered, "get", queue, f"message {facts.id}")
            self.gates.charge(entered, queue, "read", 0, len(seen.body))
            return seen

    async def result(
        self, call: Call, tenant: str | None, queue: str, id: str, *, wait_ms: int = 0
    ) -> tuple[Result, bool]:
        """Return a message's result, and whether its value was taken out."""
        with await self._enter_queue(call, tenant, "result", queue, rate="read") as entered:
            if wait_ms:
                entered.park()
            asked = self.shard.result(entered.tenant, queue, id, wait_ms=wait_ms)
            found = await self._found(call, entered, "result", queue, asked)
            if wait_ms:
                await self.gates.confirm(call, entered, "result", queue)
            if self._may_read(entered, queue) or found.value is None:
                if found.sealed:
                    found = await self._vault().open_result(entered.state.id, queue, id_bytes(id), found)
                if found.value is not None and self._may_read(entered, queue):
                    self.gates.traces.note_look(call, entered, "result", queue, f"message {id_text(id_bytes(id))}")
                self.gates.charge(entered, queue, "read", 0, len(found.value or b""))
                return found, False
            return msgspec.structs.replace(found, value=None, sealed=False), True

    async def trace(self, call: Call, tenant: str | None, queue: str, id: str) -> list[JournalRow]:
        """Return the journal's rows about one message, from the store and, where some were trimmed, from segments too."""
        with await self._enter_queue(call, tenant, "trace", queue, rate="read") as entered:
            since = max(1, entered.state.since)
            if self.shard.journal_span[0] <= since or queue not in entered.state.queues:
                asked = self.shard.trace(entered.tenant, queue, id)
            else:
                asked = self._trail.history(entered.tenant, queue, id, first_seq=since)
            return await self._found(call, entered, "trace", queue, asked)

    async def _found(self, call: Call, entered: Entered, action: str, queue: str, asked: Awaitable[_T]) -> _T:
        """Return what was asked for; a look at what is not there leaves a trace, as it may be another tenant's."""
        try:
            return await asked
        except NotFound as error:
            self.gates.traces.refuse(call, entered.principal, entered.tenant, action, queue, error)
            raise

    def _may_read(self, entered: Entered, queue: str) -> bool:
        return self.gates.authorizer.allowed(entered.principal, entered.tenant, "read_body", queue)

    def _vault(self) -> MessageEncryption:
        if self._sealing is None:
            raise KmsError("This server has no key management, and the tenant is encrypted.")
        return self._sealing


def _hidden(facts: Facts) -> Facts:
    return msgspec.structs.replace(facts, body=b"", attributes={}, sealed_attributes=b"", group=None, hidden=True)
