"""Message reads: messages, results and histories, without a lease."""

from collections.abc import Awaitable
from typing import TypeVar

import msgspec

from tenantq.domain.message import Facts, MessagePage, Result
from tenantq.engine.queue_snapshots import SnapshotFacts
from tenantq.engine.shard import Shard
from tenantq.errors import DecryptionFailed, NotFound
from tenantq.journal.record import JournalRow
from tenantq.runtime.randomness import id_bytes, id_text
from tenantq.service.admission import Admission
from tenantq.service.admitted_call import AdmittedCall
from tenantq.service.audit import TenantJournal
from tenantq.service.call import Call
from tenantq.service.encryption import MessageEncryption

_T = TypeVar("_T")


class MessageReads:
    """Shows the messages of a queue. Callers without the right to read bodies see messages without them."""

    def __init__(
        self, shard: Shard, admission: Admission, encryption: MessageEncryption, journal: TenantJournal
    ) -> None:
        self._shard, self._admission, self._encryption, self._journal = shard, admission, encryption, journal

    async def peek(
        self, call: Call, tenant: str | None, queue: str, *, limit: int = 10, cursor: str | None = None
    ) -> MessagePage:
        with await self._admission.admit_queue(call, tenant, "peek", queue, rate="read") as admitted:
            asked = self._shard.reads.peek(admitted.tenant, queue, limit=limit, cursor=cursor)
            page = await self._found(call, admitted, "peek", queue, asked)
            return await self._shown(admitted, queue, page)

    async def _shown(self, admitted: AdmittedCall, queue: str, page: MessagePage) -> MessagePage:
        """Return the page as the caller may see it, and charge it. One message was paid for on admission."""
        seen = page.messages
        if not self._may_read(admitted, queue):
            seen = [_hidden(one) for one in seen]
        else:
            if any(one.encrypted for one in seen):
                seen = await self._encryption.decrypt_facts(admitted.state.id, seen)
            if seen:
                self._admission.notes.note_read(admitted, "peek", queue, f"{len(seen)} messages")
        ops, size = max(0, len(seen) - 1), sum(len(one.body) for one in seen)
        self._admission.charge(admitted, queue, "read", ops, size)
        return MessagePage(seen, page.cursor)

    async def open_snapshot(
        self, call: Call, tenant: str | None, queue: str, *, keep_ms: int = 60_000, part_messages: int | None = None
    ) -> SnapshotFacts:
        """Open a snapshot of a queue, to be read in pages."""
        with await self._admission.admit_queue(call, tenant, "peek", queue, rate="read") as admitted:
            opening = self._shard.snapshots.open(admitted.tenant, queue, keep_ms=keep_ms, part_messages=part_messages)
            return await self._found(call, admitted, "peek", queue, opening)

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
    ) -> MessagePage:
        """Return a page of a snapshot in order of message IDs."""
        with await self._admission.admit_queue(call, tenant, "peek", queue, rate="read") as admitted:
            asked = self._shard.snapshots.read(admitted.tenant, queue, id, start=start, end=end, limit=limit)
            page = await self._found(call, admitted, "peek", queue, asked)
            return await self._shown(admitted, queue, page)

    async def close_snapshot(self, call: Call, tenant: str | None, queue: str, id: str) -> None:
        """Close a snapshot before it expires."""
        with await self._admission.admit_queue(call, tenant, "peek", queue) as admitted:
            self._shard.snapshots.close(admitted.tenant, queue, id)

    async def get(self, call: Call, tenant: str | None, queue: str, id: str) -> Facts:
        """Return a stored message with all its facts."""
        with await self._admission.admit_queue(call, tenant, "get", queue, rate="read") as admitted:
            facts = await self._found(call, admitted, "get", queue, self._shard.reads.get(admitted.tenant, queue, id))
            seen = facts
            if not self._may_read(admitted, queue):
                seen = _hidden(facts)
            else:
                if facts.encrypted:
                    (seen,) = await self._encryption.decrypt_facts(admitted.state.id, [facts])
                    if seen.body_error:
                        raise DecryptionFailed(tenant=admitted.tenant, queue=queue, id=facts.id)
                self._admission.notes.note_read(admitted, "get", queue, f"message {facts.id}")
            self._admission.charge(admitted, queue, "read", 0, len(seen.body))
            return seen

    async def result(
        self, call: Call, tenant: str | None, queue: str, id: str, *, wait_ms: int = 0
    ) -> tuple[Result, bool]:
        """Return the result of a message, and whether its value is hidden from the caller."""
        with await self._admission.admit_queue(call, tenant, "result", queue, rate="read") as admitted:
            if wait_ms:
                admitted.park()
            asked = self._shard.reads.result(admitted.tenant, queue, id, wait_ms=wait_ms)
            found = await self._found(call, admitted, "result", queue, asked)
            if wait_ms:
                await self._admission.confirm(call, admitted, "result", queue)
            if self._may_read(admitted, queue) or found.value is None:
                if found.encrypted:
                    found = await self._encryption.decrypt_result(admitted.state.id, queue, id_bytes(id), found)
                if found.value is not None and self._may_read(admitted, queue):
                    self._admission.notes.note_read(admitted, "result", queue, f"message {id_text(id_bytes(id))}")
                self._admission.charge(admitted, queue, "read", 0, len(found.value or b""))
                return found, False
            return msgspec.structs.replace(found, value=None, encrypted=False), True

    async def trace(self, call: Call, tenant: str | None, queue: str, id: str) -> list[JournalRow]:
        """Return the journal rows about one message, from the store and, if some were trimmed, from exported segments."""
        with await self._admission.admit_queue(call, tenant, "trace", queue, rate="read") as admitted:
            since = max(1, admitted.state.since)
            has_all = self._shard.journal.span[0] <= since or queue not in admitted.state.queues
            if has_all and not admitted.state.earlier:
                asked: Awaitable[list[JournalRow]] = self._shard.reads.trace(admitted.tenant, queue, id)
            else:
                asked = self._journal.history(admitted.state, queue, id)
            rows = await self._found(call, admitted, "trace", queue, asked)
            self._admission.notes.note_read(admitted, "trace", queue, f"message {id_text(id_bytes(id))}")
            return rows

    async def _found(self, call: Call, admitted: AdmittedCall, action: str, queue: str, asked: Awaitable[_T]) -> _T:
        """Run a read. A read of something unknown is noted, because it may belong to another tenant."""
        try:
            return await asked
        except NotFound as error:
            self._admission.notes.note_refusal(call, admitted.principal, admitted.tenant, action, queue, error)
            raise

    def _may_read(self, admitted: AdmittedCall, queue: str) -> bool:
        return self._admission.authorizer.allowed(admitted.principal, admitted.tenant, "read_body", queue)


def _hidden(facts: Facts) -> Facts:
    return msgspec.structs.replace(facts, body=b"", attributes={}, encrypted_attributes=b"", group=None, hidden=True)
