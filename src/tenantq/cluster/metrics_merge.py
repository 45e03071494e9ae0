"""Metrics of several shards as one text in the format of Prometheus."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tenantq.errors import TenantqError
from tenantq.service.metrics.text import MetricsText, merge_texts

METRICS_MS: Final = 1_000
"""How long a shard may take to report its metrics. The others are reported without it."""


async def gather_metrics(
    ask: Callable[[int, str, str, int], Awaitable[bytes]], reader: str, names: Mapping[int, str]
) -> bytes:
    """Return the metrics of shards for a reader, and which of them run.

    ``ask`` returns the text of a shard, given its number, the reader, the name for its label, and how many shards share the
    labels of tenants and queues.
    """
    texts = await asyncio.gather(
        *(ask(number, reader, name, len(names)) for number, name in names.items()), return_exceptions=True
    )
    up = MetricsText()
    up.start("tenantq_shard_up", "gauge", "Whether a shard runs.")
    for name, text in zip(names.values(), texts, strict=True):
        if isinstance(text, BaseException) and not isinstance(text, TenantqError):
            raise text
        up.add("tenantq_shard_up", up.labels(shard=name), int(isinstance(text, bytes)))
    running = [text for text in texts if isinstance(text, bytes)]
    return await asyncio.to_thread(merge_texts, [*running, await up.encoded()])
