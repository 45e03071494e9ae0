"""A command of the pipeline at work: Spark for as long as it takes, a bar, failures in one line, and signals that end it all."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tenantq.cli import exit_codes
from tenantq.cli.pipeline.stage_progress import StageProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession


class Work:
    """What a command works with."""

    spark: SparkSession

    def __init__(self, progress: StageProgress, meaning: str) -> None:
        self.progress = progress
        self.asked = 0  # the signal that came first
        self.stop: Callable[[], None] | None = None  # set: a first signal calls this, only a second one ends all
        self._meaning = meaning

    def received(self, number: int, _: object) -> None:
        """Follow a signal."""
        from tenantq.pipeline.session import end_java  # noqa: PLC0415  # --help must not need Spark

        if self.stop is not None and not self.asked:
            self.asked = number
            self.stop()
            self._say(
                "stopping when the micro-batch at work is done; another signal ends it at once, which is safe too"
            )
            return
        for known in (signal.SIGINT, signal.SIGTERM):
            signal.signal(known, signal.SIG_IGN)
        self.progress.end()
        self._say(f"tenantq: stopped by {signal.Signals(number).name}{self._meaning} [interrupted]")
        end_java()
        # No exception goes its way through a call to Java that will never return. As safe as a crash, which the lake is made for.
        os._exit(exit_codes.SIGNAL + number)

    def _say(self, line: str) -> None:
        with self.progress.aside():
            os.write(2, f"{line}\n".encode())  # in the middle of anything: no buffer that may be half written


@contextmanager
def spark_at_work(
    master: str | None, memory: str = "2g", *, stages: Sequence[str] = (), meaning: str = ""
) -> Iterator[Work]:
    """Open Spark for a command; when it is over Java is gone. What Spark fails with is told in one line, as Unavailable.

    SIGINT and SIGTERM end the process, with a line that says so and ``meaning``, what it means for the data.
    """
    from tenantq.pipeline.session import end_java, is_open, open_session, spark_failures  # noqa: PLC0415  # as above

    there = is_open()  # by whoever called this command in its own process
    with StageProgress(stages) as progress:
        work = Work(progress, meaning)
        before = [(number, signal.signal(number, work.received)) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            work.spark = open_session(master, {"spark.driver.memory": memory}, quiet=True)
            signal.signal(signal.SIGINT, work.received)  # Spark has put its own there
            with spark_failures():
                yield work
        finally:
            if not there:
                end_java()
            for number, handler in before:
                signal.signal(number, handler)
