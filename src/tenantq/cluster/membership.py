"""Membership of one process in a cluster: its heartbeats, its share of the shards, and assigning while it is elected.

Everything that members agree on is a row in the store. A member that cannot reach the registry keeps serving the shards
that it owns, since each shard's ownership is renewed and fenced by rows of its own.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

import msgspec

from tenantq.cluster.assignment import eligible, isolated, plan_assignment
from tenantq.cluster.liveness import Liveness
from tenantq.cluster.registry import Registry, ShardHolder
from tenantq.domain.cluster_view import ClusterView, Heartbeats, Member
from tenantq.errors import NotFound, StoreFormat, StoreLocked, TenantqError
from tenantq.runtime.backoff import Backoff
from tenantq.runtime.clock import Clock, sleep_ms
from tenantq.runtime.futures import wake
from tenantq.runtime.histogram import Histogram

log = logging.getLogger("tenantq.cluster")
R = TypeVar("R")

HEARTBEAT_MS: Final = 400
BUSY_MS: Final = 100
"""Interval of heartbeats while shards are on their way to or from this member."""

SPACING_MS: Final = 40
"""Least time between two heartbeats, however many events ask for one."""

DEAD_MS: Final = 1_600
"""A member without a new heartbeat for this long is dead, and its shards are assigned to others."""

ASSIGNER_MS: Final = 1_600
"""Lease of the assigner."""

JOIN_DELAY_MS: Final = 5_000
"""Shards move for balance only after all members have been stable for this long, so that a rolling start moves each once."""

COOLDOWN_MS: Final = 2_000
"""Pause between two steps that move shards for balance."""

FORGET_MS: Final = 60_000
"""The row of a dead member is deleted after this long."""

RETRY_MS: Final = 40
"""Interval of attempts to own a shard that its last owner has not released yet."""

REFUSED: Final = Backoff(base_ms=400, max_ms=3_000)
"""Delays between attempts to open a shard that cannot be opened."""

CANNOT_OPEN_MS: Final = 30_000
"""For how long after a failed attempt to open a shard it goes to other members. They may reach a store that this one cannot."""

TAKEN_MS: Final = 250
"""How long a member waits for a successor to own a shard before it releases the next one."""


class MemberNotices(Protocol):
    """Tells other members about changes before their next heartbeat. A lost notice only costs time."""

    def look(self, members: Iterable[str]) -> None:
        """Have other members read the cluster's rows now."""

    def released(self, shard: int, successor: str) -> None:
        """Tell the successor that it can own a shard."""

    def owns(self, shard: int, epoch: int) -> None:
        """Tell all members that this one owns a shard now."""


class Membership:
    """Takes part in a cluster. All methods belong to one event loop; the registry is called on a thread of its own."""

    def __init__(
        self, registry: Registry, holder: ShardHolder, clock: Clock, member: Member, notices: MemberNotices
    ) -> None:
        """Prepare. ``member`` describes this process; its owned shards and loads are filled in from the holder."""
        self._registry, self._holder, self._clock, self._notices = registry, holder, clock, notices
        self.unreachable: Callable[[], tuple[str, ...]] = tuple  # returns the members that this one does not reach
        self._member = member
        self._liveness = Liveness(DEAD_MS, 2 * HEARTBEAT_MS)
        self._thread = ThreadPoolExecutor(1, "tenantq-registry")
        self._view: ClusterView | None = None
        self._listeners: list[Callable[[ClusterView], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._work: dict[int, asyncio.Task[None]] = {}  # by shard: being acquired or released
        self._acquiring: set[int] = set()  # those that are being acquired
        self._asked: set[int] = set()  # ... and whose owners know it
        self._releasing = (
            asyncio.Lock()
        )  # one shard after the other: each is then without an owner for the shortest time
        self._taken: dict[int, asyncio.Future[None]] = {}  # by released shard: done when its successor owns it
        self._beat_ms = 0  # when the last heartbeat began
        self._stop = self._closed = False
        self._wake = asyncio.Event()
        self._stable_since_ms = clock.monotonic_ms()
        self._moved_ms = clock.monotonic_ms()
        self._known: frozenset[tuple[str, bool]] = frozenset()  # members and whether each drains
        self._dead_since_ms: dict[str, int] = {}
        self.problem = ""  # why the registry cannot be reached; empty if it can
        self.handovers = 0  # shards released to a successor
        self.handovers_took = Histogram()  # from the first refused call until the successor owned the shard
        self.takeovers = 0  # shards acquired
        self._cannot_open: dict[int, int] = {}  # by shard that could not be opened: until when others should have it
        self.refusals: dict[int, str] = {}  # by shard that this member should own: why it cannot be opened

    @property
    def id(self) -> str:
        """The id of this member."""
        return self._member.id

    @property
    def region(self) -> str:
        """The region of this member."""
        return self._member.region

    @property
    def view(self) -> ClusterView:
        """The cluster as of the last heartbeat that the store answered."""
        assert self._view is not None, "not started"
        return self._view

    def on_change(self, listener: Callable[[ClusterView], None]) -> None:
        """Call ``listener`` with every new view."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Join the cluster: return when the first heartbeat is written. Raises StoreFailed if that fails."""
        self._member = msgspec.structs.replace(self._member, joined_at=self._clock.wall_ms())
        await self._beat()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def drain(self, timeout_ms: int) -> bool:
        """Hand all shards over to other members; return whether none is left. No shard comes back afterwards."""
        self._member = msgspec.structs.replace(self._member, draining=True)
        ends_ms = self._clock.monotonic_ms() + timeout_ms
        while (self._has_successors() or self._releases()) and self._clock.monotonic_ms() < ends_ms:
            self.hurry()
            await sleep_ms(self._clock, RETRY_MS)
        return not self._holder.owned()

    def _releases(self) -> list[asyncio.Task[None]]:
        """Return the handovers in progress: their shards serve no longer, and successors wait for them."""
        return [work for shard, work in self._work.items() if shard not in self._acquiring]

    def _has_successors(self) -> bool:
        return any(one.id != self.id for shard in self._holder.owned() for one in eligible(self.view, shard))

    async def close(self) -> None:
        """Stop taking part and delete this member's row. Shards that are still owned are the holder's to close.

        A second call does nothing.
        """
        if self._closed:
            return
        self._closed = self._stop = True
        self.hurry()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        releases = self._releases()
        for work in self._work.values():
            if work not in releases:
                work.cancel()
        await asyncio.gather(*self._work.values(), return_exceptions=True)
        try:
            await self._call(lambda: self._registry.leave(self.id))
        except TenantqError as error:
            log.warning("this member's row remains until others delete it: %s", error)
        self._registry.close()
        self._thread.shutdown(wait=False)

    async def request_drain(self, member_id: str, *, drain: bool) -> None:
        """Drain a member, or undo a drain. Raises NotFound if it is not alive."""
        if member_id not in self.view.members:
            raise NotFound(f"member {member_id[:40]!r} is not alive. List the members with 'tenantq cluster members'.")
        await self._call(lambda: self._registry.request_drain(member_id, drain=drain))
        self.hurry()

    def hurry(self) -> None:
        """Send the next heartbeat now."""
        self._wake.set()

    def taken(self, shard: int) -> None:
        """Note that another member owns a shard now."""
        if shard in self._taken:
            wake(self._taken[shard])
        if self._view is not None and self._view.assigner == self.id:
            self.hurry()  # the next shards can move

    # ---- heartbeats ----

    async def _run(self) -> None:
        while not self._stop:
            try:
                await self._pause()
                if not self._stop:
                    await self._beat()
            except StoreFormat as error:
                if self.problem != error.message:
                    log.error("this server does not take part in its cluster: %s", error)  # noqa: TRY400  # the text says it
                self.problem = error.message
                self._view = msgspec.structs.replace(self.view, assignment={})  # these shards are not this cluster's
            except TenantqError as error:
                if not self.problem:
                    log.warning("cannot reach the cluster registry; this server keeps serving its shards: %s", error)
                self.problem = error.message
            except Exception as error:  # without heartbeats, its shards could be neither reached nor taken over
                log.exception("a heartbeat failed; the next one follows")
                self.problem = str(error) or type(error).__name__

    async def _pause(self) -> None:
        timer = self._clock.call_later(BUSY_MS if self._work else HEARTBEAT_MS, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        early_ms = self._beat_ms + SPACING_MS - self._clock.monotonic_ms()
        if early_ms > 0:
            await sleep_ms(self._clock, early_ms)
        self._wake.clear()

    async def _beat(self) -> None:
        """Write this member's row, read all others, and act on what they say."""
        self._beat_ms = self._clock.monotonic_ms()
        owned, loads = self._holder.owned(), self._holder.loads()
        acquiring = {shard for shard in self._acquiring & self._holder.waiting() if self._is_assigned(shard)}
        cannot_open = tuple(
            shard for shard, until_ms in self._cannot_open.items() if until_ms > self._beat_ms and shard not in owned
        )
        row = msgspec.structs.replace(
            self._member,
            owned=owned,
            acquiring=tuple(acquiring),
            cannot_open=cannot_open,
            loads=loads,
            unreachable=self.unreachable(),
        )
        rows = await self._call(lambda: self._registry.heartbeat(row, ASSIGNER_MS))
        if self.problem:
            log.info("the cluster registry can be reached again")
            self.problem = ""
        view = self._judge(rows)
        if view.assigner == self.id:
            view = await self._assign(view)
        self._view = view
        for shard in self._taken:
            if (owner := view.owner_of(shard)) is not None and owner.id != self.id:
                self.taken(shard)
        self._ask_owners(view, acquiring)
        self._reconcile(view)
        for listener in self._listeners:
            listener(view)

    def _judge(self, rows: Heartbeats) -> ClusterView:
        """Return the view, without the members that are dead."""
        now_ms = self._clock.monotonic_ms()
        alive = self._liveness.observe(now_ms, rows.beats) | {self.id}
        members = {
            id: msgspec.structs.replace(one, draining=True) if id in rows.drains else one
            for id, one in rows.members.items()
            if id in alive
        }
        for id in rows.members.keys() - members.keys() - self._dead_since_ms.keys():
            log.warning("member %s at %s is dead", id, rows.members[id].peer_address)
            self._dead_since_ms[id] = now_ms
        self._dead_since_ms = {
            id: since for id, since in self._dead_since_ms.items() if id in rows.members and id not in members
        }
        known = frozenset((id, one.draining) for id, one in members.items())
        if known != self._known:
            self._known, self._stable_since_ms = known, now_ms
        return ClusterView(
            cluster=rows.cluster,
            members=members,
            assignment=rows.assignment,
            assigner=rows.assigner,
            directory_version=rows.directory_version,
            isolated=isolated(members.values()),
        )

    # ---- assigning ----

    async def _assign(self, view: ClusterView) -> ClusterView:
        """As the elected assigner: write the next changes of the assignment, and return the view with them."""
        now_ms = self._clock.monotonic_ms()
        may_rebalance = now_ms - self._stable_since_ms >= JOIN_DELAY_MS and now_ms - self._moved_ms >= COOLDOWN_MS
        plan = plan_assignment(view, may_rebalance=may_rebalance)
        forget = [id for id, since in self._dead_since_ms.items() if now_ms - since >= FORGET_MS]
        if not plan.changes and not forget:
            return view
        if not await self._call(lambda: self._registry.assign(self.id, plan.changes, forget)):
            return view
        self._moved_ms = now_ms
        before = {view.assignment[shard] for shard in plan.changes.keys() & view.assignment.keys()}
        self._notices.look({*plan.changes.values(), *before} - {self.id})
        log.info("assigned shards", extra={"shards": sorted(plan.changes), "rebalanced": plan.rebalanced})
        return msgspec.structs.replace(view, assignment={**view.assignment, **plan.changes})

    # ---- this member's shards ----

    def _reconcile(self, view: ClusterView) -> None:
        """Start to acquire assigned shards, and to release shards that another member is ready to take.

        A shard is released only when its successor, and no other member, reports that it is prepared and waiting, so that the
        shard is without an owner only for a moment.
        """
        owned = self._holder.owned()
        for shard, wanted in view.assignment.items():
            if shard in self._work or self._stop:
                continue
            if wanted == self.id and shard not in owned:
                self._acquiring.add(shard)
                self._begin(shard, self._acquire(shard))
            elif shard in owned and self._successor(view, shard) is not None:
                self._begin(shard, self._release(shard))

    def _is_assigned(self, shard: int) -> bool:
        """Return whether this member should own a shard. Safe from any thread."""
        return not self._stop and self.view.assignment.get(shard) == self.id

    def _successor(self, view: ClusterView, shard: int) -> Member | None:
        """Return the member that can have a shard of this one now; None: it is not prepared, or another one may be first."""
        waiting = view.waiting_for(shard) - {self.id}  # its own row may still say that it waits for the shard
        return view.members[view.assignment[shard]] if waiting == {view.assignment.get(shard)} else None

    def _ask_owners(self, view: ClusterView, acquiring: set[int]) -> None:
        """Have the owners of shards read that this member is ready to take them."""
        owners = {owner.id for shard in acquiring - self._asked if (owner := view.owner_of(shard)) is not None}
        self._asked = acquiring
        self._notices.look(owners - {self.id})

    def _begin(self, shard: int, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work[shard] = task
        task.add_done_callback(lambda _: self._done(shard))

    def _done(self, shard: int) -> None:
        del self._work[shard]
        self.refusals.pop(shard, None)
        self._acquiring.discard(shard)
        self.hurry()  # others learn the new owner from this member's row

    async def _acquire(self, shard: int) -> None:
        """Own a shard; try again while its last owner has not released it and this member should have it."""
        refused = 0
        while self._is_assigned(shard):
            try:
                await self._holder.acquire(shard, lambda: self._is_assigned(shard))
            except StoreLocked:
                await sleep_ms(self._clock, RETRY_MS)
            except TenantqError as error:
                if shard not in self.refusals:  # further attempts are not logged
                    log.error("shard %d cannot be opened here: %s", shard, error)  # noqa: TRY400  # the text says it
                self.refusals[shard] = error.message
                self._cannot_open[shard] = self._clock.monotonic_ms() + CANNOT_OPEN_MS
                refused += 1
                await sleep_ms(self._clock, int(REFUSED.ceiling_ms(refused)))
            except Exception:
                log.exception("shard %d cannot be opened here after an internal error", shard)
                await sleep_ms(self._clock, 100 * RETRY_MS)
            else:
                self._cannot_open.pop(shard, None)
                if self.refusals.pop(shard, None) is not None:
                    log.info("shard %d is open now", shard)
                self.takeovers += 1
                self._notices.owns(shard, self._holder.owned().get(shard, 0))
                return

    async def _release(self, shard: int) -> None:
        """Hand a shard over, and then rest for as long as that took: servers that share processors serve meanwhile."""
        try:
            async with self._releasing:
                successor = self._successor(self.view, shard)
                if self._stop or successor is None:
                    return
                self._taken[shard] = asyncio.get_running_loop().create_future()
                began_ms = self._clock.monotonic_ms()
                refused_at = await self._holder.release(shard, successor)
                self._notices.released(shard, successor.id)
                self.handovers += 1
                await asyncio.wait([self._taken[shard]], timeout=TAKEN_MS / 1_000)
                self.handovers_took.count(int((asyncio.get_running_loop().time() - refused_at) * 1_000_000))
                await sleep_ms(self._clock, min(TAKEN_MS, self._clock.monotonic_ms() - began_ms))
        except TenantqError as error:
            log.error("shard %d was not released cleanly: %s", shard, error)  # noqa: TRY400  # the text says it
        except Exception:
            log.exception("shard %d was not released cleanly after an internal error", shard)
        finally:
            self._taken.pop(shard, None)

    async def _call(self, function: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)
