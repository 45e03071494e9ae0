"""The metrics of tenants and queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from tenantq.engine.queue_state import QueueState, TenantState
from tenantq.engine.work_counters import PROCESSING, TOTALS, WAITS, TenantCounters, WorkSums
from tenantq.gates.worker_registry import WorkerRegistry
from tenantq.runtime.bounded_dict import BoundedDict
from tenantq.runtime.clock import Clock
from tenantq.runtime.loop_slices import next_slice
from tenantq.service.metrics.labels import OTHER, Labelled, Ranking, hottest
from tenantq.service.metrics.settings import MetricsSettings
from tenantq.service.metrics.slice_counter import SliceCounter
from tenantq.service.metrics.text import MetricsText

if TYPE_CHECKING:
    from tenantq.engine.shard import Shard

_STEPS_OF_QUEUE: Final = 3  # of a slice, to read and write it
_STEPS_OF_TENANT: Final = 10
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
        self._views: BoundedDict[int, Labelled[QueueState]] = BoundedDict(_VIEWS_MAX)  # of tenants that read their own
        self._reading = asyncio.Lock()

    async def write_all(self, text: MetricsText, share: int) -> None:
        """Write the metrics of all tenants. ``share`` shards share the allowed number of labels."""
        async with self._reading:
            most_tenants = max(1, self._settings.tenants // share)
            most_queues = max(1, self._settings.queues // share)
            await self._ranking.update(most_tenants, most_queues)
            reading = _Reading(self._shard, self._workers, self._ranking.tenants, self._ranking.queues, _Writing(text))
            reading.include_deleted(self._catalog.deleted_work, self._catalog.deleted_counters)
            await reading.read(self._catalog.tenants.values())
            reading.write_others()

    async def write_tenant(self, text: MetricsText, tenant: TenantState, may_see: Callable[[str], bool]) -> None:
        """Write the metrics of one tenant, with labels for the queues that the caller may see."""
        async with self._reading:
            await self._ranking.update(*self._ranking.most or (self._settings.tenants, self._settings.queues))
            queues = self._view(tenant)
            queues.chosen = await hottest(queues, tenant.queues.values(), self._settings.queues)
            tenants = Labelled[TenantState]()
            tenants.chosen = {tenant: None}
            reading = _Reading(self._shard, self._workers, tenants, queues, _Writing(text, may_see))
            await reading.read([tenant])
            reading.write_other_queues(tenant.name)

    def _view(self, tenant: TenantState) -> Labelled[QueueState]:
        view = self._views.pop(tenant.id, None) or Labelled[QueueState]()
        self._views[tenant.id] = view
        return view


class _Reading:
    """One pass over tenants and their queues.

    What has a label is written at once. Keeping the figures of hundreds of queues would create so many objects that the
    garbage collector starts, which takes longer than any slice.
    """

    def __init__(
        self,
        shard: Shard,
        workers: WorkerRegistry,
        tenants: Labelled[TenantState],
        queues: Labelled[QueueState],
        writing: _Writing,
    ) -> None:
        self._shard, self._workers, self._writing = shard, workers, writing
        self._tenant_labels, self._queue_labels = tenants, queues
        self._slices = SliceCounter()
        self._other_tenants, self._other_queues = _TenantSample(OTHER), _QueueSample(OTHER, OTHER)
        self._all = TenantCounters()  # of all tenants together

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
        by_name: dict[str, QueueState] = {}
        for queue in queues:
            by_name[queue.name] = queue
            if self._slices.is_full():
                await next_slice()
        letters_of: dict[str, QueueState] = {}  # dead-letter queues by the name of the queue they belong to
        letter_queues: set[str] = set()
        for queue in queues:
            if (name := name_of(queue)) != queue.name and name in by_name:
                letters_of[queue.name] = by_name[name]
                letter_queues.add(name)
            if self._slices.is_full():
                await next_slice()
        states, dead, size = [0] * len(STATES), 0, 0
        for queue in queues:
            work.merge(queue.work)
            letters = letters_of.get(queue.name)
            depth = letters.messages if letters is not None else 0
            has_label = self._queue_labels.visit(queue, queue.work)
            sample = _QueueSample(tenant.name, queue.name) if has_label else self._other_queues
            sample.add(queue, depth, self._workers.count(tenant.name, queue.name))
            if has_label:
                sample.age_ms = self._shard.reads.oldest_age_ms(queue) if queue.ready or queue.delayed else 0
                self._writing.write_queue(sample)
            size += queue.bytes
            if queue.system_made or queue.name in letter_queues:
                dead += queue.messages
            else:
                states[0] += queue.ready
                states[1] += queue.delayed
                states[2] += queue.in_flight
                states[3] += queue.blocked
            if self._slices.is_full(_STEPS_OF_QUEUE if has_label else 1):
                await next_slice()
        counters = tenant.counters if tenant.has_counters else _NO_COUNTERS
        has_label = self._tenant_labels.visit(tenant, work, counters)
        found = _TenantSample(tenant.name) if has_label else self._other_tenants
        found.add(states, dead, size)
        found.work.merge(work)
        if counters is not _NO_COUNTERS:
            found.counters.merge(counters)
            self._all.merge(counters)
        if has_label:
            found.quotas = self._quotas(tenant)
            self._writing.write_tenant(found)
            if self._slices.is_full(_STEPS_OF_TENANT):
                await next_slice()

    def _quotas(self, tenant: TenantState) -> dict[str, float]:
        quotas, used = tenant.config.quotas, tenant.usage.used(self._shard.state.wall_ms())
        found = {name: (count, getattr(quotas, name)) for name, count in used.items()}
        return {
            name: round(count / limit, 4) if limit else 1.0
            for name, (count, limit) in found.items()
            if limit is not None
        }

    def write_others(self) -> None:
        """Write the sums of all tenants, and of those without a label."""
        self._writing.write_calls(self._all)
        if self._tenant_labels.has_others or any(self._other_tenants.work.totals):
            self._writing.write_tenant(self._other_tenants)
        self.write_other_queues(OTHER)

    def write_other_queues(self, tenant: str) -> None:
        """Write the sums of queues without a label, as those of ``tenant``."""
        if self._queue_labels.has_others or any(self._other_queues.work.totals):
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
        for state, count in (*zip(STATES, one.states, strict=True), ("dead", one.dead)):
            text.add("tenantq_messages", f'{label},state="{state}"', count)
        text.add("tenantq_stored_bytes", label, one.bytes)
        for name, count in zip(_TENANT_TOTALS, one.work.totals, strict=True):
            text.add(name, label, count)
        for action, times in sorted(one.counters.calls.items()):
            text.add_durations(_CALLS, f'{label},action="{action}"', times, coarse=True)
        text.add_durations(_TURNS, label, one.counters.turns, coarse=True)
        for name, _, samples in _TENANT_COUNTERS:
            for key, value, amount in samples(one):
                text.add(name, f'{label},{key}="{value}"' if key else label, amount)

    def write_queue(self, one: _QueueSample) -> None:
        """Write the figures of a queue."""
        if self._may_see is not None and one.name != OTHER and not self._may_see(one.name):
            return
        text = self._text
        label = text.labels(tenant=one.tenant, queue=one.name)
        for state, count in zip(STATES, one.states, strict=True):
            text.add("tenantq_queue_messages", f'{label},state="{state}"', count)
        if one.age_ms is not None:
            text.add("tenantq_queue_oldest_age_seconds", label, one.age_ms / 1_000)
        for name, _, value in _QUEUE_GAUGES:
            text.add(name, label, value(one))
        for name, total in zip(_QUEUE_TOTALS, one.work.totals, strict=True):
            text.add(name, label, total)
        for name, _, part in _QUEUE_TIMES:
            text.add_times(name, label, one.work.times[part])


_NO_COUNTERS: Final = TenantCounters()

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
