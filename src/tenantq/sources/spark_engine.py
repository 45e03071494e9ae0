"""Migration on Spark: every task opens the source, reads a part of it and transfers it, all at the same time.

Keys of messages do not depend on the parts, so a task that is repeated, or a second run on any engine, adds nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq import errors
from tenantq.client import Client, Retries, Tls
from tenantq.errors import Invalid, TenantqError
from tenantq.sources.mapping import Mapping
from tenantq.sources.open_source import SourceOptions, open_source
from tenantq.sources.source import InProgress, PartedSource, SourcePart
from tenantq.sources.transfer import Transfer, TransferReport, merged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RETRIES: Final = Retries(count=3)
_SHOW_EVERY_S: Final = 0.5


class SparkTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """What a task needs to know."""

    kind: str
    options: SourceOptions
    in_progress: InProgress
    mapping: Mapping
    url: str
    token: str | None
    tls: Tls
    timeout_ms: int
    now_ms: int

    def __repr__(self) -> str:
        """Show the source, never the token."""
        return f"<transfer from {self.kind}>"

    def run(self, spark: SparkSession, parts_count: int, show: Callable[[int], None]) -> TransferReport:
        """Transfer everything. ``show`` gets the number of messages read so far. Raises what a task raised."""
        with closing(open_source(self.kind, self.options)) as source:
            if not isinstance(source, PartedSource):
                raise Invalid(f"--engine spark: {self.kind} cannot be read in parts. Use --engine local.")
            parts = source.parts(parts_count)
        context = spark.sparkContext
        read = context.accumulator(0)

        def one_part(part: SourcePart) -> tuple[TransferReport | None, str, str]:
            return self._transfer(part, read.add)

        with ThreadPoolExecutor(1) as waiting:
            tasks = context.parallelize(parts, len(parts) or 1).map(one_part)
            done = waiting.submit(tasks.collect)
            while not wait([done], _SHOW_EVERY_S).done:
                show(read.value)
        outcomes = done.result()
        for _, error, message in outcomes:
            if error:
                raise getattr(errors, error)(message)
        return merged([report for report, _, _ in outcomes if report is not None], self.kind)

    def _transfer(self, part: SourcePart, show: Callable[[int], Any]) -> tuple[TransferReport | None, str, str]:
        """Transfer one part. Errors are returned: Spark would repeat the task, and wrap them in its own."""
        try:
            with (
                closing(open_source(self.kind, self.options)) as source,
                Client(self.url, self.token, timeout_ms=self.timeout_ms, retries=_RETRIES, tls=self.tls) as client,
            ):
                assert isinstance(source, PartedSource), "already checked"
                now_ms = self.now_ms + part.order
                transfer = Transfer(source, client, self.mapping, now_ms)
                report = transfer.of(source.part_batches(part, self.in_progress, now_ms), "snapshot")
                show(report.read)
                return report, "", ""
        except TenantqError as error:
            return None, type(error).__name__, error.message
