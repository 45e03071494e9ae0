"""A bar on the terminal: which stage is at work, how many are done, how long it takes. Where stderr is no terminal: nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


class StageProgress:
    """Shows stages as they begin; each is told by its name."""

    def __init__(self, stages: Sequence[str] = ()) -> None:
        self._stages = list(stages)
        console = Console(stderr=True)
        columns = [SpinnerColumn(), TextColumn("{task.description}")]
        if stages:
            columns += [BarColumn(), MofNCompleteColumn()]
        self._bar = Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("starting Spark", total=len(stages) or None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, stage: str) -> None:
        """Show that a stage begins."""
        done = self._stages.index(stage) if stage in self._stages else None
        self._bar.update(self._task, description=stage, completed=done)
