"""The environment of a pipeline command: a Spark session, a progress bar, one-line errors and signal handling."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tenantq.cli import exit_codes
from tenantq.cli.output import console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession


class StageProgress:
    """Shows the current stage, how many are done, and the time, on stderr if that is a terminal."""

    def __init__(self, stages: Sequence[str] = ()) -> None:
        self._stages = list(stages)
        self._done = 0
        stderr = console(stderr=True)
        columns = [SpinnerColumn(), TextColumn("{task.description}")]
        if stages:
            columns += [BarColumn(), MofNCompleteColumn()]
        self._bar = Progress(
            *columns, TimeElapsedColumn(), console=stderr, transient=True, disable=not stderr.is_terminal,
            redirect_stdout=False, redirect_stderr=False,  # prints go where they are sent, not to the bar
        )  # fmt: skip
        self._task = self._bar.add_task("starting Spark", total=len(stages) or None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Remove the bar."""
        self._bar.stop()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Hide the bar while something else is printed."""
        shown = self._bar.live.is_started
        self._bar.stop()
        try:
            yield
        finally:
            if shown:
                self._bar.start()

    def begin(self, stage: str) -> None:
        """Show the stage that begins. The bar does not go back if a stage begins twice."""
        if stage in self._stages:
            self._done = max(self._done, self._stages.index(stage))
        self._bar.update(self._task, description=stage, completed=self._done)


class SparkCommand:
    """A running command: its Spark session, progress bar and signal handlers."""

    def __init__(self, progress: StageProgress, meaning: str, start: Callable[[int | None], SparkSession]) -> None:
        self.progress = progress
        self.asked = 0  # the first signal received
        self.stop: Callable[[], None] | None = None  # if set, the first signal calls it; the second ends the process
        self._meaning = meaning
        self._start = start
        self._session: SparkSession | None = None

    def open(self, rows: int | None = None) -> SparkSession:
        """Return the session. The first call starts it, sized for about this number of rows."""
        if self._session is None:
            self._session = self._start(rows)
            signal.signal(signal.SIGINT, self.received)  # Spark replaced it
        return self._session

    @property
    def spark(self) -> SparkSession:
        """The session, started when it is first needed."""
        return self.open()

    def received(self, number: int, _: object) -> None:
        """Handle a signal: stop after the micro-batch if there is one, otherwise end the process."""
        from tenantq.pipeline.session import end_java  # noqa: PLC0415  # --help must not need Spark

        if self.stop is not None and not self.asked:
            self.asked = number
            self.stop()
            self._say("stopping after the current micro-batch; another signal exits immediately, which is also safe")
            return
        for known in (signal.SIGINT, signal.SIGTERM):
            signal.signal(known, signal.SIG_IGN)
        self.progress.end()
        self._say(f"tenantq: stopped by {signal.Signals(number).name}{self._meaning} [interrupted]")
        end_java()
        # An exception could not leave a call to Java that never returns. The lake is safe against crashes, so exit now.
        os._exit(exit_codes.SIGNAL + number)

    def _say(self, line: str) -> None:
        with self.progress.aside():
            os.write(2, f"{line}\n".encode())  # a signal may interrupt a half-written buffer


@contextmanager
def spark_command(
    master: str | None, memory: str = "2g", *, stages: Sequence[str] = (), meaning: str = ""
) -> Iterator[SparkCommand]:
    """Prepare Spark for a command, and end Java after it. Spark's failures become one line, as Unavailable.

    SIGINT and SIGTERM end the process with a line that says so, followed by ``meaning``, what this means for the data.
    """
    from tenantq.pipeline.session import end_java, is_open, open_session, spark_failures  # noqa: PLC0415  # as above

    already_open = is_open()  # by a caller in this process
    with StageProgress(stages) as progress:
        work = SparkCommand(
            progress, meaning,
            lambda rows: open_session(master, {"spark.driver.memory": memory}, quiet=True, rows=rows),
        )  # fmt: skip
        before = [(number, signal.signal(number, work.received)) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            with spark_failures():
                yield work
        finally:
            if not already_open:
                end_java()
            for number, handler in before:
                signal.signal(number, handler)
