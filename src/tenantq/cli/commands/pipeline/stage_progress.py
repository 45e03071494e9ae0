"""A progress bar on stderr, if that is a terminal: the current stage, how many are done, and the time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tenantq.cli.output import console

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class StageProgress:
    """Shows stages as they begin."""

    def __init__(self, stages: Sequence[str] = ()) -> None:
        self._stages = list(stages)
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
        """Show the stage that begins."""
        done = self._stages.index(stage) if stage in self._stages else None
        self._bar.update(self._task, description=stage, completed=done)
