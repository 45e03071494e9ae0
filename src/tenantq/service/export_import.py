"""Exports and imports of all data of a tenant, to move it to another server or tenant."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec

from tenantq.domain import limits
from tenantq.domain.names import check_queue_name
from tenantq.domain.validation import check_field
from tenantq.engine.ops.import_part import ImportedPart, ImportPart, last_imported_part
from tenantq.engine.queue_state import TenantState
from tenantq.engine.shard import Shard
from tenantq.engine.tenant_snapshot import MessageCopy, TenantSnapshot
from tenantq.errors import Forbidden, Invalid, TooLarge, Unavailable
from tenantq.journal.record import entry_of
from tenantq.runtime.loop_slices import convert
from tenantq.service.access import key_items
from tenantq.service.admission import Admission
from tenantq.service.admitted_call import AdmittedCall
from tenantq.service.audit_trail import AuditTrail
from tenantq.service.call import Call
from tenantq.service.encryption import MessageEncryption
from tenantq.service.exported_lines import export_id, stored_key, stored_message, stored_result
from tenantq.service.other_shards import OtherShards
from tenantq.service.part_export import PartExport
from tenantq.service.tenant_export import QueueDigest, TenantExport
from tenantq.store.rows import pack_extras
from tenantq.wire.exports import ExportedKey, ExportedMessage, ExportedResult, part_digest
from tenantq.wire.queues import DigestReply


class Exports:
    """Exports tenants and queues, and imports exported parts."""

    def __init__(
        self,
        shard: Shard,
        admission: Admission,
        encryption: MessageEncryption,
        audit_trail: AuditTrail,
        other_shards: OtherShards,
    ) -> None:
        self._shard, self._admission, self._encryption = shard, admission, encryption
        self._audit_trail, self._other_shards = audit_trail, other_shards

    async def export(self, call: Call, tenant: str | None, queue: str | None = None) -> TenantExport:
        """Start to export a tenant as it is now, or one of its queues. Always close the returned stream."""
        if queue is not None:
            await self._admission.identify(call, "export")  # before the tenant's name is checked
            check_queue_name(queue)
        admitted = await self._admission.admit(call, tenant, "export", queue)
        async with AsyncExitStack() as undo:
            undo.callback(admitted.ticket.release)
            if queue is None:
                self._check_may_export_all(call, admitted)
            others = await self._other_shards.export_parts(admitted.state) if queue is None else None
            if others is not None:
                undo.push_async_callback(others.aclose)
            snapshot = await self._shard.snapshots.of_tenant(admitted.tenant, queue)
            undo.callback(snapshot.close)
            if others is not None:
                await others.check_places()
            export = await self._begin(admitted, snapshot, others.parts if others is not None else ())
            undo.pop_all()
        return export

    async def _begin(
        self, admitted: AdmittedCall, snapshot: TenantSnapshot, others: Sequence[PartExport]
    ) -> TenantExport:
        """Journal an export, and return it."""
        summaries = [await other.summary() for other in others]
        queues = len(snapshot.queues) + sum(one.queues for one in summaries)
        messages = snapshot.messages_total + sum(one.messages for one in summaries)
        details = f"up to record {snapshot.seq}: {queues} queues, {messages} messages"
        await self._shard.journal.note([entry_of("export", admitted.tenant, admitted.caller, details)])
        keys = key_items(self._shard, self._admission, admitted.state.id)
        release = admitted.ticket.release
        admitted.ticket.outlive_task()  # the stream may be read by other tasks
        return TenantExport(
            self._shard, self._audit_trail, self._encryption, snapshot, release, keys=keys, others=others
        )

    async def export_part(self, tenant: TenantState, shard: int) -> TenantExport:
        """Start to export the part of a tenant on this shard, for the export at its home, which admitted the caller."""
        self._admission.residency.check(tenant.name)
        snapshot = await self._shard.snapshots.of_tenant(tenant.name)
        folder = f"shard-{shard}/"
        return TenantExport(self._shard, self._audit_trail, self._encryption, snapshot, lambda: None, folder=folder)

    def _check_may_export_all(self, call: Call, admitted: AdmittedCall) -> None:
        """Raise Forbidden if the caller may export some queues only. Then queues must be exported one by one."""
        if self._admission.authorizer.patterns(admitted.principal, admitted.tenant, "export") is not None:
            error = Forbidden(
                "This credential can export some queues only. Name one with ?queue=.", tenant=admitted.tenant
            )
            self._admission.notes.note_refusal(call, admitted.principal, admitted.tenant, "export", None, error)
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
        """Import one part of an export. Parts must arrive in order; a repeated part changes nothing."""
        check_queue_name(queue)
        check_field("part", part, limits.PartNumber)
        raw_export = export_id(export)
        _check_lines("messages", messages, ExportedMessage)
        _check_lines("results", results, ExportedResult)
        _check_lines("idempotency", [] if idempotency == () else idempotency, ExportedKey)
        if len(messages) + len(results) + len(idempotency) > limits.BATCH_MESSAGES_MAX:
            raise Invalid(f"messages, results, idempotency: more than {limits.BATCH_MESSAGES_MAX} in one part")
        stored = await convert(
            list(enumerate(messages)), lambda one: stored_message(one[1], f"messages[{one[0]}]"), _line_chars
        )
        if len({one.raw_id for one in stored}) != len(stored):
            raise Invalid("messages: duplicate id")
        size = sum(len(one.body) for one in stored)
        if size > limits.BATCH_BYTES_MAX:
            raise TooLarge(f"messages: too many bytes in one part ({size}, allowed: {limits.BATCH_BYTES_MAX})")
        kept = await convert(
            list(enumerate(results)), lambda one: stored_result(one[1], f"results[{one[0]}]"), _result_chars
        )
        known = [stored_key(one, f"idempotency[{place}]") for place, one in enumerate(idempotency)]
        size = sum(len(one.ids) for one in known)
        if size > limits.EXPORTED_IDS_BYTES_MAX:
            raise TooLarge(
                f"idempotency: too many bytes of ids in one part ({size}, allowed: {limits.EXPORTED_IDS_BYTES_MAX})"
            )
        with await self._admission.admit_queue(call, tenant, "import", queue) as admitted:
            digest = await asyncio.to_thread(part_digest, [(one.raw_id, one.body) for one in stored])
            if admitted.state.config.encryption.enabled:
                stored, kept = await self._encryption.encrypt_stored(admitted.state, queue, stored, kept)
            async with self._other_shards.reserve(admitted.state, _needed(stored)) as reserved:
                imported = await self._shard.submit(
                    ImportPart(admitted.state, admitted.caller, queue, raw_export, part, stored, kept, known, reserved)
                )
            return msgspec.structs.replace(imported, digest=digest)

    async def digest(
        self, call: Call, tenant: str | None, queue: str, *, at: int | None = None, export: str | None = None
    ) -> DigestReply:
        """Return a digest of a queue's content that expires after ``at``, and the number of imported parts of an export."""
        if at is not None:
            check_field("at", at, limits.WallTime)
        raw_export = export_id(export) if export is not None else None
        with await self._admission.admit_queue(call, tenant, "export", queue) as admitted:
            snapshot = await self._shard.snapshots.of_tenant(admitted.tenant, queue)
            try:
                part = 0
                if raw_export is not None:
                    state = self._shard.state
                    part = last_imported_part(state.store, state.queue(admitted.tenant, queue), raw_export)
                digest = QueueDigest(snapshot, at if at is not None else snapshot.at)
                while await self._audit_trail.in_turn(admitted.tenant, digest.next_page):
                    pass
                return digest.reply(self._shard.state.wall_ms(), part)
            finally:
                snapshot.close()


def queues_moving(tenant: str) -> Unavailable:
    """Return the error for an export that could omit or duplicate queues."""
    return Unavailable("queues of the tenant are moving between shards. Try again later.", tenant=tenant)


def _needed(messages: Sequence[MessageCopy]) -> dict[str, int]:
    """Return how much of the tenant's quotas a part can use."""
    extras = (pack_extras(one.group, one.attributes, one.encrypted_attributes) for one in messages)
    size = sum(len(one.body) + len(extra) for one, extra in zip(messages, extras, strict=True))
    counted = dict.fromkeys(("messages_per_hour", "messages_per_day", "backlog"), len(messages))
    return {**counted, "stored_bytes": size}


def _line_chars(line: tuple[int, ExportedMessage]) -> int:
    return len(line[1].body or line[1].body_base64 or "")


def _result_chars(line: tuple[int, ExportedResult]) -> int:
    return len(line[1].value or line[1].value_base64 or "")


def _check_lines(field: str, lines: object, kind: type) -> None:
    if not isinstance(lines, list) or not all(isinstance(line, kind) for line in lines):
        raise Invalid(f"{field}: must be a list of lines of an export")
