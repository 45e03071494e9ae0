"""Moving a tenant: everything it has goes out as an archive, and comes in elsewhere as it was."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from tenantq.domain import limits
from tenantq.domain.message import check_int
from tenantq.domain.names import check_queue_name
from tenantq.engine.tenant_snapshot import StoredMessage, StoredResult, TakenKey
from tenantq.errors import Forbidden, Invalid, SealBroken, TooLarge
from tenantq.service.audit_trail import AuditQuery
from tenantq.service.credentials import grant_items
from tenantq.service.export_archive import END, FORMAT, MANIFEST, PART_BYTES, PART_LINES, Archive, encode_line
from tenantq.service.exported_lines import (
    export_id,
    key_line,
    message_line,
    queue_line,
    result_line,
    stored_message,
    stored_result,
    taken_key,
    tenant_line,
)
from tenantq.service.safekeeping import Safekeeping, entry
from tenantq.wire import DigestReply, ExportedKey, ExportedMessage, ExportedResult, ExportManifest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

    from tenantq.engine.ops.import_part import ImportedPart
    from tenantq.engine.shard import Shard
    from tenantq.engine.tenant_snapshot import QueueCopy, TenantSnapshot
    from tenantq.journal.record import JournalRow
    from tenantq.service.audit_trail import AuditTrail
    from tenantq.service.call import Call
    from tenantq.service.encryption import MessageEncryption
    from tenantq.service.entered import Entered
    from tenantq.wire import KeyItem

_EXPORT_CHARS: Final = 32
_T = TypeVar("_T", StoredMessage, StoredResult, TakenKey)


class TenantExport:
    """An export under way: go through its parts once, and close it in any case."""

    def __init__(
        self,
        shard: Shard,
        trail: AuditTrail,
        sealing: MessageEncryption | None,
        entered: Entered,
        snapshot: TenantSnapshot,
        keys: list[KeyItem],
    ) -> None:
        self._shard = shard
        self._trail = trail
        self._sealing = sealing
        self._entered: Entered | None = entered
        self._snapshot = snapshot
        self._keys = keys
        self._archive = Archive(snapshot.at)
        self._parts = self._write()
        self.tenant = snapshot.name
        identity = f"{shard.shard_name}/{snapshot.id}/{snapshot.since}/{snapshot.seq}/{snapshot.at}"
        if snapshot.queue_id is not None:
            identity += f"/{snapshot.queue_id}"
        self._forgets_bodies = sealing is not None and (
            snapshot.config.encryption.enabled or snapshot.id in shard.data_keys
        )  # what stands for them stands under a secret of this server
        self.id = hashlib.sha256(identity.encode()).hexdigest()[:_EXPORT_CHARS]

    def close(self) -> None:
        """Let go of the store's old files and of the place among the requests."""
        if self._entered is not None:
            entered, self._entered = self._entered, None
            entered.ticket.release()
            self._snapshot.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    async def __anext__(self) -> bytes:
        return await anext(self._parts)

    async def aclose(self) -> None:
        """End it, wherever it is."""
        await self._parts.aclose()
        self.close()

    async def _write(self) -> AsyncGenerator[bytes]:
        """Yield the archive, a few MiB at a time."""
        archive, snapshot = self._archive, self._snapshot
        yield archive.file("tenant", "tenant.json", [tenant_line(snapshot, self.id)])
        for part in archive.parts("queues", [queue_line(queue) for queue in snapshot.queues]):
            yield part
        for number, queue in enumerate(snapshot.queues, 1):
            async for part in self._queue(queue, f"queue-{number:06}"):
                yield part
        if snapshot.queue_id is None:
            async for part in self._about_the_tenant():
                yield part
        yield archive.member(MANIFEST, encode_line(self._manifest())) + END

    async def _about_the_tenant(self) -> AsyncIterator[bytes]:
        archive = self._archive
        for part in archive.parts("keys", self._keys):
            yield part
        for part in archive.parts("grants", grant_items(self._shard.access, self.tenant)):
            yield part
        number = 0
        async for rows in self._audit():
            number += 1
            yield archive.file("audit", f"audit-{number:06}.jsonl", rows)

    async def _queue(self, queue: QueueCopy, home: str) -> AsyncIterator[bytes]:
        """Yield a queue's messages and results; what is encrypted is opened, what does not open is counted and left out."""
        archive, part = self._archive, 0
        async for messages in _pages(self._snapshot.messages(queue)):
            whole = await self._opened(queue.name, messages)
            if whole:
                part += 1
                name = f"{home}/messages-{part:06}.jsonl"
                yield await asyncio.to_thread(
                    archive.file, "messages", name, map(message_line, whole), queue=queue.name, part=part
                )
        async for results in _pages(self._snapshot.results(queue)):
            kept = await self._opened_results(queue.name, results)
            if kept:
                part += 1
                name = f"{home}/results-{part:06}.jsonl"
                yield await asyncio.to_thread(
                    archive.file, "results", name, map(result_line, kept), queue=queue.name, part=part
                )
        async for keys in _pages(self._snapshot.idempotency(queue)):
            part += 1
            name = f"{home}/idempotency-{part:06}.jsonl"
            if self._forgets_bodies:
                keys = [msgspec.structs.replace(key, body_digest=b"") for key in keys]  # noqa: PLW2901  # the same keys
            yield archive.file("idempotency", name, map(key_line, keys), queue=queue.name, part=part)

    async def _opened(self, queue: str, messages: list[StoredMessage]) -> list[StoredMessage]:
        if self._sealing is None:
            return messages
        opened = await self._sealing.open_stored(self._snapshot.id, queue, messages)
        return self._without_broken(opened)

    async def _opened_results(self, queue: str, results: list[StoredResult]) -> list[StoredResult]:
        if self._sealing is None:
            return results
        opened = await self._sealing.open_results(self._snapshot.id, queue, results)
        return self._without_broken(opened)

    def _without_broken(self, opened: Sequence[_T | SealBroken]) -> list[_T]:
        whole = [one for one in opened if not isinstance(one, SealBroken)]
        if len(whole) < len(opened):
            counts = self._archive.counts
            counts["unreadable"] = counts.get("unreadable", 0) + len(opened) - len(whole)
        return whole

    def _manifest(self) -> ExportManifest:
        return ExportManifest(
            format=FORMAT,
            product="tenantq",
            version=version("tenantq"),
            export=self.id,
            tenant=self.tenant,
            shard=self._shard.shard_name,
            created_at=self._snapshot.at,
            last_seq=self._snapshot.seq,
            counts=self._archive.counts,
            files=self._archive.files,
        )

    async def _audit(self) -> AsyncIterator[list[JournalRow]]:
        """Go through the journal's rows about the tenant, in the store and in segments, up to the moment of the snapshot."""
        snapshot, cursor = self._snapshot, None
        while True:
            query = AuditQuery(limit=PART_LINES, cursor=cursor)
            page = await self._trail.page(query, tenant=self.tenant, first_seq=snapshot.since)
            rows = [row for row in page.rows if row.seq <= snapshot.seq]
            if rows:
                yield rows
            cursor = page.cursor
            if cursor is None or len(rows) < len(page.rows):
                return


class Moving(Safekeeping):
    """Exports and imports of one tenant."""

    async def export(self, call: Call, tenant: str | None, queue: str | None = None) -> TenantExport:
        """Begin to export everything that a tenant has, or one queue of it, as it is at this moment. Close what is returned."""
        if queue is not None:
            await self.gates.identify(call, "export")  # nobody is told what a name may be
            check_queue_name(queue)
        entered = await self.gates.enter(call, tenant, "export", queue)
        try:
            if queue is None:
                self._check_everything_is_theirs(call, entered)
            snapshot = await self.shard.snapshot(entered.tenant, queue)
            told = f"up to record {snapshot.seq}: {len(snapshot.queues)} queues, {snapshot.messages_total} messages"
            await self.shard.note_entries([entry("export", entered.tenant, entered.caller, told)])
            return TenantExport(self.shard, self._trail, self._sealing, entered, snapshot, self._keys(entered.state.id))
        except BaseException:
            entered.ticket.release()
            raise

    def _check_everything_is_theirs(self, call: Call, entered: Entered) -> None:
        """Refuse whoever may export some queues only: they are exported one by one."""
        if self.gates.authorizer.patterns(entered.principal, entered.tenant, "export") is not None:
            error = Forbidden("You may export some queues only: name one with ?queue=.", tenant=entered.tenant)
            self.gates.traces.refuse(call, entered.principal, entered.tenant, "export", None, error)
            raise error

    async def import_part(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        *,
        export: str,
        part: int,
        messages: list[ExportedMessage],
        results: list[ExportedResult],
        idempotency: Sequence[ExportedKey] = (),
    ) -> ImportedPart:
        """Take in one part of an export: each once, in order."""
        check_queue_name(queue)
        check_int("part", part, 1, 1 << 40)
        raw_export = export_id(export)
        _check_lines("messages", messages, ExportedMessage)
        _check_lines("results", results, ExportedResult)
        _check_lines("idempotency", [] if idempotency == () else idempotency, ExportedKey)
        if len(messages) + len(results) + len(idempotency) > limits.BATCH_MESSAGES_MAX:
            raise Invalid(f"messages, results, idempotency: more than {limits.BATCH_MESSAGES_MAX} in one part")
        stored = [stored_message(one, f"messages[{place}]") for place, one in enumerate(messages)]
        if len({one.raw_id for one in stored}) != len(stored):
            raise Invalid("messages: an id stands there twice")
        size = sum(len(one.body) for one in stored)
        if size > limits.BATCH_BYTES_MAX:
            raise TooLarge(f"messages: {size} bytes in one part, the limit is {limits.BATCH_BYTES_MAX}")
        kept = [stored_result(one, f"results[{place}]") for place, one in enumerate(results)]
        known = [taken_key(one, f"idempotency[{place}]") for place, one in enumerate(idempotency)]
        size = sum(len(one.ids) for one in known)
        if size > limits.EXPORTED_IDS_BYTES_MAX:
            raise TooLarge(
                f"idempotency: {size} bytes of ids in one part, the limit is {limits.EXPORTED_IDS_BYTES_MAX}"
            )
        with await self._enter_queue(call, tenant, "import", queue) as entered:
            if entered.state.config.encryption.enabled:
                assert self._sealing is not None, "nobody is encrypted without it"
                stored, kept = await self._sealing.seal_stored(entered.state, queue, stored, kept)
            return await self.shard.take_in(
                entered.tenant, queue, raw_export, part, stored, kept, entered.caller, known
            )

    async def digest(
        self, call: Call, tenant: str | None, queue: str, *, at: int | None = None, export: str | None = None
    ) -> DigestReply:
        """Return what a queue holds, of what lives beyond ``at``, and how much of an export it has taken in."""
        if at is not None:
            check_int("at", at, 0, limits.TIME_MS_MAX)
        raw_export = export_id(export) if export is not None else None
        with await self._enter_queue(call, tenant, "export", queue) as entered:
            snapshot = await self.shard.snapshot(entered.tenant, queue)
            try:
                part = self.shard.taken_part(entered.tenant, queue, raw_export) if raw_export is not None else 0
                return await digest_of(snapshot, at if at is not None else snapshot.at, self.shard.wall_ms(), part)
            finally:
                snapshot.close()


async def digest_of(snapshot: TenantSnapshot, at: int, now: int, part: int) -> DigestReply:
    """Return what stands for everything in the one queue of a snapshot that lives beyond ``at``."""
    (queue,) = snapshot.queues
    total, messages, size, results = hashlib.sha256(), 0, 0, 0
    async for page in _pages(snapshot.messages(queue)):
        for one in page:
            if one.expires_at is None or one.expires_at > at:
                body = len(one.body) - (limits.SEAL_BYTES if one.sealed else 0)
                total.update(one.raw_id + struct.pack(">QBI?", body, one.priority, one.attempts, one.dead is not None))
                messages += 1
                size += body
    async for kept in _pages(snapshot.results(queue)):
        living = [one.raw_id for one in kept if one.expires_at > at]
        total.update(b"".join(living))
        results += len(living)
    return DigestReply(messages=messages, bytes=size, results=results, digest=total.hexdigest(), now=now, part=part)


def _check_lines(field: str, lines: object, kind: type) -> None:
    if not isinstance(lines, list) or not all(isinstance(line, kind) for line in lines):
        raise Invalid(f"{field}: must be a list of lines of an export")


async def _pages(items: Iterator[_T]) -> AsyncIterator[list[_T]]:
    """Go through items in lists of bounded size, read on a thread while the event loop goes on."""
    while page := await asyncio.to_thread(_page, items):
        yield page


def _page(items: Iterator[_T]) -> list[_T]:
    page: list[_T] = []
    size = 0
    for one in items:
        page.append(one)
        if isinstance(one, StoredMessage):
            size += len(one.body)
        else:
            size += len(one.ids) if isinstance(one, TakenKey) else len(one.result.value or b"")
        if len(page) == PART_LINES or size >= PART_BYTES:
            break
    return page
