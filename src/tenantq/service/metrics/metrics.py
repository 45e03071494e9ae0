"""All metrics of a shard and of the parts that include theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

from tenantq.domain.message import Caller
from tenantq.engine.queue_state import TenantState
from tenantq.runtime.clock import Clock
from tenantq.runtime.loop_slices import next_slice
from tenantq.service.admission import Admission
from tenantq.service.metrics.server import ServerMetrics
from tenantq.service.metrics.settings import MetricsSettings
from tenantq.service.metrics.text import MetricsText
from tenantq.service.metrics.work import WorkMetrics

if TYPE_CHECKING:
    from tenantq.engine.shard import Shard
    from tenantq.journal.exporter import Exporter
    from tenantq.service.encryption import MessageEncryption
    from tenantq.service.self_checks.runner import SelfChecks


class Metrics:
    """Writes the metrics of a shard, in slices of the event loop's time."""

    def __init__(
        self,
        shard: Shard,
        admission: Admission,
        clock: Clock,
        exporter: Exporter | None,
        encryption: MessageEncryption,
        checks: Callable[[], SelfChecks | None],
        settings: MetricsSettings,
    ) -> None:
        self._collectors: list[Collector] = [ServerMetrics(shard, admission, exporter, encryption, checks)]
        self._work = WorkMetrics(shard, clock, admission.workers, settings)

    def include(self, other: Collector) -> None:
        """Include the metrics of another part."""
        self._collectors.append(other)

    async def text(self, reader: str, shard: str | None = None, share: int = 1) -> bytes:
        """Return all metrics in the text format. ``shard`` labels every sample; ``share`` shards share the other labels.

        What a reader has seen is remembered under its name, so that the counters of ``_other`` fit its last scrape.
        """
        text = MetricsText(shard)
        await self._work.write_all(text, share, reader)
        await write_collected(text, self._collectors)
        return await text.encoded()

    async def tenant_text(self, tenant: TenantState, may_see: Callable[[str], bool], reader: str) -> bytes:
        """Return the metrics of one tenant, with those queues that the caller may see."""
        text = MetricsText()
        await self._work.write_tenant(text, tenant, may_see, reader)
        return await text.encoded()


def reader_of(caller: Caller) -> str:
    """Return the name of a reader: two that differ in credential, address or user agent have their own labels."""
    return f"{caller.principal} {caller.remote} {caller.user_agent}"


async def write_collected(text: MetricsText, collectors: Iterable[Collector]) -> None:
    """Write the families of collectors, with a pause after each."""
    for collector in collectors:
        for family in collector.collect():
            text.add_family(family)
            await next_slice()
