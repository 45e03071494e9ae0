"""A tenant export in progress: the archive of everything that a tenant or a queue had at one time."""

import hashlib
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from typing import Any, Final, TypeVar

import msgspec

from tenantq.domain import limits
from tenantq.engine.shard import Shard
from tenantq.engine.tenant_snapshot import MessageCopy, QueueCopy, StoredIdempotencyKey, StoredResult, TenantSnapshot
from tenantq.errors import DecryptionFailed
from tenantq.journal.record import JournalRow
from tenantq.service.access import grant_items
from tenantq.service.audit_trail import AuditQuery, AuditTrail
from tenantq.service.encryption import MessageEncryption
from tenantq.service.export_archive import (
    END,
    FORMAT,
    MANIFEST,
    PART_BYTES,
    PART_LINES,
    Archive,
    ArchiveKind,
    encode_line,
)
from tenantq.service.exported_lines import key_line, message_line, queue_line, result_line, tenant_line
from tenantq.service.part_export import PartExport, PartSummary, close_all
from tenantq.wire.access import KeyItem
from tenantq.wire.exports import ExportManifest
from tenantq.wire.queues import DigestReply

_EXPORT_CHARS: Final = 32
_T = TypeVar("_T", MessageCopy, StoredResult, StoredIdempotencyKey)


class TenantExport:
    """A stream of the archive. Iterate over it once, and always close it."""

    def __init__(
        self,
        shard: Shard,
        audit_trail: AuditTrail,
        encryption: MessageEncryption,
        snapshot: TenantSnapshot,
        release: Callable[[], None],
        *,
        keys: Sequence[KeyItem] = (),
        others: Sequence[PartExport] = (),
        folder: str = "",
    ) -> None:
        """Prepare. ``release`` is called when it is closed; ``others`` are the tenant's parts on other shards.

        With a ``folder`` it is such a part itself: a stream for ``PartExport``, with the names of its files in that folder.
        """
        self._shard, self._audit_trail, self._encryption = shard, audit_trail, encryption
        self._snapshot, self._keys, self._others, self._is_part = snapshot, keys, others, bool(folder)
        self._release: Callable[[], None] | None = release
        self._archive = Archive(snapshot.at, folder)
        self._parts = self._write()
        self.tenant = snapshot.name
        identity = f"{shard.name}/{snapshot.id}/{snapshot.since}/{snapshot.seq}/{snapshot.at}"
        if snapshot.queue_id is not None:
            identity += f"/{snapshot.queue_id}"
        # The digests of encrypted bodies depend on a secret of this server, so another server cannot use them.
        self._drops_digests = snapshot.config.encryption.enabled or snapshot.id in shard.state.data_keys.by_tenant
        self.id = hashlib.sha256(identity.encode()).hexdigest()[:_EXPORT_CHARS]

    def close(self) -> None:
        """Release the snapshot and the slot of the call."""
        if self._release is not None:
            release, self._release = self._release, None
            release()
            self._snapshot.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    async def __anext__(self) -> bytes:
        return await anext(self._parts)

    async def aclose(self) -> None:
        """Stop the export and close it, with all parts even if closing one of them fails."""
        async with AsyncExitStack() as closing:
            closing.callback(self.close)
            closing.push_async_callback(close_all, self._others)
            if not self._parts.ag_running:  # type: ignore[attr-defined]  # else its reader was just cancelled, which ends it
                await self._parts.aclose()

    async def _write(self) -> AsyncGenerator[bytes]:
        """Yield the archive, a few MiB at a time. It must not await when it is cancelled, because ``aclose`` follows at once."""
        if self._is_part:
            yield encode_line(PartSummary(len(self._snapshot.queues), self._snapshot.messages_total))
        else:
            yield self._archive.file("tenant", "tenant.json", [tenant_line(self._snapshot, self.id)])
        async for part in self._files():
            yield part
        for other in self._others:
            async for part in other.files(self._archive):
                yield part
        manifest = encode_line(self._manifest())
        yield manifest if self._is_part else self._archive.member(MANIFEST, manifest) + END

    async def _files(self) -> AsyncIterator[bytes]:
        """Yield what this shard has: queues with their contents, and unless it is one queue, the rest of the tenant."""
        archive, snapshot = self._archive, self._snapshot
        for part in archive.parts("queues", [queue_line(queue) for queue in snapshot.queues]):
            yield part
        for number, queue in enumerate(snapshot.queues, 1):
            async for part in self._queue(queue, f"queue-{number:06}"):
                yield part
        if snapshot.queue_id is not None:
            return
        if not self._is_part:
            for part in archive.parts("keys", self._keys):
                yield part
            for part in archive.parts("grants", grant_items(self._shard.state.access, self.tenant)):
                yield part
        number = 0
        async for rows in self._audit():
            number += 1
            yield await self._in_turn(partial(archive.file, "audit", f"audit-{number:06}.jsonl", rows))

    async def _queue(self, queue: QueueCopy, home: str) -> AsyncIterator[bytes]:
        """Yield the files of a queue: messages and results, decrypted, and idempotency keys."""
        part = 0
        async for kind, line_of, values in self._queue_parts(queue):
            if values:
                part += 1
                name, lines = f"{home}/{kind}-{part:06}.jsonl", map(line_of, values)
                yield await self._in_turn(partial(self._archive.file, kind, name, lines, queue=queue.name, part=part))

    async def _in_turn(self, work: Callable[[], bytes]) -> bytes:
        return await self._audit_trail.in_turn(self.tenant, work)

    async def _pages(self, items: Iterator[_T]) -> AsyncIterator[list[_T]]:
        """Yield items in lists of bounded size, read on a thread."""
        while page := await self._audit_trail.in_turn(self.tenant, partial(_page, items)):
            yield page

    async def _queue_parts(
        self, queue: QueueCopy
    ) -> AsyncIterator[tuple[ArchiveKind, Callable[[Any], Any], Sequence[Any]]]:
        """Yield the kind, the conversion and the values of each part. Values that cannot be decrypted are counted and omitted."""
        encryption, snapshot = self._encryption, self._snapshot
        async for messages in self._pages(snapshot.messages(queue)):
            decrypted = await encryption.decrypt_stored(snapshot.id, queue.name, messages)
            yield "messages", message_line, self._without_broken(decrypted)
        async for results in self._pages(snapshot.results(queue)):
            stored = await encryption.decrypt_results(snapshot.id, queue.name, results)
            yield "results", result_line, self._without_broken(stored)
        async for keys in self._pages(snapshot.idempotency(queue)):
            kept = [msgspec.structs.replace(key, body_digest=b"") for key in keys] if self._drops_digests else keys
            yield "idempotency", key_line, kept

    def _without_broken(self, decrypted: Sequence[_T | DecryptionFailed]) -> list[_T]:
        intact = [one for one in decrypted if not isinstance(one, DecryptionFailed)]
        if len(intact) < len(decrypted):
            counts = self._archive.counts
            counts["unreadable"] = counts.get("unreadable", 0) + len(decrypted) - len(intact)
        return intact

    def _manifest(self) -> ExportManifest:
        return ExportManifest(
            format=FORMAT,
            product="tenantq",
            version=version("tenantq"),
            export=self.id,
            tenant=self.tenant,
            shard=self._shard.name,
            created_at=self._snapshot.at,
            last_seq=self._snapshot.seq,
            counts=self._archive.counts,
            files=self._archive.files,
        )

    async def _audit(self) -> AsyncIterator[list[JournalRow]]:
        """Yield the journal rows about the tenant, from the store and from segments, up to the snapshot."""
        snapshot, cursor = self._snapshot, None
        while True:
            query = AuditQuery(limit=PART_LINES, cursor=cursor)
            page = await self._audit_trail.page(query, tenant=self.tenant, first_seq=snapshot.since)
            rows = [row for row in page.rows if row.seq <= snapshot.seq]
            if rows:
                yield rows
            cursor = page.cursor
            if cursor is None or len(rows) < len(page.rows):
                return


class QueueDigest:
    """The digest of everything in a snapshot's one queue that expires after a time. It is computed page by page."""

    def __init__(self, snapshot: TenantSnapshot, at: int) -> None:
        (queue,) = snapshot.queues
        self._at = at
        self._messages, self._results = snapshot.messages(queue), snapshot.results(queue)
        self._hash = hashlib.sha256()
        self._counts = {"messages": 0, "bytes": 0, "results": 0}

    def next_page(self) -> bool:
        """Include the next page; return whether there was one. For a thread."""
        counts, messages = self._counts, _page(self._messages)
        for one in messages:
            if one.expires_at is None or one.expires_at > self._at:
                size = len(one.body) - (limits.ENCRYPTION_BYTES if one.encrypted else 0)
                facts = struct.pack(">QBI?", size, one.priority, one.attempts, one.dead is not None)
                self._hash.update(one.raw_id + facts)
                counts["messages"] += 1
                counts["bytes"] += size
        if messages:
            return True
        results = _page(self._results)
        living = [one.raw_id for one in results if one.expires_at > self._at]
        self._hash.update(b"".join(living))
        counts["results"] += len(living)
        return bool(results)

    def reply(self, now: int, part: int) -> DigestReply:
        """Return the digest of the pages so far."""
        return DigestReply(**self._counts, digest=self._hash.hexdigest(), now=now, part=part)


def _page(items: Iterator[_T]) -> list[_T]:
    page: list[_T] = []
    size = 0
    for one in items:
        page.append(one)
        if isinstance(one, MessageCopy):
            size += len(one.body)
        else:
            size += len(one.ids) if isinstance(one, StoredIdempotencyKey) else len(one.result.value or b"")
        if len(page) == PART_LINES or size >= PART_BYTES:
            break
    return page
