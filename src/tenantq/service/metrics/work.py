"""The metrics of tenants and queues."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.engine.work_counters import PROCESSING, TOTALS, WAITS, TenantCounters, WorkSums
from tenantq.gates.worker_registry import WorkerRegistry
from tenantq.runtime.clock import Clock
from tenantq.runtime.loop_slices import next_slice
from tenantq.service.metrics.labels import OTHER, Labelled, Ranking, hottest
from tenantq.service.metrics.settings import MetricsSettings
from tenantq.service.metrics.slice_counter import SliceCounter
from tenantq.service.metrics.text import MetricsText

if TYPE_CHECKING:
    from tenantq.engine.shard import Shard

STATES: Final = ("ready", "delayed", "in_flight", "blocked")
_VIEWS_MAX: Final = 1_000  # tenants with more queues than labels whose own scrapes are remembered


class _QueueSample:
    """The figures of one queue, or of all queues without a label."""

    __slots__ = ("age_ms", "bytes", "dead", "name", "polls", "states", "tenant", "work", "workers")

    def __init__(self, tenant: str, name: str) -> None:
        self.tenant, self.name = tenant, name
        self.states = [0] * len(STATES)
        self.bytes = self.dead = self.polls = self.workers = 0
        self.age_ms: int | None = None  # None: it was not looked up
        self.work = WorkSums()

    def add(self, queue: QueueState, dead: int, workers: int) -> None:
        self.workers += workers
        self.states = [
            self.states[0] + queue.ready,
            self.states[1] + queue.delayed,
            self.states[2] + queue.in_flight,
            self.states[3] + queue.blocked,
        ]
        self.bytes += queue.bytes
        self.dead += dead
        self.polls += len(queue.demands)
        self.work.merge(queue.work)


class _TenantSample:
    """The figures of one tenant, or of all tenants without a label."""

    __slots__ = ("bytes", "counters", "dead", "name", "quotas", "states", "work")

    def __init__(self, name: str) -> None:
        self.name = name
        self.states = [0] * len(STATES)
        self.bytes = self.dead = 0
        self.work = WorkSums()
        self.counters = TenantCounters()
        self.quotas: dict[str, float] = {}  # the used part of each quota that is set

    def add(self, states: list[int], dead: int, size: int) -> None:
        self.states = [mine + theirs for mine, theirs in zip(self.states, states, strict=True)]
        self.dead += dead
        self.bytes += size


class WorkMetrics:
    """Reads the counters of tenants and queues in slices, and writes them with a bounded number of labels."""

    def __init__(self, shard: Shard, clock: Clock, workers: WorkerRegistry, settings: MetricsSettings) -> None:
        self._shard, self._workers, self._settings = shard, workers, settings
        self._catalog = shard.state.catalog
        self._ranking = Ranking(self._catalog, clock)
        self._views: OrderedDict[int, Labelled[QueueState]] = OrderedDict()  # of tenants that read their own metrics
        self._reading = asyncio.Lock()

    async def write_all(self, text: MetricsText, share: int) -> None:
        """Write the metrics of all tenants. ``share`` shards share the allowed number of labels."""
        async with self._reading:
            most_tenants = max(1, self._settings.tenants // share)
            most_queues = max(1, self._settings.queues // share)
            await self._ranking.update(most_tenants, most_queues)
            reading = _Reading(self._shard, self._workers, self._ranking.tenants, self._ranking.queues)
            reading.include_deleted(self._catalog.deleted_work, self._catalog.deleted_counters)
            await reading.read(self._catalog.tenants.values())
        await reading.write(text)

    async def write_tenant(self, text: MetricsText, tenant: TenantState, may_see: Callable[[str], bool]) -> None:
        """Write the metrics of one tenant, with labels for the queues that the caller may see."""
        async with self._reading:
            await self._ranking.update(*self._ranking.most or (self._settings.tenants, self._settings.queues))
            queues = self._view(tenant)
            queues.chosen = hottest(queues, tenant.queues.values(), self._settings.queues)
            tenants = Labelled[TenantState]()
            tenants.chosen = {tenant: None}
            reading = _Reading(self._shard, self._workers, tenants, queues)
            await reading.read([tenant])
        reading.queues = [one for one in reading.queues if one.name == OTHER or may_see(one.name)]
        await reading.write(text, alone=True)

    def _view(self, tenant: TenantState) -> Labelled[QueueState]:
        view = self._views.pop(tenant.id, None) or Labelled[QueueState]()
        self._views[tenant.id] = view
        while len(self._views) > _VIEWS_MAX:
            self._views.popitem(last=False)
        return view


class _Reading:
    """One pass over tenants and their queues."""

    def __init__(
        self,
        shard: Shard,
        workers: WorkerRegistry,
        tenants: Labelled[TenantState],
        queues: Labelled[QueueState],
    ) -> None:
        self._shard, self._workers = shard, workers
        self._tenant_labels, self._queue_labels = tenants, queues
        self._slices = SliceCounter()
        self._other_tenants, self._other_queues = _TenantSample(OTHER), _QueueSample(OTHER, OTHER)
        self._all = TenantCounters()  # of all tenants together
        self.tenants: list[_TenantSample] = []
        self.queues: list[_QueueSample] = []

    def include_deleted(self, work: WorkSums, counters: TenantCounters) -> None:
        """Include the sums of deleted tenants in those without a label."""
        self._other_tenants.work.merge(work)
        self._other_queues.work.merge(work)
        self._other_tenants.counters.merge(counters)
        self._all.merge(counters)

    async def read(self, tenants: Iterable[TenantState]) -> None:
        """Read everything, with pauses. What is deleted meanwhile is read as it was."""
        for tenant in list(tenants):
            await self._read_tenant(tenant)
            if self._slices.is_full():
                await next_slice()
        for gone in self._tenant_labels.finish():
            self._tenant_labels.exclude(gone.usage.dropped, gone.counters)
        for queue in self._queue_labels.finish():
            self._queue_labels.exclude(queue.work)
        self._other_tenants.work.merge(self._tenant_labels.work)
        self._other_tenants.counters.merge(self._tenant_labels.counters)
        self._other_queues.work.merge(self._queue_labels.work)

    async def _read_tenant(self, tenant: TenantState) -> None:
        work, queues, name_of = WorkSums(), list(tenant.queues.values()), self._shard.state.catalog.dead_letter_name
        dropped = tenant.usage.dropped
        work.merge(dropped)
        self._other_queues.work.merge(dropped)
        letters_of = {queue.name: name_of(queue) for queue in queues}
        by_name = {queue.name: queue for queue in queues}
        letter_queues = {name for owner, name in letters_of.items() if name != owner and name in by_name}
        states, dead, size = [0] * len(STATES), 0, 0
        for queue in queues:
            work.merge(queue.work)
            letters = by_name.get(letters_of[queue.name])
            depth = letters.messages if letters is not None and letters is not queue else 0
            if self._queue_labels.visit(queue, queue.work):
                sample = _QueueSample(tenant.name, queue.name)
                sample.age_ms = self._shard.reads.oldest_age_ms(queue) if queue.ready or queue.delayed else 0
                self.queues.append(sample)
            else:
                sample = self._other_queues
            sample.add(queue, depth, self._workers.count(tenant.name, queue.name))
            size += queue.bytes
            if queue.name in letter_queues:
                dead += queue.messages
            else:
                states[0] += queue.ready
                states[1] += queue.delayed
                states[2] += queue.in_flight
                states[3] += queue.blocked
            if self._slices.is_full():
                await next_slice()
        counters = tenant.counters if tenant.has_counters else _NO_COUNTERS
        if self._tenant_labels.visit(tenant, work, counters):
            found = _TenantSample(tenant.name)
            found.quotas = self._quotas(tenant)
            self.tenants.append(found)
        else:
            found = self._other_tenants
        found.add(states, dead, size)
        found.work.merge(work)
        if counters is not _NO_COUNTERS:
            found.counters.merge(counters)
            self._all.merge(counters)

    def _quotas(self, tenant: TenantState) -> dict[str, float]:
        quotas, used = tenant.config.quotas, tenant.usage.used(self._shard.state.wall_ms())
        found = {name: (count, getattr(quotas, name)) for name, count in used.items()}
        return {
            name: round(count / limit, 4) if limit else 1.0
            for name, (count, limit) in found.items()
            if limit is not None
        }

    # ---- writing ----

    async def write(self, text: MetricsText, *, alone: bool = False) -> None:
        """Write everything that was read; with ``alone``, only what belongs to the one tenant that was read."""
        tenants, queues = self.tenants, self.queues
        if not alone:
            await self._write_calls(text)
            if self._tenant_labels.has_others or any(self._other_tenants.work.totals):
                tenants = [*tenants, self._other_tenants]
        if self._queue_labels.has_others or any(self._other_queues.work.totals):
            self._other_queues.tenant = tenants[0].name if alone else OTHER
            queues = [*queues, self._other_queues]
        await self._write_tenants(text, tenants)
        await self._write_queues(text, queues)

    async def _write_calls(self, text: MetricsText) -> None:
        name = "tenantq_call_seconds"
        text.start(name, "histogram", "Duration of admitted calls, without waiting for messages.")
        for action, times in sorted(self._all.calls.items()):
            text.add_durations(name, text.labels(action=action), times)
        await next_slice()

    async def _write_tenants(self, text: MetricsText, tenants: list[_TenantSample]) -> None:
        label, slices = text.labels, SliceCounter()
        text.start("tenantq_messages", "gauge", "Messages stored; dead letters have the state dead.")
        for one in tenants:
            for state, count in (*zip(STATES, one.states, strict=True), ("dead", one.dead)):
                text.add("tenantq_messages", label(tenant=one.name, state=state), count)
        text.start("tenantq_stored_bytes", "gauge", "Bytes of bodies and attributes stored.")
        for one in tenants:
            text.add("tenantq_stored_bytes", label(tenant=one.name), one.bytes)
        await next_slice()
        for index, total in enumerate(TOTALS):
            name = f"tenantq_{total}_total"
            text.start(name, "counter", f"{_MEANINGS[index]}, also of deleted queues.")
            for one in tenants:
                text.add(name, label(tenant=one.name), one.work.totals[index])
            await next_slice()
        name = "tenantq_tenant_call_seconds"
        text.start(name, "histogram", "Duration of a tenant's calls, without waiting for messages.")
        for one in tenants:
            for action, times in sorted(one.counters.calls.items()):
                text.add_durations(name, label(tenant=one.name, action=action), times, coarse=True)
                if slices.is_full():
                    await next_slice()
        name = "tenantq_tenant_turn_wait_seconds"
        text.start(name, "histogram", "Time that a tenant's operations waited for their turn.")
        for one in tenants:
            text.add_durations(name, label(tenant=one.name), one.counters.turns, coarse=True)
            if slices.is_full():
                await next_slice()
        for name, meaning, samples in _TENANT_COUNTERS:
            text.start(name, "gauge" if name.endswith("_ratio") else "counter", meaning)
            for one in tenants:
                for key, labels, value in samples(one):
                    text.add(name, label(tenant=one.name, **{key: labels}) if key else label(tenant=one.name), value)
                if slices.is_full():
                    await next_slice()

    async def _write_queues(self, text: MetricsText, queues: list[_QueueSample]) -> None:
        slices = SliceCounter()
        labels = [text.labels(tenant=one.tenant, queue=one.name) for one in queues]
        labelled = list(zip(labels, queues, strict=True))
        text.start("tenantq_queue_messages", "gauge", "Messages stored in a queue.")
        for label, one in labelled:
            for state, count in zip(STATES, one.states, strict=True):
                text.add("tenantq_queue_messages", f'{label},state="{state}"', count)
            if slices.is_full():
                await next_slice()
        text.start("tenantq_queue_oldest_age_seconds", "gauge", "Waiting time of the oldest ready message.")
        for label, one in labelled:
            if one.age_ms is not None:
                text.add("tenantq_queue_oldest_age_seconds", label, one.age_ms / 1_000)
        await next_slice()
        for name, meaning, value in _QUEUE_GAUGES:
            text.start(name, "gauge", meaning)
            for label, one in labelled:
                text.add(name, label, value(one))
            await next_slice()
        for index, total in enumerate(TOTALS):
            name = f"tenantq_queue_{total}_total"
            text.start(name, "counter", f"{_MEANINGS[index]} of a queue.")
            for label, one in labelled:
                text.add(name, label, one.work.totals[index])
            await next_slice()
        for name, meaning, part in _QUEUE_TIMES:
            text.start(name, "histogram", meaning)
            for label, one in labelled:
                text.add_times(name, label, one.work.times[part])
                if slices.is_full():
                    await next_slice()


_NO_COUNTERS: Final = TenantCounters()

_MEANINGS: Final = (
    "Messages added", "Bytes added", "Deliveries", "Messages finished", "Deliveries returned as failed",
    "Deliveries whose lease ended", "Messages that became dead letters", "Messages past their TTL",
    "Messages removed, purged or redriven", "Orphaned index rows dropped",
)  # fmt: skip

_Samples = Iterable[tuple[str, str, float]]


def _rate_decisions(one: _TenantSample) -> _Samples:
    counters = one.counters
    yield "decision", "allowed", counters.rate_allowed - counters.rate_waited
    yield "decision", "waited", counters.rate_waited
    yield "decision", "refused", counters.refused["rate_limited"]


def _encryption(one: _TenantSample) -> _Samples:
    yield "operation", "encrypt", one.counters.encrypted
    yield "operation", "decrypt", one.counters.decrypted


_TENANT_COUNTERS: Final[tuple[tuple[str, str, Callable[[_TenantSample], _Samples]], ...]] = (
    ("tenantq_tenant_refused_total", "Calls of a tenant that were refused, by error code.",
     lambda one: (("code", code, count) for code, count in sorted(one.counters.refused.items()))),
    ("tenantq_tenant_rate_limit_total", "Decisions of a tenant's rate limits about calls.", _rate_decisions),
    ("tenantq_tenant_quota_refused_total", "Messages and calls that a quota refused.",
     lambda one: (("quota", quota, count) for quota, count in sorted(one.counters.quotas_refused.items()))),
    ("tenantq_tenant_quota_used_ratio", "Used part of each quota that is set.",
     lambda one: (("quota", quota, used) for quota, used in one.quotas.items())),
    ("tenantq_tenant_cross_tenant_total", "Calls of a tenant's credentials to other tenants without a grant.",
     lambda one: (("", "", one.counters.cross_tenant),)),
    ("tenantq_tenant_encryption_total", "Bodies and results encrypted and decrypted.", _encryption),
)  # fmt: skip

_QUEUE_GAUGES: Final[tuple[tuple[str, str, Callable[[_QueueSample], int]], ...]] = (
    ("tenantq_queue_dead_letters", "Messages in the dead-letter queue of a queue.", lambda one: one.dead),
    ("tenantq_queue_stored_bytes", "Bytes of bodies and attributes stored in a queue.", lambda one: one.bytes),
    ("tenantq_queue_workers", "Workers that polled a queue lately.", lambda one: one.workers),
    ("tenantq_queue_waiting_polls", "Polls that wait for messages of a queue.", lambda one: one.polls),
)

_QUEUE_TIMES: Final = (
    ("tenantq_queue_wait_seconds", "Time that messages were ready before their delivery.", WAITS),
    ("tenantq_queue_processing_seconds", "Time from the delivery of messages to their ack or nack.", PROCESSING),
)
