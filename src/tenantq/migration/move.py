"""A migration from plan to cut-over. Every step can be interrupted; the next run continues."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from tenantq.errors import Conflict, Unavailable
from tenantq.migration.endpoint import Endpoint
from tenantq.migration.plan import MigrationPlan, make_plan, moving_queues
from tenantq.migration.queue_transfer import QueueTransfer, TransferResult
from tenantq.migration.source import SourceFence
from tenantq.migration.target import MigrationTarget
from tenantq.runtime.clock import Clock
from tenantq.wire.access import CreatedKey
from tenantq.wire.queues import QueueReply
from tenantq.wire.tenants import TenantReply

MigrationStage = Literal["plan", "fence", "copy", "verify", "cut over", "done"]
_TRANSFERS_MAX: Final = 3  # attempts to transfer a queue whose export breaks off
_EXPIRY_MARGIN_MS: Final = 60_000
"""Messages that expire within this time are not compared, because one side may have dropped them already."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between source and target."""

    queue: str
    what: str  # messages, bytes, results or ids
    source: int | str
    target: int | str


class NotSame(Conflict):
    """Source and target differ. Nothing was cut over."""

    def __init__(self, found: list[Difference]) -> None:
        shown = "; ".join(f"{one.queue}: {one.what} {one.source} and {one.target}" for one in found[:5])
        super().__init__(f"source and target differ; nothing was cut over: {shown}")
        self.found = found


class LeasesLeft(Conflict):
    """Messages are still leased at the source."""


class MovedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new API key at the target. Its token is stored nowhere else."""

    name: str
    key_id: str
    token: str


class MigrationResult(msgspec.Struct, kw_only=True):
    """The result of a migration."""

    messages: int = 0
    bytes: int = 0
    skipped_parts: int = 0
    queues: int = 0
    grants: int = 0
    keys: list[MovedKey] = []
    keys_there: list[str] = []  # names that already exist at the target
    source: Literal["suspended", "deleted"] = "suspended"


def _nothing(*_: object) -> None:
    pass


class Migration:
    """Moves one tenant, or some of its queues. Progress goes to the callbacks, which must not block."""

    def __init__(
        self,
        source: Endpoint,
        target: Endpoint,
        *,
        queues: Sequence[str] = (),
        delete_source: bool = False,
        clock: Clock,
        pause: Callable[[int], None],
        on_stage: Callable[[MigrationStage], None] = _nothing,
        on_leases: Callable[[int, int], None] = _nothing,
        on_copy: Callable[[str, int, int], None] = _nothing,
        on_step: Callable[[str], None] = _nothing,
    ) -> None:
        """``on_leases`` gets leases and milliseconds left, ``on_copy`` a queue, messages and bytes; ``on_step`` what is done next."""
        self.source = source
        self.target = target
        self._only = queues
        self._delete_source = delete_source
        self._clock = clock
        self._pause = pause
        self._on_stage, self._on_leases, self._on_copy, self._on_step = on_stage, on_leases, on_copy, on_step
        self.stage: MigrationStage = "plan"

    def plan(self) -> MigrationPlan:
        """Return what would move and what prevents it."""
        self._enter("plan")
        return make_plan(self.source, self.target, self._only, delete_source=self._delete_source)

    def run(self, plan: MigrationPlan, *, settle_ms: int, end_leases: bool) -> MigrationResult:
        """Do the remaining steps. Leases that outlast ``settle_ms`` are ended with ``end_leases``, else LeasesLeft is raised."""
        if plan.obstacles:
            raise Conflict(f"the move is blocked: {'; '.join(plan.obstacles)}")
        done = MigrationResult(queues=len(plan.queues))
        with self.source.naming_errors():
            facts, there = self.source.tenant.get(), self.source.queues()
        names, _ = moving_queues(there, self._only)
        fence, filling = self._parts(names)
        if plan.state != "cut over":
            self._fence(fence, filling, plan, settle_ms, end_leases=end_leases)
            self._copy(filling, facts, names, done)
            self._verify(names)
        self._cut_over(fence, filling, facts)
        return done

    def new_keys(self, done: MigrationResult) -> None:
        """Create API keys at the target with the names and rights of the source's. Existing names are skipped."""
        self._on_step("make keys")
        with self.source.naming_errors():
            keys = self.source.tenant.keys()
            now = self.source.now()
            wanted = [
                one for one in keys if one.revoked_at is None and (one.expires_at is None or one.expires_at > now)
            ]
        with self.target.naming_errors():
            keys = self.target.tenant.keys()
            there = {one.name for one in keys if one.revoked_at is None}
            for one in wanted:
                if one.name in there:
                    done.keys_there = [*done.keys_there, one.name]
                    continue
                made: CreatedKey = self.target.tenant.create_key(
                    one.name, role=one.role, actions=one.actions, queues=one.queues, expires_at=one.expires_at
                )
                done.keys = [*done.keys, MovedKey(name=one.name, key_id=made.key_id, token=made.token)]

    def delete(self, done: MigrationResult, reason: str) -> None:
        """Delete the source after the cut-over."""
        self._on_step("delete the source")
        with self.source.naming_errors():
            if not self._only:
                self.source.tenant.delete(confirm=self.source.name, reason=reason)
            else:
                for name in moving_queues(self.source.queues(), self._only)[0]:
                    self.source.queue(name).delete(confirm=name, reason=reason, force=True)
        done.source = "deleted"

    # ---- the steps ----

    def _parts(self, names: Sequence[str]) -> tuple[SourceFence, MigrationTarget]:
        whole_tenant = not self._only
        return (
            SourceFence(self.source, self.target, names, whole_tenant=whole_tenant),
            MigrationTarget(self.source, self.target, whole_tenant=whole_tenant),
        )

    def _enter(self, stage: MigrationStage) -> None:
        self.stage = stage
        self._on_stage(stage)

    def _fence(
        self, fence: SourceFence, filling: MigrationTarget, plan: MigrationPlan, settle_ms: int, *, end_leases: bool
    ) -> None:
        self._enter("fence")
        if plan.state == "new" and filling.is_begun():
            self._on_step("empty the target")  # of a run that was aborted while the target was unreachable
            filling.empty()
        if fence.is_frozen():
            return
        self._on_step("close the source")
        fence.close()
        left = fence.settle(self._clock, settle_ms, self._pause, self._on_leases)
        if left and not end_leases:
            raise LeasesLeft(
                f"{left} messages are still leased at the source. Run the command again to wait for them, or redeliver them"
                " at the target with --end-leases"
            )
        self._on_step("freeze the source")
        fence.freeze()

    def _copy(self, filling: MigrationTarget, facts: TenantReply, names: Sequence[str], done: MigrationResult) -> None:
        self._enter("copy")
        self._on_step("make the target")
        filling.begin(facts)
        with self.source.naming_errors():
            there = self.source.queues()
        for name in names:
            self._on_step(f"make queue {name}")
            filling.make_queue(there[name])
            self._on_step(f"copy queue {name}")
            copied = self._copy_queue(there[name], done)
            done.messages += copied.messages
            done.bytes += copied.bytes
            done.skipped_parts += copied.skipped
            if copied.unreadable:
                raise Conflict(
                    f"{copied.unreadable} messages of queue {name} cannot be decrypted with any key of the source and would be"
                    " lost. Undo the move with --abort, remove these messages, and start again",
                    queue=name,
                )
        if not self._only:
            self._on_step("copy grants")
            done.grants = filling.copy_grants()

    def _copy_queue(self, queue: QueueReply, done: MigrationResult) -> TransferResult:
        """Transfer one queue. An interrupted export is repeated; the target knows which parts it has."""
        attempts = 0
        while True:
            attempts += 1
            copy = QueueTransfer(
                self.source, self.target, queue.name,
                lambda messages, size: self._on_copy(queue.name, done.messages + messages, done.bytes + size),
            )  # fmt: skip
            try:
                return copy.run()
            except Unavailable:
                if attempts == _TRANSFERS_MAX:
                    raise
                self._pause(1_000)

    def _verify(self, names: Sequence[str]) -> None:
        self._enter("verify")
        found = differences(self.source, self.target, names)
        if found:
            raise NotSame(found)

    def _cut_over(self, fence: SourceFence, filling: MigrationTarget, facts: TenantReply) -> None:
        self._enter("cut over")
        self._on_step("mark the source as moved")
        fence.mark_moved()
        if not self._only:
            self._on_step("hold the target")
            filling.copy_hold(facts)
        self._on_step("open the target")
        filling.open()
        self._enter("done")

    def where(self) -> dict[str, Any]:
        """Return the state of both sides, as far as they are reachable."""
        found: dict[str, Any] = {"stage": self.stage}
        for side in (self.source, self.target):
            try:
                facts = side.find_tenant()
            except Exception as error:  # noqa: BLE001  # this is only a report
                found[side.label] = f"cannot be asked: {error}"
                continue
            if facts is None:
                found[side.label] = f"has no tenant {side.name}"
            else:
                why = facts.suspension.reason if facts.suspension is not None else ""
                found[side.label] = f"tenant {side.name} is {facts.status}{f': {why}' if why else ''}"
        return found


def differences(source: Endpoint, target: Endpoint, queues: Iterable[str]) -> list[Difference]:
    with source.naming_errors():
        now = source.now()
    with target.naming_errors():
        now = max(now, target.now())
    found = []
    for name in queues:
        with source.naming_errors():
            here = source.queue(name).digest(at=now + _EXPIRY_MARGIN_MS)
        with target.naming_errors():
            there = target.queue(name).digest(at=now + _EXPIRY_MARGIN_MS)
        if here.digest == there.digest and here.messages == there.messages:
            continue
        unlike = [what for what in ("messages", "bytes", "results") if getattr(here, what) != getattr(there, what)]
        found += [
            Difference(queue=name, what=what, source=getattr(here, what), target=getattr(there, what))
            for what in unlike
        ]
        if not unlike:
            found.append(Difference(queue=name, what="ids", source=here.digest, target=there.digest))
    return found
