"""Control: tenants, queues, encryption, usage and the audit trail. Each act passes the gates and is journaled."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from tenantq.domain import limits
from tenantq.domain.config import TenantConfig, change_tenant
from tenantq.domain.message import Caller, check_int
from tenantq.domain.names import PROBE_TENANTS, check_queue_name, check_tenant_name
from tenantq.errors import Conflict, Invalid, JournalBehind, NotFound, TenantqError
from tenantq.journal.record import JournalEntry
from tenantq.kms.interface import KeyRef
from tenantq.service.audit_trail import AuditPage, AuditQuery, AuditTrail, check_query
from tenantq.service.call import QueueInfo, TenantInfo
from tenantq.service.metrics import Metrics
from tenantq.service.problems import detail_of
from tenantq.service.tenant_figures import figures_of, usage_items, worst
from tenantq.wire import DataKeyItem, EncryptionReply, UsageReply

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tenantq.domain.access import Principal
    from tenantq.engine.ops.redrive import RedriveFilter, RedriveTask
    from tenantq.engine.queue_state import SuspensionMode, TenantState
    from tenantq.engine.shard import Shard
    from tenantq.journal.exporter import Exporter
    from tenantq.journal.segment_index import SegmentIndex
    from tenantq.runtime.clock import Clock
    from tenantq.service.call import Call
    from tenantq.service.encryption import MessageEncryption
    from tenantq.service.entered import Entered
    from tenantq.service.fellows import Fellows
    from tenantq.service.gatekeeper import Gatekeeper, RateKind
    from tenantq.service.self_checks import SelfChecks

_REDRIVES_MAX: Final = 1_000
VERSION: Final = version("tenantq")


class Control:
    """Everything but the work itself."""

    def __init__(
        self,
        shard: Shard,
        gates: Gatekeeper,
        clock: Clock,
        exporter: Exporter | None = None,
        sealing: MessageEncryption | None = None,
        segments: SegmentIndex | None = None,
    ) -> None:
        self.shard = shard
        self.gates = gates
        self.clock = clock
        self._exporter = exporter
        self._sealing = sealing  # None: no tenant can be encrypted here
        self._trail = AuditTrail(shard, segments)
        self.checks: SelfChecks | None = None  # set by who wires them
        self.fellows: Fellows | None = None  # the other shards of this server; set by who wires several
        self._metrics = Metrics(shard, gates, exporter, sealing, lambda: self.checks)
        self.include_metrics = self._metrics.include  # for a transport's own
        self._redrives: dict[str, RedriveTask] = {}

    async def close(self) -> None:
        """Let what reads the journal beside the event loop come to its end."""
        await self._trail.close()

    async def log_in(self, call: Call) -> Principal:
        """Return whom a credential stands for; one that stands for nobody is refused, and leaves a trace."""
        return await self.gates.identify(call, "login")

    async def _enter_queue(
        self, call: Call, tenant: str | None, action: str, queue: str, *, rate: RateKind | None = None, ops: int = 1
    ) -> Entered:
        check_queue_name(queue)
        return await self.gates.enter(call, tenant, action, queue, rate=rate, ops=ops)

    # ---- tenants ----

    async def put_tenant(self, call: Call, tenant: str, changes: dict[str, Any]) -> tuple[bool, TenantInfo]:
        """Make a tenant or change it; return whether it is new."""
        check_tenant_name(tenant)
        caller = await self.gates.enter_platform(call, "put_tenant", tenant)
        if tenant in PROBE_TENANTS:
            with self._noting(call, caller, "", "put_tenant"):
                raise Conflict("this tenant is the server's own, for its isolation probe", tenant=tenant)
        with self._noting(call, caller, tenant, "put_tenant"):
            self._check_regions(tenant, _settings(changes))
            await self._check_encryption(tenant, _settings(changes))
        may_make = self.fellows is None or self.fellows.may_make(tenant)
        created = await self.shard.put_tenant(tenant, caller, may_make, **changes)
        return created, TenantInfo.of(self.shard.tenant_state(tenant))

    def _check_regions(self, tenant: str, changes: dict[str, Any]) -> None:
        """Raise Conflict where a tenant would have to leave this shard for another of the same server."""
        if self.fellows is None or tenant not in self.shard.tenants_served() or not changes.get("regions"):
            return
        regions, here = (
            change_tenant(TenantConfig(), {"regions": changes["regions"]}).regions,
            self.shard.settings.region,
        )
        if here not in regions and self.fellows.other_place(regions):
            raise Conflict(
                f"regions: the tenant lives on shard {self.fellows.number}, which is in {here or 'none'}; it can be moved to another server only, with tenantq migrate",
                tenant=tenant,
            )

    async def _check_encryption(self, tenant: str, changes: dict[str, Any]) -> None:
        """Raise unless the key works that a tenant's messages are to be encrypted with from now on."""
        if "encryption" not in changes:
            return
        state = self.shard.tenants_served().get(tenant)
        before = state.config if state is not None else TenantConfig()
        wanted = change_tenant(before, {"encryption": changes["encryption"]}).encryption
        if wanted.key is not None:
            KeyRef.parse(wanted.key)
        if not wanted.enabled or (before.encryption.enabled and wanted.key == before.encryption.key):
            return
        if self._sealing is None:
            raise Invalid("encryption.enabled: this server has no key management; leave it false", tenant=tenant)
        await self._sealing.check_key(tenant, state.id if state is not None else None, wanted)

    async def get_tenant(self, call: Call, tenant: str | None) -> TenantInfo:
        """Return a tenant."""
        with await self.gates.enter(call, tenant, "get_tenant") as entered:
            return TenantInfo.of(entered.state)

    async def list_tenants(
        self, call: Call, *, after: str | None = None, limit: int = 100, figures: bool = False
    ) -> list[TenantInfo]:
        """Return a page of tenants in order of their names, with what each has and does where ``figures`` are wanted."""
        check_int("limit", limit, 1, limits.PAGE_MAX)
        await self.gates.enter_platform(call, "list_tenants")
        found = await self.tenant_page(after, limit, figures=figures)
        return found if self.fellows is None else await self.fellows.tenants(found, after, limit, figures=figures)

    async def tenant_page(self, after: str | None, limit: int, *, figures: bool) -> list[TenantInfo]:
        """Return a page of this shard's tenants, for whom it may be shown to."""
        throttled = self.gates.tally.throttled
        found: list[TenantInfo] = []
        for name in _page(self.shard.tenants(), after, limit):
            state = self.shard.tenants_served().get(name)
            if state is None:
                continue  # it was deleted meanwhile
            found.append(TenantInfo.of(state, figures_of(self.shard, state, throttled[name]) if figures else None))
            if figures:
                await asyncio.sleep(0)  # some have many queues, and others want their turn
        return found

    async def suspend_tenant(
        self, call: Call, tenant: str, reason: str = "", mode: SuspensionMode = "settle"
    ) -> TenantInfo:
        """Refuse adds and polls of a tenant; what is leased may be settled, unless it is frozen."""
        caller = await self.gates.enter_platform(call, "suspend_tenant", tenant)
        await self.shard.suspend_tenant(tenant, reason=reason, mode=mode, caller=caller)
        return TenantInfo.of(self.shard.tenant_state(tenant))

    async def resume_tenant(self, call: Call, tenant: str, reason: str = "") -> TenantInfo:
        """Serve a tenant again."""
        caller = await self.gates.enter_platform(call, "resume_tenant", tenant)
        await self.shard.resume_tenant(tenant, reason=reason, caller=caller)
        return TenantInfo.of(self.shard.tenant_state(tenant))

    async def suspend_queue(
        self, call: Call, tenant: str, queue: str, reason: str = "", mode: SuspensionMode = "settle"
    ) -> QueueInfo:
        """Refuse adds and polls of one queue; an act of the platform, as for the whole tenant."""
        check_queue_name(queue)
        caller = await self.gates.enter_platform(call, "suspend_tenant", tenant)
        await self.shard.suspend_queue(tenant, queue, reason=reason, mode=mode, caller=caller)
        return self._queue_info(tenant, queue)

    async def reopen_queue(self, call: Call, tenant: str, queue: str, reason: str = "") -> QueueInfo:
        """Let a suspended queue work again."""
        check_queue_name(queue)
        caller = await self.gates.enter_platform(call, "resume_tenant", tenant)
        await self.shard.reopen_queue(tenant, queue, reason=reason, caller=caller)
        return self._queue_info(tenant, queue)

    # ---- encryption ----

    async def get_encryption(self, call: Call, tenant: str | None) -> EncryptionReply:
        """Return how a tenant is encrypted, its data keys, and how its key does."""
        with await self.gates.enter(call, tenant, "get_encryption") as entered:
            return self._encryption(entered.state)

    async def rotate_keys(self, call: Call, tenant: str | None) -> EncryptionReply:
        """Make a new data key, which encrypts from now on. Nothing is drained, and what is stored stays readable."""
        with await self.gates.enter(call, tenant, "rotate_keys") as entered:
            with self._noting(call, entered.caller, entered.tenant, "rotate_keys"):
                number = await self._keys_of(entered.state).rotate(entered.state)
            await self._journal_keys("rotate_keys", entered, f"data key {number} encrypts from now on")
            return self._encryption(entered.state)

    async def rewrap_keys(self, call: Call, tenant: str | None) -> EncryptionReply:
        """Wrap all data keys anew by the tenant's key as it is configured now. No message is touched."""
        with await self.gates.enter(call, tenant, "rewrap_keys") as entered:
            with self._noting(call, entered.caller, entered.tenant, "rewrap_keys"):
                count, key = await self._keys_of(entered.state).rewrap(entered.state)
            await self._journal_keys("rewrap_keys", entered, f"{count} keys wrapped by {key}")
            return self._encryption(entered.state)

    def _keys_of(self, tenant: TenantState) -> MessageEncryption:
        if self._sealing is None or (not tenant.config.encryption.enabled and tenant.id not in self.shard.data_keys):
            raise Conflict("encryption: it was never switched on for this tenant", tenant=tenant.name)
        return self._sealing

    async def _journal_keys(self, act: str, entered: Entered, details: str) -> None:
        who = entered.caller
        entry = JournalEntry(
            act, entered.tenant, "", who.principal, who.remote, who.request_id, details=details,
            user_agent=who.user_agent,
        )  # fmt: skip
        await self.shard.note_entries([entry])

    def _encryption(self, tenant: TenantState) -> EncryptionReply:
        wanted, sealing = tenant.config.encryption, self._sealing
        keys = sealing.data_keys(tenant) if sealing is not None else []
        used = sealing is not None and (wanted.enabled or bool(keys))
        health = sealing.health_of(tenant) if sealing is not None and used else None
        return EncryptionReply(
            tenant=tenant.name,
            enabled=wanted.enabled,
            key=str(sealing.key_of(tenant.name, wanted)) if sealing is not None and used else wanted.key,
            key_state=health.state if health is not None else "unknown",
            key_error=health.text if health is not None and health.state != "ok" else None,
            secret_attributes=wanted.secret_attributes,
            rotate_every_ms=wanted.rotate_every_ms,
            next_rotation_at=keys[-1].created_at + wanted.rotate_every_ms if wanted.enabled and keys else None,
            data_keys=[
                DataKeyItem(number=one.number, key=str(one.key), created_at=one.created_at, uses=one.uses)
                for one in keys
            ],
        )

    async def usage(self, call: Call, tenant: str | None) -> UsageReply:
        """Return a tenant's quotas against its usage."""
        with await self.gates.enter(call, tenant, "usage") as entered:
            items = usage_items(self.shard, entered.state)
            return UsageReply(
                tenant=entered.tenant,
                state=worst(item.state for item in items.values()),
                quotas=items,
                throttled_total=self.gates.tally.throttled[entered.tenant],
            )

    async def audit(self, call: Call, tenant: str | None, **wanted: Any) -> AuditPage:
        """Return a page of the tenant's journal: see AuditQuery. Who may see some queues only sees their rows only."""
        query = check_query(AuditQuery(**wanted))
        with await self.gates.enter(call, tenant, "audit") as entered:
            queues = self.gates.authorizer.patterns(entered.principal, entered.tenant, "audit")
            first = entered.state.since
            return await self._trail.page(query, tenant=entered.tenant, first_seq=first, queues=queues)

    async def audit_platform(self, call: Call, **wanted: Any) -> AuditPage:
        """Return a page of the whole journal: all tenants, those that are gone too, and the platform itself."""
        query = AuditQuery(**wanted)
        if self.fellows is None:
            check_query(query)
        else:
            check_query(msgspec.structs.replace(query, cursor=None))  # a cursor over all shards is their own
        await self.gates.enter_platform(call, "audit_platform")
        return await self.audit_page(query) if self.fellows is None else await self.fellows.audit(query)

    async def audit_page(self, query: AuditQuery) -> AuditPage:
        """Return a page of this shard's whole journal, for whom it may be shown to."""
        return await self._trail.page(query, tenant=None)

    # ---- queues ----

    async def get_queue(self, call: Call, tenant: str | None, queue: str) -> QueueInfo:
        """Return a queue."""
        with await self._enter_queue(call, tenant, "get_queue", queue) as entered:
            return self._queue_info(entered.tenant, queue)

    async def list_queues(
        self, call: Call, tenant: str | None, *, after: str | None = None, limit: int = 100
    ) -> list[QueueInfo]:
        """Return a page of a tenant's queues in order of their names; those that the caller may see."""
        check_int("limit", limit, 1, limits.PAGE_MAX)
        with await self.gates.enter(call, tenant, "list_queues") as entered:
            allowed, who, owner = self.gates.authorizer.allowed, entered.principal, entered.tenant
            seen = [name for name in self.shard.queues(owner) if allowed(who, owner, "list_queues", name)]
            return [self._queue_info(owner, name) for name in _page(seen, after, limit)]

    async def put_queue(
        self, call: Call, tenant: str | None, queue: str, changes: dict[str, Any]
    ) -> tuple[bool, QueueInfo]:
        """Make a queue or change it; return whether it is new."""
        with await self._enter_queue(call, tenant, "put_queue", queue) as entered:
            created = await self.shard.put_queue(entered.tenant, queue, entered.caller, **_settings(changes))
            return created, self._queue_info(entered.tenant, queue)

    async def make_queue(self, call: Call, tenant: str | None, queue: str, settings: dict[str, Any]) -> bool:
        """Make a queue; return whether it is new: of several who make one at the same time one does, the others change nothing."""
        with await self._enter_queue(call, tenant, "put_queue", queue) as entered:
            return await self.shard.make_queue(entered.tenant, queue, entered.caller, **_settings(settings))

    async def pause_queue(self, call: Call, tenant: str | None, queue: str) -> QueueInfo:
        """Stop deliveries; adding goes on."""
        with await self._enter_queue(call, tenant, "pause_queue", queue) as entered:
            await self.shard.pause_queue(entered.tenant, queue, entered.caller)
            return self._queue_info(entered.tenant, queue)

    async def resume_queue(self, call: Call, tenant: str | None, queue: str) -> QueueInfo:
        """Deliver again."""
        with await self._enter_queue(call, tenant, "resume_queue", queue) as entered:
            await self.shard.resume_queue(entered.tenant, queue, entered.caller)
            return self._queue_info(entered.tenant, queue)

    async def delete_queue(
        self, call: Call, tenant: str | None, queue: str, *, confirm: str, reason: str, force: bool = False
    ) -> None:
        """Begin to delete a queue. It goes when its leases have settled, or at once with ``force``; a frozen one only by the platform, with ``force``."""
        with await self._enter_queue(call, tenant, "delete_queue", queue) as entered:
            with self._noting(call, entered.caller, entered.tenant, "delete_queue", queue):
                check_destroy(queue, confirm, reason)
            await self.shard.delete_queue(
                entered.tenant,
                queue,
                force=force,
                even_frozen=entered.principal.is_platform_admin,
                reason=reason,
                caller=entered.caller,
            )

    async def purge(self, call: Call, tenant: str | None, queue: str, *, confirm: str, reason: str) -> int:
        """Empty a queue; return how many messages went."""
        with await self._enter_queue(call, tenant, "purge", queue) as entered:
            with self._noting(call, entered.caller, entered.tenant, "purge", queue):
                check_destroy(queue, confirm, reason)
            return await self.shard.purge(entered.tenant, queue, reason=reason, caller=entered.caller)

    async def redrive(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        *,
        filter: RedriveFilter,
        rate: int | None = None,
        dry_run: bool = False,
    ) -> RedriveTask:
        """Begin to send dead letters back; its id tells later how it stands."""
        with await self._enter_queue(call, tenant, "redrive", queue) as entered:
            with self._noting(call, entered.caller, entered.tenant, "redrive", queue):
                task = await self.shard.redrive(
                    entered.tenant, queue, filter=filter, rate=rate, dry_run=dry_run, caller=entered.caller
                )
            await self._journal_redrive("redrive", entered, queue, task)
            self._redrives[task.id] = task
            if len(self._redrives) > _REDRIVES_MAX:
                done = next((old for old, one in self._redrives.items() if one.state != "running"), None)
                self._redrives.pop(done or next(iter(self._redrives)))
            return task

    async def redrive_status(self, call: Call, tenant: str | None, queue: str, id: str) -> RedriveTask:
        """Return how a redrive stands."""
        with await self._enter_queue(call, tenant, "redrive", queue) as entered:
            return self._redrive(entered, queue, id)

    async def cancel_redrive(self, call: Call, tenant: str | None, queue: str, id: str) -> RedriveTask:
        """Stop a redrive; what it moved stays moved."""
        with await self._enter_queue(call, tenant, "redrive", queue) as entered:
            with self._noting(call, entered.caller, entered.tenant, "cancel_redrive", queue):
                task = self._redrive(entered, queue, id)
            task.cancel()
            await self._journal_redrive("cancel_redrive", entered, queue, task)
            return task

    def _redrive(self, entered: Entered, queue: str, id: str) -> RedriveTask:
        """Return a redrive of this very queue, or raise NotFound."""
        task = self._redrives.get(id) if type(id) is str else None
        if (
            task is None
            or task.letters.tenant is not entered.state
            or queue not in {task.letters.name, task.filter.source}
        ):
            raise NotFound("no such redrive; a restart of the server ends them all", tenant=entered.tenant, queue=queue)
        return task

    async def _journal_redrive(self, act: str, entered: Entered, queue: str, task: RedriveTask) -> None:
        """Journal that a redrive was begun or stopped; what it moves is journaled as it moves."""
        who = entered.caller
        how = f"{task.id}, {'a dry run' if task.dry_run else 'at most ' + str(task.rate or 'any number') + ' a second'}"
        entry = JournalEntry(
            act, entered.tenant, queue, who.principal, who.remote, who.request_id, details=how,
            user_agent=who.user_agent,
        )  # fmt: skip
        await self.shard.note_entries([entry])

    @contextmanager
    def _noting(self, call: Call, caller: Caller, tenant: str, act: str, queue: str | None = None) -> Iterator[None]:
        """Have the journal tell of an act that is refused before it reaches a round."""
        try:
            yield
        except TenantqError as error:
            self.gates.traces.note_failure(call, caller, tenant, act, queue, error)
            raise

    def _queue_info(self, tenant: str, queue: str) -> QueueInfo:
        stats = self.shard.stats(tenant, queue)
        state = self.shard.tenant_state(tenant).queues[queue]
        return QueueInfo(tenant, queue, state.id, state.config, stats, state.suspension)

    # ---- operations ----

    @property
    def durability(self) -> str:
        """What a reply promises: "fsync" or "os"."""
        return self.shard.durability

    async def metrics(self, call: Call) -> bytes:
        """Return the server's figures in Prometheus' text format."""
        await self.gates.enter_platform(call, "metrics")
        return self.metrics_here()

    def metrics_here(self) -> bytes:
        """Return this shard's figures, for whom they may be shown to."""
        return self._metrics.text()

    @property
    def _is_behind(self) -> bool:
        return self._exporter is not None and self._exporter.is_behind

    def _check_journal(self, tenant: str, queue: str) -> None:
        """Raise JournalBehind while so much of the journal waits for its export that no more messages are taken."""
        if self._exporter is not None and self._exporter.is_behind:
            text = f"{self._exporter.lag_bytes} bytes of the journal wait for their export, more than allowed; "
            text += "messages are taken again when it has caught up, polls and acks go on"
            raise JournalBehind(text, tenant=tenant, queue=queue)

    def readiness(self) -> dict[str, Any]:
        """Return whether requests can be served, and why not."""
        failure = self.shard.failure
        reason = detail_of(failure) if failure is not None else ""  # nobody has to show who asks
        if failure is None and self.shard.is_doubtful:
            reason = "the store does not answer, and another server may own it by now"
        status: Literal["ready", "failed"] = "failed" if reason else "ready"
        first, last = self.shard.journal_span
        return {
            "status": status,
            "ready": not reason,
            "reason": reason,
            "durability": self.durability,
            "version": VERSION,
            "journal_records": last - first + 1,
            "journal_lag": self._exporter.lag_records if self._exporter is not None else None,
            "journal_lag_bytes": self._exporter.lag_bytes if self._exporter is not None else None,
            "keys": self._sealing.health().summary if self._sealing is not None else "off",
            "adds": "refused: the journal waits for its export" if self._is_behind else "taken",
            "journal_export": self._exporter.failure or "ok" if self._exporter is not None else "off",
            "checks": self.checks.shown() if self.checks is not None else {},
        }


def _settings(changes: object) -> dict[str, Any]:
    if not isinstance(changes, dict):
        raise Invalid(f"settings: must be an object, not {type(changes).__name__}")
    for name in changes:
        if type(name) is not str:
            raise Invalid(f"settings: the name of one is text, not {type(name).__name__}")
    return changes


def _page(names: Iterable[str], after: str | None, limit: int) -> list[str]:
    if after is not None and type(after) is not str:
        raise Invalid(f"after: must be the last name of the page before, not {type(after).__name__}")
    return sorted(name for name in names if after is None or name > after)[:limit]


def check_destroy(name: str, confirm: str, reason: str) -> None:
    """Raise Invalid unless the name is repeated and a reason is given that says something."""
    if confirm != name:
        raise Invalid("confirm: repeat the name of what is to go")
    check_why(reason)


def check_why(reason: str) -> None:
    """Raise Invalid unless a reason is given that says something."""
    if type(reason) is not str or len(reason.strip()) < limits.REASON_CHARS_MIN:
        raise Invalid(f"reason: say why in {limits.REASON_CHARS_MIN} characters or more")
