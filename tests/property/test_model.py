"""A real shard on a real store against the model: every operation, clock moves, crashes, several tenants."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tenantq.domain.message import NewMessage, Result
from tenantq.engine.ops.redrive import find_redrive
from tenantq.errors import Conflict, LeaseLost, NotFound, StoreFailed
from tenantq.runtime.clock import ManualClock
from tenantq.store.keys import digest
from tenantq.store.redis.store import RedisStore
from tenantq.store.rows import unpack_message
from tenantq.vault.envelope import DataKey
from tests.administration import (
    delete_queue,
    finished,
    pause_queue,
    purge,
    put_data_key,
    put_queue,
    put_tenant,
    unpause_queue,
)
from tests.property.model import Held, Model, ModelQueue
from tests.redis_servers import OnRedis, RedisServer
from tests.shards import data_key_row, examined, freeze, wait_until_idle
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import Coroutine

TENANTS = ("acme", "globex", "default")
QUEUES = ("jobs", "jobs-2", "line.fifo")
TTLS_MS = {("acme", "jobs"): 6_000, ("globex", "line.fifo"): 6_000}  # of queues in which all messages have one
DATA_KEY = DataKey(1, 1, bytes(32))

places = st.tuples(st.sampled_from(TENANTS), st.sampled_from(QUEUES))
any_places = st.tuples(st.sampled_from(TENANTS), st.sampled_from((*QUEUES, "jobs-dlq", "line-dlq.fifo")))
messages = st.builds(
    NewMessage,
    body=st.binary(max_size=20),
    priority=st.integers(0, 9),
    delay_ms=st.sampled_from((0, 0, 0, 1, 500, 3_000)),
    ttl_ms=st.sampled_from((None, None, None, 400, 2_500)),
    key=st.sampled_from((None, None, None, "k1", "k2")),
    group=st.sampled_from((None, None, "a", "b")),
    attributes=st.sampled_from(({}, {"trace": "1"})),
    max_attempts=st.sampled_from((None, None, 1, 2, 0)),
)


class ShardMachine(RuleBasedStateMachine):
    """Drives shard and model side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="tenantq-model-"))
        self.generation = 0
        self.clock = ManualClock()
        self.model = Model()
        self.lost_receipts: list[tuple[str, str, str]] = []
        self.serial = 0

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @initialize()
    def start(self) -> None:
        self.run(self.open())
        self.model.now = self.shard.state.shard_clock.now_ms()
        self.run(self.make_queues())

    async def open(self) -> None:
        path = self.root / str(self.generation)
        shard = Shard(path, clock=self.clock, randomness=random.Random(self.generation), open_store=self.opener(path))
        await shard.open()
        self.shard = shard  # only after it is open: teardown waits for the shard it finds here
        await wait_until_idle(self.shard)

    def opener(self, _: Path) -> OnRedis | None:
        """Return an opener for the store of a directory; None means the embedded store."""
        return None

    async def make_queues(self) -> None:
        for tenant in TENANTS:
            await self.make_tenant(tenant)

    async def make_tenant(self, tenant: str) -> None:
        await put_tenant(self.shard, tenant)
        for number in (0, 1):  # nothing here uses the key, but the doctor checks that it exists
            await put_data_key(self.shard, self.shard.tenant(tenant).id, number, data_key_row(number))
        for name in QUEUES:
            await self.make_queue(tenant, name)

    async def make_queue(self, tenant: str, name: str) -> None:
        await put_queue(
            self.shard,
            tenant,
            name,
            max_attempts=self.model.max_attempts,
            ttl_ms=TTLS_MS.get((tenant, name)),
            dedup_ms=self.model.dedup_ms,
            result_ttl_ms=self.model.result_ttl_ms,
            low_priority_after_ms=10**9,
        )
        self.model.queues[tenant, name] = ModelQueue(name, TTLS_MS.get((tenant, name)))

    # ---- producing ----

    @rule(place=places, batch=st.lists(messages, min_size=1, max_size=5))
    def add(self, place: tuple[str, str], batch: list[NewMessage]) -> None:
        added = self.run(self.shard.add(*place, batch))
        for message, reply in zip(batch, added, strict=True):
            self.note_added(place, message, reply.raw_id, duplicate=reply.duplicate, error=reply.error)

    @rule(place=places, batch=st.lists(messages, min_size=1, max_size=5))
    def add_encrypted(self, place: tuple[str, str], batch: list[NewMessage]) -> None:
        """Add like the service does for an encrypted tenant: first the IDs, then the encryption, then the message."""
        ids = self.shard.state.new_ids(len(batch))
        encrypted = [
            msgspec.structs.replace(
                one, body=DATA_KEY.encrypt(place[1], id, "body", one.body, id[4:]), raw_id=id, encrypted=True,
                digest=digest(one.body),
            )
            for one, id in zip(batch, ids, strict=True)
        ]  # fmt: skip
        added = self.run(self.shard.add(*place, encrypted))
        for plain, message, reply in zip(batch, encrypted, added, strict=True):
            self.note_added(
                place, message, reply.raw_id, duplicate=reply.duplicate, error=reply.error, plaintext=plain.body
            )

    def note_added(
        self,
        place: tuple[str, str],
        message: NewMessage,
        id: bytes,
        *,
        duplicate: bool,
        error: object,
        plaintext: bytes | None = None,
    ) -> None:
        queue, now = self.model.queue(*place), self.model.now
        known = queue.keys.get(message.key) if message.key is not None else None
        said = message.body if plaintext is None else plaintext
        if known is not None:
            if known[1] != said:
                assert isinstance(error, Conflict)
            else:
                assert duplicate
                assert id == known[0]
            return
        assert error is None
        assert not duplicate
        if message.key is not None:
            queue.keys[message.key] = (id, said, now + self.model.dedup_ms)
        visible_at = now + message.delay_ms
        ttl_ms = message.ttl_ms or queue.ttl_ms
        bound = self.model.max_attempts if message.max_attempts is None else message.max_attempts
        assert self.run(self.shard.reads.get(*place, id)).body == message.body
        queue.enter(
            Held(
                id,
                message.body,
                message.priority,
                visible_at,
                visible_at + ttl_ms if ttl_ms else None,
                bound,
                message.group,
                self.stored_size(place, id),
            )
        )

    def stored_size(self, place: tuple[str, str], id: bytes) -> int:
        store = self.shard.state.store
        prefix = self.shard.state.catalog.tenants[place[0]].queues[place[1]].prefix
        value = store.get(store.m, prefix + id)
        assert value is not None
        return unpack_message(value).size

    # ---- consuming ----

    @rule(place=any_places, max=st.integers(1, 6), lease_ms=st.sampled_from((1, 300, 1_000, 60_000)))
    def poll(self, place: tuple[str, str], max: int, lease_ms: int) -> None:
        try:
            got = self.run(self.shard.poll(*place, max=max, lease_ms=lease_ms))
        except NotFound:
            assert place not in self.model.queues
            return
        self.note_delivered(place, got, max, lease_ms)

    def note_delivered(self, place: tuple[str, str], got: list[Any], max: int, lease_ms: int) -> None:
        queue = self.model.queue(*place)
        expected = queue.deliverable(self.model.now)[:max]
        assert [one.raw_id for one in got] == [one.id for one in expected]
        for delivery, held in zip(got, expected, strict=True):
            held.attempts += 1
            held.token = delivery.receipt
            held.deadline = self.model.now + lease_ms
            held.taken_from = held.visible_at
            assert delivery.attempt == held.attempts
            assert (delivery.body, delivery.priority, delivery.group) == (held.body, held.priority, held.group)
            if delivery.encrypted:  # it decrypts, also as a dead letter and after a redrive
                DATA_KEY.decrypt(delivery.origin or delivery.queue, delivery.raw_id, "body", delivery.body)

    @rule(queue=st.sampled_from(("jobs", "jobs-2")), max=st.integers(1, 8))
    def fleet_poll(self, queue: str, max: int) -> None:
        got = self.run(self.shard.fleet_poll(queue, max=max, lease_ms=1_000))
        ready = sum(len(self.model.queue(tenant, queue).deliverable(self.model.now)) for tenant in TENANTS)
        assert len(got) == min(max, ready)
        for tenant in TENANTS:
            mine = [one for one in got if one.tenant == tenant]
            self.note_delivered((tenant, queue), mine, len(mine), 1_000)

    @rule(place=places, batch=st.lists(messages, min_size=1, max_size=3), max=st.integers(1, 4))
    def long_poll_then_add(self, place: tuple[str, str], batch: list[NewMessage], max: int) -> None:
        queue = self.model.queue(*place)
        if queue.deliverable(self.model.now) or queue.paused:
            return

        async def both() -> tuple[Any, Any, bool]:
            poll = asyncio.create_task(self.shard.poll(*place, max=max, wait_ms=100, lease_ms=1_000))
            await wait_until_idle(self.shard)
            assert not poll.done()
            added = await self.shard.add(*place, batch)
            await wait_until_idle(self.shard)
            in_time = poll.done()
            self.clock.advance(100)
            return added, await poll, in_time

        added, got, in_time = self.run(both())
        for message, reply in zip(batch, added, strict=True):
            self.note_added(place, message, reply.raw_id, duplicate=reply.duplicate, error=reply.error)
        assert in_time == bool(queue.deliverable(self.model.now))
        self.note_delivered(place, got, max if in_time else 0, 1_000)
        self.run(wait_until_idle(self.shard))
        self.model.advance(100)

    def current(self, place: tuple[str, str]) -> list[Held]:
        return [one for one in self.model.queue(*place).messages.values() if one.token is not None]

    def choose(self, place: tuple[str, str], data: st.DataObject) -> tuple[ModelQueue, Held] | None:
        if place not in self.model.queues or not self.current(place):
            return None
        return self.model.queue(*place), data.draw(st.sampled_from(self.current(place)))

    @rule(place=any_places, data=st.data(), result=st.sampled_from((None, b"done")))
    def ack(self, place: tuple[str, str], data: st.DataObject, result: bytes | None) -> None:
        chosen = self.choose(place, data)
        if chosen is None:
            return
        queue, held = chosen
        assert held.token is not None
        results = None if result is None else [Result("completed", result)]
        (outcome,) = self.run(self.shard.ack(*place, [held.token], results=results))
        assert outcome.ok
        self.lost_receipts.append((*place, held.token))
        queue.leave(held)
        if result is not None:
            queue.results[held.id] = (result, self.model.now + self.model.result_ttl_ms)

    @rule(place=any_places, data=st.data(), delay_ms=st.sampled_from((0, 200, 2_000)))
    def nack(self, place: tuple[str, str], data: st.DataObject, delay_ms: int) -> None:
        chosen = self.choose(place, data)
        if chosen is None:
            return
        queue, held = chosen
        assert held.token is not None
        (outcome,) = self.run(self.shard.nack(*place, [held.token], delay_ms=delay_ms, reason="model"))
        assert outcome.ok
        self.lost_receipts.append((*place, held.token))
        self.model.give_back(place[0], queue, held, self.model.now + delay_ms)

    @rule(place=any_places, data=st.data())
    def release(self, place: tuple[str, str], data: st.DataObject) -> None:
        chosen = self.choose(place, data)
        if chosen is None:
            return
        queue, held = chosen
        assert held.token is not None
        (outcome,) = self.run(self.shard.release(*place, [held.token]))
        assert outcome.ok
        self.lost_receipts.append((*place, held.token))
        held.token = None
        held.attempts -= 1
        held.visible_at = held.taken_from
        if held.expires_at is not None and held.expires_at <= self.model.now:
            queue.leave(held)

    @rule(place=any_places, data=st.data(), lease_ms=st.sampled_from((1, 700, 5_000)))
    def extend(self, place: tuple[str, str], data: st.DataObject, lease_ms: int) -> None:
        chosen = self.choose(place, data)
        if chosen is None:
            return
        _, held = chosen
        assert held.token is not None
        (outcome,) = self.run(self.shard.extend(*place, [held.token], lease_ms=lease_ms))
        assert outcome.ok
        held.deadline = self.model.now + lease_ms

    @rule(place=any_places, data=st.data())
    def remove(self, place: tuple[str, str], data: st.DataObject) -> None:
        if place not in self.model.queues or not self.model.queue(*place).messages:
            return
        queue = self.model.queue(*place)
        held = data.draw(st.sampled_from(list(queue.messages.values())))
        first, second = self.run(self.shard.remove(*place, [held.id, held.id]))
        assert first.ok
        assert isinstance(second.error, NotFound)
        if held.token is not None:
            self.lost_receipts.append((*place, held.token))
        queue.leave(held)

    @precondition(lambda self: self.lost_receipts)
    @rule(data=st.data())
    def use_a_lost_receipt(self, data: st.DataObject) -> None:
        tenant, queue, receipt = data.draw(st.sampled_from(self.lost_receipts))
        for outcome in (
            *self.run(self.shard.ack(tenant, queue, [receipt])),
            *self.run(self.shard.extend(tenant, queue, [receipt], lease_ms=1_000)),
            *self.run(self.shard.nack(tenant, queue, [receipt])),
        ):
            assert isinstance(outcome.error, LeaseLost)

    @rule(place=any_places, data=st.data(), late_ms=st.sampled_from((0, 1, 50)))
    def settle_after_the_deadline_before_any_sweep(
        self, place: tuple[str, str], data: st.DataObject, late_ms: int
    ) -> None:
        """Receipts are refused from the deadline on, although no sweep has run yet."""
        chosen = self.choose(place, data)
        if chosen is None:
            return
        _, held = chosen
        receipt = held.token
        assert receipt is not None
        ms = held.deadline - self.model.now + late_ms

        async def late() -> list[Any]:
            await wait_until_idle(self.shard)
            self.clock._pass(ms)
            calls = (
                self.shard.ack(*place, [receipt]),
                self.shard.extend(*place, [receipt], lease_ms=1_000),
                self.shard.nack(*place, [receipt]),
            )
            outcomes = [outcome for call in calls for outcome in await call]
            self.clock.advance(0)
            await wait_until_idle(self.shard)
            return outcomes

        for outcome in self.run(late()):
            assert isinstance(outcome.error, LeaseLost)
        self.lost_receipts.append((*place, receipt))
        self.model.advance(ms)

    @rule(place=any_places, max=st.integers(1, 4), ms=st.sampled_from((1, 300, 1_000, 3_000)))
    def poll_in_the_same_round_as_a_sweep(self, place: tuple[str, str], max: int, ms: int) -> None:
        """Poll after a time step and before the sweep: it gets what is ready, and maybe after that what the sweep returns."""
        if place not in self.known():
            return

        async def together() -> list[Any]:
            await wait_until_idle(self.shard)
            self.clock.advance(ms)
            got = await self.shard.poll(*place, max=max, lease_ms=1_000)
            await wait_until_idle(self.shard)
            return got

        swept: set[bytes] = set()
        for queue_place, queue in self.model.queues.items():
            for held in queue.messages.values():
                if held.token is not None and held.deadline <= self.model.now + ms:
                    self.lost_receipts.append((*queue_place, held.token))
                    swept.add(held.id)
        got = self.run(together())
        self.model.advance(ms)
        queue = self.model.queue(*place)
        deliverable = {held.id: held for held in queue.deliverable(self.model.now)}
        order = list(deliverable)
        for was_swept in (False, True):
            positions = [order.index(one.raw_id) for one in got if (one.raw_id in swept) is was_swept]
            assert positions == sorted(positions)
        for one in got:
            held = deliverable[one.raw_id]
            held.attempts += 1
            held.token, held.deadline, held.taken_from = one.receipt, self.model.now + 1_000, held.visible_at
            assert one.attempt == held.attempts

    # ---- time, control, crashes ----

    @rule(ms=st.sampled_from((1, 100, 999, 3_000, 60_000)))
    def advance(self, ms: int) -> None:
        self.run(self.let_pass(ms))
        for place, queue in self.model.queues.items():
            for held in queue.messages.values():
                if held.token is not None and held.deadline <= self.model.now + ms:
                    self.lost_receipts.append((*place, held.token))
        self.model.advance(ms)

    async def let_pass(self, ms: int) -> None:
        await wait_until_idle(self.shard)
        self.clock.advance(ms)
        await wait_until_idle(self.shard)

    @rule(ms=st.sampled_from((-3_600_000, 3_600_000)))
    def wall_clock_jumps(self, ms: int) -> None:
        self.clock.jump_wall(ms)

    @rule(place=places)
    def pause_or_resume(self, place: tuple[str, str]) -> None:
        queue = self.model.queue(*place)
        self.run(unpause_queue(self.shard, *place) if queue.paused else pause_queue(self.shard, *place))
        queue.paused = not queue.paused

    @rule(place=places)
    def purge(self, place: tuple[str, str]) -> None:
        queue = self.model.queue(*place)
        assert self.run(purge(self.shard, *place, reason="model test")) == len(queue.messages)
        self.lose_receipts(place)
        self.model.queues[place] = ModelQueue(queue.name, queue.ttl_ms, paused=queue.paused)

    def lose_receipts(self, place: tuple[str, str]) -> None:
        held = self.model.queue(*place).messages.values()
        self.lost_receipts += [(*place, one.token) for one in held if one.token is not None]

    @rule(place=places, force=st.booleans())
    def delete_and_recreate_queue(self, place: tuple[str, str], force: bool) -> None:  # noqa: FBT001
        """Delete a queue, at once by force or when its leases have settled; its successor starts empty."""
        queue = self.model.queue(*place)
        self.lose_receipts(place)

        async def delete() -> None:
            leased = [one.token for one in queue.messages.values() if one.token is not None]
            await delete_queue(self.shard, *place, force=force)
            if leased and not force:
                assert self.shard.reads.stats(*place).status == "draining"
                for outcome in await self.shard.ack(*place, leased):
                    assert outcome.ok
            await wait_until_idle(self.shard)
            assert place not in self.known()
            await self.make_queue(*place)

        self.run(delete())

    @rule(tenant=st.sampled_from(TENANTS[:2]))
    def delete_and_recreate_tenant(self, tenant: str) -> None:
        for place in list(self.model.queues):
            if place[0] == tenant:
                self.lost_receipts = [one for one in self.lost_receipts if one[0] != tenant]
                del self.model.queues[place]

        async def delete() -> None:
            await self.shard.erasure.delete_tenant(tenant, reason="model test")
            await self.make_tenant(tenant)

        self.run(delete())

    @rule(place=any_places)
    def peek_and_get(self, place: tuple[str, str]) -> None:
        """Peek shows ready messages in delivery order, then those blocked by their group; get shows each state."""
        if place not in self.known():
            return
        queue, now = self.model.queue(*place), self.model.now
        found: list[Any] = []
        cursor = None
        while True:
            page = self.run(self.shard.reads.peek(*place, limit=3, cursor=cursor))
            found += page.messages
            cursor = page.cursor
            if cursor is None:
                break
        free = [one for one in queue.messages.values() if one.token is None]
        waiting = sorted(
            (one for one in free if not queue.blocked(one)), key=lambda one: (-one.priority, one.visible_at, one.id)
        )
        assert [one.raw_id for one in found[: len(waiting)]] == [one.id for one in waiting]
        assert {one.raw_id for one in found} == {one.id for one in free}
        for held in queue.messages.values():
            facts = self.run(self.shard.reads.get(*place, held.id))
            if held.token is not None:
                state = "in_flight"
            elif queue.blocked(held):
                state = "blocked"
            else:
                state = "delayed" if held.visible_at > now else "ready"
            assert (facts.state, facts.attempts, facts.body) == (state, held.attempts, held.body)

    @rule(
        tenant=st.sampled_from(TENANTS), letters=st.sampled_from(("jobs-dlq", "line-dlq.fifo")), restart=st.booleans()
    )
    def redrive(self, tenant: str, letters: str, *, restart: bool) -> None:
        queue = self.model.queues.get((tenant, letters))
        if queue is None:
            return

        async def all_of_it() -> int:
            task = await self.shard.redrive(tenant, letters)
            if restart:
                await self.shard.close()
                await self.open()
                task = find_redrive(self.shard.state, tenant, letters, task.id)
            await finished(self.shard, task)
            await wait_until_idle(self.shard)
            return task.progress.moved

        assert self.run(all_of_it()) == self.model.redrive(tenant, queue)

    @rule()
    def restart(self) -> None:
        self.run(self.shard.close())
        self.run(self.open())

    @rule(place=places, message=messages, steps=st.integers(0, 3))
    def crash_while_adding(self, place: tuple[str, str], message: NewMessage, steps: int) -> None:
        """Crash at a random moment of an add: only the store's files at that moment survive."""
        was = self.root / str(self.generation)
        self.generation += 1

        async def crash() -> None:
            adding = asyncio.create_task(self.shard.add(*place, [message]))
            for _ in range(steps):
                await asyncio.sleep(0)
            freeze(was, self.root / str(self.generation))
            await adding
            await self.shard.close()
            await self.open()

        self.run(crash())
        shutil.rmtree(was)
        queue = self.model.queue(*place)
        stats = self.shard.reads.stats(*place)
        if stats.ready + stats.delayed + stats.in_flight > len(queue.messages):
            page = self.run(self.shard.reads.peek(*place, limit=1_000)).messages
            fresh = {one.raw_id for one in page} - set(queue.messages)
            store = self.shard.state.store
            prefix = self.shard.state.catalog.tenants[place[0]].queues[place[1]].prefix
            if not fresh:  # it is blocked by its group
                keys = store.scan(store.m, prefix, prefix + b"\xff" * 17, 10_000)
                fresh = {key[8:] for key in keys} - set(queue.messages)
            (id,) = fresh
            self.note_added(place, message, id, duplicate=False, error=None)

    # ---- invariants ----

    @invariant()
    def figures_agree(self) -> None:
        if not hasattr(self, "shard"):
            return
        for (tenant, name), queue in self.model.queues.items():
            if (tenant, name) not in self.known():
                assert not queue.messages
                continue
            stats = self.shard.reads.stats(tenant, name)
            found = {field: getattr(stats, field) for field in ("ready", "delayed", "in_flight", "bytes")}
            assert found == queue.figures(self.model.now), (tenant, name)

    def known(self) -> set[tuple[str, str]]:
        tenants = self.shard.state.catalog.tenants.values()
        return {(tenant.name, name) for tenant in tenants for name in tenant.queues}

    @invariant()
    def results_agree(self) -> None:
        for (tenant, name), queue in self.model.queues.items():
            for id, (value, _) in queue.results.items():
                assert self.run(self.shard.reads.result(tenant, name, id)).value == value

    def teardown(self) -> None:
        try:
            if hasattr(self, "shard"):
                self.run(wait_until_idle(self.shard))
                self.run(self.shard.close())
                report = examined(self.shard)
                assert report.clean, report.findings
        finally:
            self.loop.close()
            shutil.rmtree(self.root, ignore_errors=True)


TestShardAgainstModel = ShardMachine.TestCase
TestShardAgainstModel.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


class RedisMachine(ShardMachine):
    """The same on Redis, where a crash leaves what Redis has stored."""

    server: RedisServer | None = None  # one for all runs

    def opener(self, path: Path) -> OnRedis | None:
        """Return an opener for this run's store, whichever directory goes with it."""
        kind = type(self)
        if kind.server is None:
            kind.server = RedisServer(Path(tempfile.mkdtemp(prefix="tenantq-redis-")), "appendonly no")
        return OnRedis(kind.server, path, name=self.root.name.replace("_", "-").strip("-"))

    @rule(place=places, message=messages, steps=st.integers(0, 3))
    def crash_while_adding(self, place: tuple[str, str], message: NewMessage, steps: int) -> None:
        """Crash between two rounds: Redis applies a round completely or not at all."""
        del place, message, steps
        self.run(self.crash())

    async def crash(self) -> None:
        """Forget everything in memory without closing the store; the lease ends on its own."""
        await wait_until_idle(self.shard)
        store = self.shard.state.store
        assert isinstance(store, RedisStore)
        assert self.server is not None
        owner = store._owner
        owner.lease._ended.set()
        owner.lease.stop = lambda: False  # type: ignore[method-assign]  # it is not given up
        self.shard.loop._fail(StoreFailed("killed"))
        await self.shard.close()
        self.server.client().hset(store._layout.state, "until_ms", 0)
        await self.open()

    def teardown(self) -> None:
        """Empty the server for the next run."""
        super().teardown()
        if self.server is not None:
            self.server.client().flushall()


def test_68_shard_on_redis_agrees_with_the_model() -> None:
    """The same rules run against the same model, including restarts and kills."""
    try:
        few = settings(max_examples=12, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
        run_state_machine_as_test(RedisMachine, settings=few)
    finally:
        if RedisMachine.server is not None:
            RedisMachine.server.kill()
            shutil.rmtree(RedisMachine.server.directory, ignore_errors=True)
            RedisMachine.server = None
