"""A move from its beginning to its end, one step after the other; each can be broken off and is gone on with by the next run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from tenantq.errors import Conflict, Unavailable
from tenantq.migration.copying import Copied, QueueCopy
from tenantq.migration.fence import Fence
from tenantq.migration.filling import Filling
from tenantq.migration.plan import make_plan, moving_queues
from tenantq.migration.verify import Difference, differences

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenantq.migration.plan import Plan
    from tenantq.migration.sides import Side
    from tenantq.runtime.clock import Clock
    from tenantq.wire import CreatedKey, QueueReply, TenantReply

Stage = Literal["plan", "fence", "copy", "verify", "cut over", "done"]
_TRIES: Final = 3  # of copying a queue whose export breaks off


class NotSame(Conflict):
    """The two sides do not hold the same. Nothing was cut over."""

    def __init__(self, found: list[Difference]) -> None:
        told = "; ".join(f"{one.queue}: {one.what} {one.source} and {one.target}" for one in found[:5])
        super().__init__(f"source and target do not hold the same, and nothing was cut over: {told}")
        self.found = found


class LeasesLeft(Conflict):
    """Messages are still leased at the source."""


class MovedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new API key at the target; its token is nowhere else."""

    name: str
    key_id: str
    token: str


class Outcome(msgspec.Struct, kw_only=True):
    """What was done."""

    messages: int = 0
    bytes: int = 0
    skipped_parts: int = 0
    queues: int = 0
    grants: int = 0
    keys: list[MovedKey] = []
    keys_there: list[str] = []  # names that the target has already: nothing was made
    source: Literal["suspended", "deleted"] = "suspended"


def _nothing(*_: object) -> None:
    pass


class Migration:
    """Moves one tenant, or some queues of it. What is told on the way goes to the callables; none of them may take long."""

    def __init__(
        self,
        source: Side,
        target: Side,
        *,
        queues: Sequence[str] = (),
        delete_source: bool = False,
        clock: Clock,
        pause: Callable[[int], None],
        on_stage: Callable[[Stage], None] = _nothing,
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
        self.stage: Stage = "plan"

    def plan(self) -> Plan:
        """Return what would move and what stands in the way."""
        self._enter("plan")
        return make_plan(self.source, self.target, self._only, delete_source=self._delete_source)

    def run(self, plan: Plan, *, settle_ms: int, end_leases: bool) -> Outcome:
        """Do what is left to do. Leases that outlast ``settle_ms`` end with ``end_leases``, else LeasesLeft is raised."""
        if plan.obstacles:
            raise Conflict(f"it cannot be moved: {'; '.join(plan.obstacles)}")
        done = Outcome(queues=len(plan.queues))
        with self.source.calling():
            facts, there = self.source.tenant.get(), self.source.queues()
        names, _ = moving_queues(there, self._only)
        fence, filling = self._parts(names)
        if plan.state != "cut over":
            self._fence(fence, filling, plan, settle_ms, end_leases=end_leases)
            self._copy(filling, facts, names, done)
            self._verify(names)
        self._cut_over(fence, filling, facts)
        return done

    def new_keys(self, done: Outcome) -> None:
        """Make API keys at the target with the names and rights of the source's; a name that is there already is left alone."""
        self._on_step("make keys")
        with self.source.calling():
            keys = self.source.tenant.keys()
            now = self.source.now()
            wanted = [
                one for one in keys if one.revoked_at is None and (one.expires_at is None or one.expires_at > now)
            ]
        with self.target.calling():
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

    def delete(self, done: Outcome, reason: str) -> None:
        """Delete the source, which was verified and cut over."""
        self._on_step("delete the source")
        with self.source.calling():
            if not self._only:
                self.source.tenant.delete(confirm=self.source.name, reason=reason)
            else:
                for name in moving_queues(self.source.queues(), self._only)[0]:
                    self.source.queue(name).delete(confirm=name, reason=reason, force=True)
        done.source = "deleted"

    # ---- the steps ----

    def _parts(self, names: Sequence[str]) -> tuple[Fence, Filling]:
        whole = not self._only
        return (
            Fence(self.source, self.target, names, whole=whole),
            Filling(self.source, self.target, names, whole=whole),
        )

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        self._on_stage(stage)

    def _fence(self, fence: Fence, filling: Filling, plan: Plan, settle_ms: int, *, end_leases: bool) -> None:
        self._enter("fence")
        if plan.state == "new" and filling.is_begun():
            self._on_step("empty the target")  # of a move that was undone while the target was away
            filling.empty()
        if fence.is_frozen():
            return
        self._on_step("close the source")
        fence.close()
        left = fence.settle(self._clock, settle_ms, self._pause, self._on_leases)
        if left and not end_leases:
            raise LeasesLeft(
                f"{left} messages are still leased at the source; run it again to wait for them, or let them be delivered"
                " again at the target with --end-leases"
            )
        self._on_step("freeze the source")
        fence.freeze()

    def _copy(self, filling: Filling, facts: TenantReply, names: Sequence[str], done: Outcome) -> None:
        self._enter("copy")
        self._on_step("make the target")
        filling.begin(facts)
        with self.source.calling():
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
                    f"{copied.unreadable} messages of queue {name} cannot be opened with any key of the source, and would be"
                    " lost: give the move up with --abort, remove them, and begin again",
                    queue=name,
                )
        if not self._only:
            self._on_step("copy grants")
            done.grants = filling.copy_grants()

    def _copy_queue(self, queue: QueueReply, done: Outcome) -> Copied:
        """Copy one queue; an export that breaks off is taken up again, since the target knows what it has."""
        tries = 0
        while True:
            tries += 1
            copy = QueueCopy(
                self.source, self.target, queue.name,
                lambda messages, size: self._on_copy(queue.name, done.messages + messages, done.bytes + size),
            )  # fmt: skip
            try:
                return copy.run()
            except Unavailable:
                if tries == _TRIES:
                    raise
                self._pause(1_000)

    def _verify(self, names: Sequence[str]) -> None:
        self._enter("verify")
        found = differences(self.source, self.target, names)
        if found:
            raise NotSame(found)

    def _cut_over(self, fence: Fence, filling: Filling, facts: TenantReply) -> None:
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
        """Return in which state both sides are, as far as they can be asked."""
        found: dict[str, Any] = {"stage": self.stage}
        for side in (self.source, self.target):
            try:
                facts = side.found()
            except Exception as error:  # noqa: BLE001  # whatever it is: this only tells
                found[side.label] = f"cannot be asked: {error}"
                continue
            if facts is None:
                found[side.label] = f"has no tenant {side.name}"
            else:
                why = facts.suspension.reason if facts.suspension is not None else ""
                found[side.label] = f"tenant {side.name} is {facts.status}{f': {why}' if why else ''}"
        return found
