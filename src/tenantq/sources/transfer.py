"""Transfers the messages of a source into tenantq: each once, however often and wherever the transfer is interrupted.

Every message carries a key of its source. The server remembers these keys for a year, and skips a message whose key it
knows, in the same commit that would store it. Repeating a transfer therefore needs no other state.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from tenantq.client import Client, Queue
from tenantq.domain.limits import ATTRIBUTES_BYTES_MAX, BODY_BYTES_MAX, DAY_MS
from tenantq.errors import Conflict, NotFound
from tenantq.runtime.randomness import MessageIds, id_bytes, id_text, system_randomness
from tenantq.sources.mapping import Destination, Mapping
from tenantq.sources.source import InProgress, Mode, Source, SourceBatch, SourceMessage
from tenantq.wire.exports import ExportedKey, ExportedMessage, ImportRequest, part_digest
from tenantq.wire.json_bytes import text_or_base64
from tenantq.wire.messages import WireDeadLetter

KEYS_KEPT_MS: Final = 365 * DAY_MS
"""How long a migrated message is not migrated again."""
_UUID_7: Final = 0x70


class QueueResult(msgspec.Struct, kw_only=True):
    """The messages transferred into one queue."""

    tenant: str
    queue: str
    read: int = 0
    added: int = 0
    known: int = 0  # transferred before
    bytes: int = 0
    digest: str = ""  # of keys and bodies, in any order


class TransferReport(msgspec.Struct, kw_only=True):
    """The result of a transfer."""

    source: str
    mode: Mode
    queues: list[QueueResult] = []
    skipped: dict[str, int] = {}  # by reason: messages that were not transferred
    removed: int = 0  # messages that the old system finished during the transfer
    verified: bool = False  # by counts and digests

    @property
    def read(self) -> int:
        """Messages that were read."""
        return sum(one.read for one in self.queues)

    @property
    def added(self) -> int:
        """Messages that are new."""
        return sum(one.added for one in self.queues)


def merged(reports: Sequence[TransferReport], source: str) -> TransferReport:
    """Return the sum of the reports of parts."""
    queues: dict[tuple[str, str], QueueResult] = {}
    skipped: dict[str, int] = {}
    for report in reports:
        for one in report.queues:
            total = queues.setdefault((one.tenant, one.queue), QueueResult(tenant=one.tenant, queue=one.queue))
            total.read += one.read
            total.added += one.added
            total.known += one.known
            total.bytes += one.bytes
            total.digest = f"{int(total.digest or '0', 16) ^ int(one.digest, 16):064x}"
        for text, count in report.skipped.items():
            skipped[text] = skipped.get(text, 0) + count
    return TransferReport(
        source=source,
        mode="snapshot",
        queues=sorted(queues.values(), key=lambda one: (one.tenant, one.queue)),
        skipped=skipped,
        verified=all(one.verified for one in reports),
    )


class Transfer:
    """One run from one source into one server."""

    def __init__(
        self,
        source: Source,
        client: Client,
        mapping: Mapping,
        now_ms: int,
        report: Callable[[int], None] = lambda _: None,
    ) -> None:
        """``report`` gets the number of messages read so far. ``now_ms`` is when ready messages become visible."""
        self._source, self._client, self._mapping, self._now = source, client, mapping, now_ms
        self._report = report
        self._export = secrets.token_hex(16)
        self._parts: dict[Destination, int] = {}
        self._results: dict[tuple[str, str], QueueResult] = {}
        self._digests: dict[tuple[str, str], int] = {}
        self._ready: set[tuple[str, str]] = set()
        self._read = 0
        self._is_same = True  # the server has stored what was read
        self._ids = MessageIds(system_randomness())

    def run(self, mode: Mode, in_progress: InProgress) -> TransferReport:
        """Transfer everything. Raises what the source or the server raises; run it again to continue."""
        return self.of(self._source.batches(mode, in_progress), mode)

    def of(self, batches: Iterable[SourceBatch], mode: Mode) -> TransferReport:
        """Transfer these batches of the source."""
        skipped: dict[str, int] = {}
        for batch in batches:
            by_destination: dict[Destination, list[SourceMessage]] = {}
            for one in batch.messages:
                destination = self._mapping.destination(one)
                reason = "left out by the mapping" if destination is None else obstacle(one)
                if reason is not None:
                    skipped[reason] = skipped.get(reason, 0) + 1
                    continue
                assert destination is not None
                by_destination.setdefault(destination, []).append(one)
            for destination, messages in by_destination.items():
                self._send(destination, messages)
            if len(batch.messages) == sum(map(len, by_destination.values())):
                batch.done()  # a skipped message stays at the source with its batch
            self._read += len(batch.messages)
            self._report(self._read)
        for text, count in self._source.problems.items():
            skipped[text] = skipped.get(text, 0) + count
        for (tenant, queue), result in self._results.items():
            result.digest = f"{self._digests[tenant, queue]:064x}"
        results = sorted(self._results.values(), key=lambda one: (one.tenant, one.queue))
        verified = self._is_same and all(one.read == one.added + one.known for one in results)
        return TransferReport(source=self._source.kind, mode=mode, queues=results, skipped=skipped, verified=verified)

    def _send(self, destination: Destination, messages: list[SourceMessage]) -> None:
        tenant, queue = destination.tenant, destination.queue
        self._make_queue(tenant, queue)
        unique = {_hash(self._source.kind, one): one for one in messages}
        part = self._parts[destination] = self._parts.get(destination, 0) + 1
        export = hashlib.sha256(f"{self._export} {destination.priority}".encode()).hexdigest()[:32]
        lines = [self._line(one, destination) for one in unique.values()]
        keys = [
            ExportedKey(hash=hash, ids=line.id.replace("-", ""), expires_at=self._now + KEYS_KEPT_MS)
            for hash, line in zip(unique, lines, strict=True)
        ]
        reply = self._client.tenant(tenant).import_part(
            queue, ImportRequest(export=export, part=part, messages=lines, idempotency=keys)
        )
        sent = part_digest((id_bytes(line.id), one.body) for line, one in zip(lines, unique.values(), strict=True))
        self._is_same = self._is_same and reply.digest == sent
        if reply.duplicate or reply.messages + reply.there + reply.expired != len(lines):
            raise Conflict(
                f"the server stored {reply.messages} and knew {reply.there} of {len(lines)} messages."
                " Run the command again.",
                tenant=tenant,
                queue=queue,
            )
        result = self._results.setdefault((tenant, queue), QueueResult(tenant=tenant, queue=queue))
        result.read += len(messages)
        result.added += reply.messages
        result.known += reply.there + len(messages) - len(lines)
        result.bytes += sum(len(one.body) for one in messages)
        total = self._digests.get((tenant, queue), 0)
        for one in messages:
            total ^= int.from_bytes(hashlib.sha256(one.key.encode() + b"\0" + one.body).digest())
        self._digests[tenant, queue] = total

    def _make_queue(self, tenant: str, queue: str) -> None:
        if (tenant, queue) in self._ready:
            return
        found: Queue = self._client.tenant(tenant).queue(queue)
        try:
            found.stats()
        except NotFound:
            found.configure()
        self._ready.add((tenant, queue))

    def _line(self, one: SourceMessage, destination: Destination) -> ExportedMessage:
        visible_at = one.visible_at if one.visible_at is not None else self._now  # ids keep the order of the source
        body, encoded = text_or_base64(one.body)
        dead = None
        if one.dead is not None:
            origin = self._mapping.of_queue(one.tenant, one.queue)
            assert origin is not None, "it has a destination"
            dead = WireDeadLetter(reason=one.dead[:1_000], source=origin.queue, attempts=1, at=self._now)
        return ExportedMessage(
            id=id_text(self._id(one)),
            body=body,
            body_base64=encoded,
            priority=destination.priority if destination.priority is not None else one.priority,
            attributes=one.attributes,
            group=one.group,
            added_at=min(self._now, one.added_at or self._now),
            visible_at=visible_at,
            dead=dead,
        )

    def _id(self, one: SourceMessage) -> bytes:
        """Return the id of the source if it can be kept, or one that keeps the order of the source."""
        return one.id if one.id is not None and is_uuid_7(one.id) else self._ids.take(self._now, 1)[0]


def is_uuid_7(id: bytes) -> bool:
    """Return whether an ID of the source can be kept."""
    return len(id) == 16 and id[6] & 0xF0 == _UUID_7 and id[8] & 0xC0 == 0x80


def _hash(kind: str, one: SourceMessage) -> str:
    return hashlib.sha256(f"migrate-from\0{kind}\0{one.tenant or ''}\0{one.queue}\0{one.key}".encode()).hexdigest()[:32]


def obstacle(one: SourceMessage) -> str | None:
    """Return why a message cannot be stored; None if it can."""
    if len(one.body) > BODY_BYTES_MAX:
        return f"bodies larger than {BODY_BYTES_MAX} bytes"
    if sum(len(name.encode()) + len(value.encode()) for name, value in one.attributes.items()) > ATTRIBUTES_BYTES_MAX:
        return f"attributes larger than {ATTRIBUTES_BYTES_MAX} bytes"
    return None
