"""The metrics of tenants and queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from operator import add, sub
from typing import TYPE_CHECKING, Final

from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.engine.work_counters import PROCESSING, TOTALS, WAITS, TenantCounters, TenantSums, WorkSums
from tenantq.gates.worker_registry import WorkerRegistry
from tenantq.runtime.bounded_dict import BoundedDict
from tenantq.runtime.clock import Clock
from tenantq.runtime.loop_slices import next_slice
from tenantq.service.metrics.dead_letter_queues import DeadLetterQueues, find_dead_letter_queues
from tenantq.service.metrics.labels import OTHER, Ranking, ReaderState, hottest
from tenantq.service.metrics.settings import MetricsSettings
from tenantq.service.metrics.slice_counter import STEPS, SliceCounter
from tenantq.service.metrics.text import MetricsText

if TYPE_CHECKING:
    from tenantq.engine.shard import Shard

STATES: Final = ("ready", "delayed", "in_flight", "blocked")
_STOCK: Final = (*STATES, "bytes", "polls")
_READY, _DELAYED, _IN_FLIGHT, _BLOCKED, _BYTES, _POLLS = range(len(_STOCK))
_STEPS_OF_TENANT: Final = 10
_READERS_MAX: Final = 100  # each remembers what it has seen under labels
_VIEWS_MAX: Final = 1_000  # the same for readers of one tenant


class _QueueSample:
    """The figures of one queue, or of all queues without a label."""

    __slots__ = ("age_ms", "dead", "name", "stock", "tenant", "work", "workers")

    def __init__(self, tenant: str, name: str, work: WorkSums) -> None:
        self.tenant, self.name, self.work = tenant, name, work
        self.stock = [0] * len(_STOCK)
        self.dead = self.workers = 0
        self.age_ms: int | None = None  # None: it was not looked up


class _TenantSample:
    """The figures of one tenant, or of all tenants without a label."""

    __slots__ = ("bytes", "dead", "name", "quotas", "stock", "sums")

    def __init__(self, name: str) -> None:
        self.name = name
        self.stock = [0] * len(_STOCK)  # without dead letters
        self.bytes = self.dead = 0
        self.sums = TenantSums()
        self.quotas: dict[str, float] = {}  # the used part of each quota that is set

    def merge(self, other: _TenantSample) -> None:
        """Add the figures of another tenant."""
        self.stock = list(map(add, self.stock, other.stock))
        self.dead += other.dead
        self.bytes += other.bytes
        self.sums.merge(other.sums)


def _stock_of(queues: Sequence[QueueState]) -> list[int]:
    """Return what queues have together, in the order of ``_STOCK``."""
    return [
        sum([queue.ready for queue in queues]),
        sum([level.delayed for queue in queues for level in queue.levels]),
        sum([queue.in_flight for queue in queues]),
        sum([queue.blocked for queue in queues]),
        sum([queue.bytes for queue in queues]),
        sum([len(queue.demands) for queue in queues]),
    ]


class WorkMetrics:
    """Reads the counters of tenants and queues in slices, and writes them with a bounded number of labels."""

    def __init__(self, shard: Shard, clock: Clock, workers: WorkerRegistry, settings: MetricsSettings) -> None:
        self._shard, self._workers, self._settings = shard, workers, settings
        self._catalog = shard.state.catalog
        self._ranking = Ranking(self._catalog, clock)
        self._readers: BoundedDict[str, ReaderState] = BoundedDict(_READERS_MAX)
        self._views: BoundedDict[tuple[int, str], ReaderState] = BoundedDict(_VIEWS_MAX)  # of one tenant, by its id
        self._reading = asyncio.Lock()

    async def write_all(self, text: MetricsText, share: int, reader: str) -> None:
        """Write the metrics of all tenants. ``share`` shards share the allowed number of labels."""
        async with self._reading:
            most_tenants = max(1, self._settings.tenants // share)
            most_queues = max(1, self._settings.queues // share)
            await self._ranking.update(most_tenants, most_queues)
            chosen = self._ranking.tenants, self._ranking.queues
            seen = self._readers[reader] = self._readers.pop(reader, ReaderState())
            reading = _Reading(self._shard, self._workers, *chosen, seen, _Writing(text))
            reading.include_gone(self._catalog.gone)
            await reading.read(self._catalog.tenants.values())
            reading.write_others()

    async def write_tenant(
        self, text: MetricsText, tenant: TenantState, may_see: Callable[[str], bool], reader: str
    ) -> None:
        """Write the metrics of one tenant, with labels for the queues that the caller may see."""
        async with self._reading:
            await self._ranking.update(*self._ranking.most or (self._settings.tenants, self._settings.queues))
            view = tenant.id, reader
            seen = self._views[view] = self._views.pop(view, ReaderState())
            queues = await hottest(seen.queues.labelled, tenant.queues.values(), self._settings.queues)
            writing = _Writing(text, may_see)
            reading = _Reading(self._shard, self._workers, {tenant: None}, queues, seen, writing)
            await reading.read([tenant])
            reading.write_other_queues(tenant.name)


class _Reading:
    """One pass over tenants and their queues.

    What has a label is written at once. Keeping the figures of hundreds of queues would create so many objects that the
    garbage collector starts, which takes longer than any slice.
    """

    def __init__(
        self,
        shard: Shard,
        workers: WorkerRegistry,
        tenants: dict[TenantState, None],
        queues: dict[QueueState, None],
        reader: ReaderState,
        writing: _Writing,
    ) -> None:
        self._shard, self._workers, self._reader, self._writing = shard, workers, reader, writing
        self._tenants, self._queues = tenants, queues  # those that have a label
        self._slices = SliceCounter()
        self._others, self._other_queues = _TenantSample(OTHER), _QueueSample(OTHER, OTHER, WorkSums())
        self._has_others = self._has_other_queues = False
        self._all = TenantCounters()  # of all tenants together

    def include_gone(self, sums: TenantSums) -> None:
        """Include the sums of deleted tenants in those without a label."""
        self._others.sums.merge(sums)
        self._other_queues.work.merge(sums.work)
        self._all.merge(sums.counters)

    async def read(self, tenants: Iterable[TenantState]) -> None:
        """Read everything, with pauses. What is deleted meanwhile is read as it was; what is created is not read."""
        self._reader.begin()
        for tenant in list(tenants):
            await self._read_tenant(tenant)
            if self._slices.is_full(_STEPS_OF_TENANT):
                await next_slice()
        for gone in self._reader.tenants.finish():
            self._tenants.pop(gone, None)
        for queue in self._reader.queues.finish():
            self._queues.pop(queue, None)
        self._others.sums.merge(self._reader.tenants.correction)
        self._other_queues.work.merge(self._reader.queues.correction)

    async def _read_tenant(self, tenant: TenantState) -> None:
        limit, found = self._reader.limit, _TenantSample(tenant.name)
        queues, dropped = list(tenant.queues.values()), tenant.usage.dropped
        found.sums.work.merge(dropped)
        self._other_queues.work.merge(dropped)
        letters = await find_dead_letter_queues(tenant)
        for at in range(0, len(queues), STEPS):
            part = [queue for queue in queues[at : at + STEPS] if queue.serial < limit]
            self._read_queues(found, part, letters)
            if self._slices.is_full(len(part)):
                await next_slice()
        if tenant.has_counters:
            found.sums.counters.merge(tenant.counters)
            self._all.merge(tenant.counters)
        if tenant in self._tenants:
            self._reader.tenants.show(tenant, found.sums)
            found.quotas = self._quotas(tenant)
            self._writing.write_tenant(found)
        else:
            self._has_others = True
            self._others.merge(found)

    def _read_queues(self, tenant: _TenantSample, queues: Sequence[QueueState], letters: DeadLetterQueues) -> None:
        """Read some queues at the same moment: those without a label are all of them, less those with one."""
        others, labelled = self._other_queues, [queue for queue in queues if queue in self._queues]
        work, stock = WorkSums.total([queue.work for queue in queues]), _stock_of(queues)
        tenant.sums.work.merge(work)
        tenant.bytes += stock[_BYTES]
        dead = _stock_of([queue for queue in queues if queue.system_made or queue.name in letters.names])
        tenant.dead += sum(dead[: len(STATES)])
        tenant.stock = list(map(sub, map(add, tenant.stock, stock), dead))
        others.work.merge(work)
        others.stock = list(map(add, others.stock, stock))
        others.dead += letters.depth_of(queues)
        others.workers += sum(self._workers.counts(tenant.name, [queue.name for queue in queues]))
        for queue in labelled:
            sample = self._sample(tenant.name, queue, letters)
            others.work.merge(sample.work, -1)
            others.stock = list(map(sub, others.stock, sample.stock))
            others.dead -= sample.dead
            others.workers -= sample.workers
            self._reader.queues.show(queue, sample.work)
            self._writing.write_queue(sample)
        self._has_other_queues |= len(labelled) < len(queues)

    def _sample(self, tenant: str, queue: QueueState, letters: DeadLetterQueues) -> _QueueSample:
        sample = _QueueSample(tenant, queue.name, queue.work)
        sample.stock = _stock_of((queue,))
        sample.dead = letters.depth_of((queue,))
        (sample.workers,) = self._workers.counts(tenant, (queue.name,))
        has_waiting = sample.stock[_READY] or sample.stock[_DELAYED]
        sample.age_ms = self._shard.reads.oldest_age_ms(queue) if has_waiting else 0
        return sample

    def _quotas(self, tenant: TenantState) -> dict[str, float]:
        quotas, used = tenant.config.quotas, tenant.usage.used(self._shard.state.wall_ms())
        found = ((name, count, getattr(quotas, name)) for name, count in used.items())
        return {name: round(count / most, 4) if most else 1.0 for name, count, most in found if most is not None}

    def write_others(self) -> None:
        """Write the sums of all tenants, and of those without a label."""
        self._writing.write_calls(self._all)
        if self._has_others or any(self._others.sums.work.totals):
            self._writing.write_tenant(self._others)
        self.write_other_queues(OTHER)

    def write_other_queues(self, tenant: str) -> None:
        """Write the sums of queues without a label, as those of ``tenant``."""
        if self._has_other_queues or any(self._other_queues.work.totals):
            self._other_queues.tenant = tenant
            self._writing.write_queue(self._other_queues)


class _Writing:
    """Writes the figures of tenants and queues to a text."""

    def __init__(self, text: MetricsText, may_see: Callable[[str], bool] | None = None) -> None:
        """Start all families; with ``may_see``, other queues are not written."""
        self._text, self._may_see = text, may_see
        text.start("tenantq_messages", "gauge", "Messages stored; dead letters have the state dead.")
        text.start("tenantq_stored_bytes", "gauge", "Bytes of bodies and attributes stored.")
        for name, meaning in zip(_TENANT_TOTALS, _MEANINGS, strict=True):
            text.start(name, "counter", f"{meaning}, also of deleted queues.")
        text.start(_CALLS, "histogram", "Duration of a tenant's calls, without waiting for messages.")
        text.start(_TURNS, "histogram", "Time that a tenant's operations waited for their turn.")
        for name, meaning, _ in _TENANT_COUNTERS:
            text.start(name, "gauge" if name.endswith("_ratio") else "counter", meaning)
        text.start("tenantq_queue_messages", "gauge", "Messages stored in a queue.")
        text.start("tenantq_queue_oldest_age_seconds", "gauge", "Waiting time of the oldest ready message.")
        for name, meaning, _ in _QUEUE_GAUGES:
            text.start(name, "gauge", meaning)
        for name, meaning in zip(_QUEUE_TOTALS, _MEANINGS, strict=True):
            text.start(name, "counter", f"{meaning} of a queue.")
        for name, meaning, _ in _QUEUE_TIMES:
            text.start(name, "histogram", meaning)

    def write_calls(self, counters: TenantCounters) -> None:
        """Write the durations of the calls of all tenants together."""
        name = "tenantq_call_seconds"
        self._text.start(name, "histogram", "Duration of admitted calls, without waiting for messages.")
        for action, times in sorted(counters.calls.items()):
            self._text.add_durations(name, self._text.labels(action=action), times)

    def write_tenant(self, one: _TenantSample) -> None:
        """Write the figures of a tenant."""
        text = self._text
        label = text.labels(tenant=one.name)
        for state, count in (*zip(STATES, one.stock, strict=False), ("dead", one.dead)):
            text.add("tenantq_messages", f'{label},state="{state}"', count)
        text.add("tenantq_stored_bytes", label, one.bytes)
        for name, count in zip(_TENANT_TOTALS, one.sums.work.totals, strict=True):
            text.add(name, label, count)
        for action, times in sorted(one.sums.counters.calls.items()):
            text.add_durations(_CALLS, f'{label},action="{action}"', times, coarse=True)
        text.add_durations(_TURNS, label, one.sums.counters.turns, coarse=True)
        for name, _, samples in _TENANT_COUNTERS:
            for key, value, amount in samples(one):
                text.add(name, f'{label},{key}="{value}"' if key else label, amount)

    def write_queue(self, one: _QueueSample) -> None:
        """Write the figures of a queue."""
        if self._may_see is not None and one.name != OTHER and not self._may_see(one.name):
            return
        text = self._text
        label = text.labels(tenant=one.tenant, queue=one.name)
        for state, count in zip(STATES, one.stock, strict=False):
            text.add("tenantq_queue_messages", f'{label},state="{state}"', count)
        if one.age_ms is not None:
            text.add("tenantq_queue_oldest_age_seconds", label, one.age_ms / 1_000)
        for name, _, value in _QUEUE_GAUGES:
            text.add(name, label, value(one))
        for name, total in zip(_QUEUE_TOTALS, one.work.totals, strict=True):
            text.add(name, label, total)
        for name, _, part in _QUEUE_TIMES:
            text.add_times(name, label, one.work.times[part])


_MEANINGS: Final = (
    "Messages added", "Bytes added", "Deliveries", "Messages finished", "Deliveries returned as failed",
    "Deliveries whose lease ended", "Messages that became dead letters", "Messages past their TTL",
    "Messages removed, purged or redriven", "Orphaned index rows dropped",
)  # fmt: skip
_TENANT_TOTALS: Final = tuple(f"tenantq_{total}_total" for total in TOTALS)
_QUEUE_TOTALS: Final = tuple(f"tenantq_queue_{total}_total" for total in TOTALS)
_CALLS: Final = "tenantq_tenant_call_seconds"
_TURNS: Final = "tenantq_tenant_turn_wait_seconds"

_Samples = Iterable[tuple[str, str, float]]


def _rate_decisions(one: _TenantSample) -> _Samples:
    counters = one.sums.counters
    yield "decision", "allowed", counters.rate_allowed - counters.rate_waited
    yield "decision", "waited", counters.rate_waited
    yield "decision", "refused", counters.refused["rate_limited"]


def _encryption(one: _TenantSample) -> _Samples:
    yield "operation", "encrypt", one.sums.counters.encrypted
    yield "operation", "decrypt", one.sums.counters.decrypted


_TENANT_COUNTERS: Final[tuple[tuple[str, str, Callable[[_TenantSample], _Samples]], ...]] = (
    ("tenantq_tenant_refused_total", "Calls of a tenant that were refused, by error code.",
     lambda one: (("code", code, count) for code, count in sorted(one.sums.counters.refused.items()))),
    ("tenantq_tenant_rate_limit_total", "Decisions of a tenant's rate limits about calls.", _rate_decisions),
    ("tenantq_tenant_quota_refused_total", "Messages and calls that a quota refused.",
     lambda one: (("quota", quota, count) for quota, count in sorted(one.sums.counters.quotas_refused.items()))),
    ("tenantq_tenant_quota_used_ratio", "Used part of each quota that is set.",
     lambda one: (("quota", quota, used) for quota, used in one.quotas.items())),
    ("tenantq_tenant_cross_tenant_total", "Calls of a tenant's credentials to other tenants without a grant.",
     lambda one: (("", "", one.sums.counters.cross_tenant),)),
    ("tenantq_tenant_encryption_total", "Bodies and results encrypted and decrypted.", _encryption),
)  # fmt: skip

_QUEUE_GAUGES: Final[tuple[tuple[str, str, Callable[[_QueueSample], int]], ...]] = (
    ("tenantq_queue_dead_letters", "Messages in the dead-letter queue of a queue.", lambda one: one.dead),
    ("tenantq_queue_stored_bytes", "Bytes of bodies and attributes stored in a queue.", lambda one: one.stock[_BYTES]),
    ("tenantq_queue_workers", "Workers that polled a queue lately.", lambda one: one.workers),
    ("tenantq_queue_waiting_polls", "Polls that wait for messages of a queue.", lambda one: one.stock[_POLLS]),
)

_QUEUE_TIMES: Final = (
    ("tenantq_queue_wait_seconds", "Time that messages were ready before their delivery.", WAITS),
    ("tenantq_queue_processing_seconds", "Time from the delivery of messages to their ack or nack.", PROCESSING),
)
