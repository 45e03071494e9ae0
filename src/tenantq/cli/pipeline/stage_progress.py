"""A bar on the terminal: which stage is at work, how many are done, how long it takes. Where stderr is no terminal: nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tenantq.cli.output import console

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType


class StageProgress:
    """Shows stages as they begin; each is told by its name."""

    def __init__(self, stages: Sequence[str] = ()) -> None:
        self._stages = list(stages)
        stderr = console(stderr=True)
        columns = [SpinnerColumn(), TextColumn("{task.description}")]
        if stages:
            columns += [BarColumn(), MofNCompleteColumn()]
        self._bar = Progress(
            *columns, TimeElapsedColumn(), console=stderr, transient=True, disable=not stderr.is_terminal,
            redirect_stdout=False, redirect_stderr=False,  # what is printed goes where it was sent, not where the bar is
        )  # fmt: skip
        self._task = self._bar.add_task("starting Spark", total=len(stages) or None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the bar away for the time in which something else is printed."""
        shown = self._bar.live.is_started
        self._bar.stop()
        try:
            yield
        finally:
            if shown:
                self._bar.start()

    def begin(self, stage: str) -> None:
        """Show that a stage begins."""
        done = self._stages.index(stage) if stage in self._stages else None
        self._bar.update(self._task, description=stage, completed=done)
