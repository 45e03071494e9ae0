"""A shard: one store with one writer. Everything that changes goes through the rounds of its loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from tenantq.domain.message import LOCAL, SYSTEM, AddResult, Caller, NewMessage, Outcome, check_batch
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.domain.validation import validated
from tenantq.engine.erasure import TenantErasure
from tenantq.engine.operation import BYTES_PER_COST, PART_BYTES, PART_ITEMS, Operation, parts_of
from tenantq.engine.ops.add import Add, check_batch_bytes, digest_of_batch, refused_add, stored_bytes
from tenantq.engine.ops.lifecycle import PutTenant
from tenantq.engine.queue_snapshots import QueueSnapshots
from tenantq.engine.queue_state import TenantState
from tenantq.engine.reads import Reads
from tenantq.engine.reservation import Reservation
from tenantq.engine.round_loop import RoundLoop
from tenantq.engine.settings import ShardSettings
from tenantq.engine.shard_journal import ShardJournal
from tenantq.engine.state import ShardState
from tenantq.errors import Closed, StoreFailed, TenantqError
from tenantq.runtime.clock import Clock, SystemClock
from tenantq.runtime.loop_slices import next_slice
from tenantq.runtime.randomness import Randomness, system_randomness
from tenantq.store.interface import Beat, OpenStore, Store
from tenantq.store.rocks import RocksStore

_R = TypeVar("_R")
_NOT_OPEN = "the shard is not open yet: use 'async with', or await open() first"


class StoreCheckpoint(msgspec.Struct, frozen=True):
    """A copy of the store by hard links, and when it was taken. Its journal may contain more than was synced then."""

    stage: Path
    taken: Beat


class Shard:
    """The engine of one data directory, used from one event loop.

    Open it with ``async with Shard(path) as shard``. ``submit`` runs an operation and returns its typed reply after the
    sync that makes it durable (with ``durability="os"``: after the write). Reads are in ``reads``, ``journal`` and
    ``snapshots``. Times are milliseconds.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        settings: ShardSettings | None = None,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        name: str = "0",
        first_tenant_id: int = 1,
        probe: Callable[[str], None] = lambda _: None,
        open_store: OpenStore | None = None,
    ) -> None:
        """Prepare a shard; ``open`` does the work. ``probe`` is called at the named points of a round, for crash tests.

        A new store numbers its tenants from ``first_tenant_id`` on. ``open_store`` None: an embedded store in ``path``.
        """
        self.path = Path(path)
        self.settings = validated(settings or ShardSettings())
        self.name = name  # every row of the journal contains it
        self._clock = clock or SystemClock()
        self._randomness = randomness or system_randomness()
        self._first_tenant_id = first_tenant_id
        self._probe = probe
        self._open_store = open_store or self._open_embedded
        self._rounds: RoundLoop | None = None
        self._close_task: asyncio.Future[None] | None = None

    # ---- opening and closing ----

    async def open(self) -> None:
        """Open or create the store, load the state kept in memory, and start serving."""
        store = await self._open_store(self.name)
        loop: RoundLoop | None = None
        try:
            state = ShardState(
                store, shard=self.name, first_tenant_id=self._first_tenant_id, clock=self._clock,
                randomness=self._randomness, settings=self.settings,
            )  # fmt: skip
            loop = RoundLoop(state, self._probe)
            if state.catalog.is_new:
                await loop.submit(PutTenant(state.platform, SYSTEM, DEFAULT_TENANT, {}))
            loop.start()
        except BaseException:
            if loop is not None:
                loop.abort()
            store.close()
            raise
        self._rounds = loop

    async def _open_embedded(self, _: str) -> Store:
        return RocksStore(self.path, memory_bytes=self.settings.memory_bytes)

    async def close(self) -> None:
        """Finish what waits in the lines, sync, and close the store. Leases are kept.

        Cancelling the caller does not stop the closing.
        """
        if self._rounds is None:
            return
        if self._close_task is None:
            self._close_task = asyncio.ensure_future(self._finish_and_close(self._rounds))
        await asyncio.shield(self._close_task)

    async def _finish_and_close(self, loop: RoundLoop) -> None:
        await loop.finish()
        self.snapshots.close_all()
        loop.close_store()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- operations ----

    @cached_property
    def loop(self) -> RoundLoop:
        """The loop that runs the rounds, once the shard is open."""
        if self._rounds is None:
            raise Closed(_NOT_OPEN)
        return self._rounds

    @cached_property
    def state(self) -> ShardState:
        """The shard's state, once it is open; to be read, not changed."""
        return self.loop.state

    @property
    def failure(self) -> StoreFailed | None:
        """Why the shard stopped, if it did."""
        return self._rounds.failure if self._rounds is not None else None

    @cached_property
    def reads(self) -> Reads:
        """Reads of messages, results and figures."""
        return Reads(self.loop)

    @cached_property
    def journal(self) -> ShardJournal:
        return ShardJournal(self.loop)

    @cached_property
    def snapshots(self) -> QueueSnapshots:
        return QueueSnapshots(self.loop)

    @cached_property
    def erasure(self) -> TenantErasure:
        return TenantErasure(self.loop, self.journal, self.snapshots.close_tenant)

    def tenant(self, name: str) -> TenantState:
        """Return a tenant, to name it in an operation. Raises NotFound, or Invalid if the name is not text."""
        return self.state.catalog.tenant(name)

    def owner(self, tenant: str | None) -> TenantState:
        """Return a tenant, or for None the platform, whose operations wait in a line of their own."""
        return self.state.catalog.tenant(tenant) if tenant is not None else self.state.platform

    def submit(self, operation: Operation[_R]) -> Coroutine[Any, Any, _R]:
        """Run an operation, a large batch in parts; await its reply, which comes once it is durable.

        Raises what the operation raises, Busy if its tenant has too many operations waiting, and StoreFailed or Closed
        if the shard has stopped.
        """
        if operation.cost > PART_ITEMS and (parts := operation.parts()):
            batch: Any = parts  # only operations on many leases or messages have parts
            return self.loop.submit_parts(batch, lambda error: Outcome(False, error))  # type: ignore[return-value]
        return self.loop.submit(operation)

    # ---- messages ----

    async def add(
        self,
        tenant: str,
        queue: str,
        messages: Sequence[NewMessage | TenantqError],
        caller: Caller = LOCAL,
        *,
        batch_key: str | None = None,
        batch_digests: tuple[bytes, ...] = (),
        encrypted_plain: bool = False,
        reservation: Reservation | None = None,
    ) -> list[AddResult]:
        """Add messages to a queue; one reply per message, in order. A large batch is added in parts. See ``Add``."""
        loop, owner = self.loop, self.loop.state.catalog.tenant(tenant)
        check_batch("messages", messages)
        batch = len(messages)
        if batch <= PART_ITEMS:
            operation = Add(
                owner, caller, queue, messages, batch_key=batch_key, batch_digests=batch_digests,
                encrypted_plain=encrypted_plain, reservation=reservation,
            )  # fmt: skip
            if batch == 1 or operation.cost < batch + PART_BYTES / BYTES_PER_COST:
                return await loop.submit(operation)
        parts = parts_of([stored_bytes(one) for one in messages])
        check_batch_bytes(sum(one.size for one in messages if type(one) is NewMessage and type(one.body) is bytes))
        has_ids = any(isinstance(one, NewMessage) and one.raw_id is not None for one in messages)  # then do not wait
        adds: list[Add] = []
        for part in parts:
            add = Add(
                owner, caller, queue, messages[part], batch_key=batch_key, batch_digests=batch_digests,
                encrypted_plain=encrypted_plain, start=part.start, total=batch, reservation=reservation,
            )  # fmt: skip
            adds.append(add)
            if add.cost > PART_ITEMS and not has_ids:
                await next_slice()
        if batch_key is not None and not batch_digests:
            digests = (await asyncio.to_thread(digest_of_batch, adds),)
            for add in adds:
                add.batch_digests = digests
        return await loop.submit_parts([(add, len(add.bodies)) for add in adds], refused_add)

    # ---- copies ----

    async def checkpoint(self) -> StoreCheckpoint:
        """Copy the store by hard links, with everything acknowledged so far. One at a time; the caller removes it."""
        loop = self.loop
        await loop.synced()
        stage = await loop.background.begin(loop.state.store.files.checkpoint)
        return StoreCheckpoint(stage, loop.state.shard_clock.beat(loop.state.journal.synced_seq))
