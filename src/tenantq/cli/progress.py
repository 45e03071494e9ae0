"""Progress bars on stderr where that is a terminal, else nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from tenantq.cli.output import console

if TYPE_CHECKING:
    from collections.abc import Callable


class SecondsBar:
    """Shows how far something is that takes a known time. The block gets what tells it: what, the seconds so far, of how many, messages."""

    def __enter__(self) -> Callable[[str, float, float, int], None]:
        stderr = console(stderr=True)
        columns = (
            BarColumn(bar_width=20),
            TextColumn("{task.completed:.0f} of {task.total:.0f} s"),
            TextColumn("{task.fields[messages]:,} messages"),
            TextColumn("{task.description}", markup=False),
        )
        self._progress = Progress(
            *columns, console=stderr, transient=True, auto_refresh=False, disable=not stderr.is_terminal
        )
        self._progress.start()
        self._task = self._progress.add_task("", total=1, messages=0)
        return self._show

    def _show(self, what: str, seconds: float, total_s: float, messages: int) -> None:
        self._progress.update(
            self._task,
            description=what,
            completed=min(seconds, total_s),
            total=total_s,
            messages=messages,
            refresh=True,
        )

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class ByteBar:
    """Shows how far something is that is counted in bytes. The block gets what tells it: what, done, of how many (0: unknown)."""

    def __enter__(self) -> Callable[[str, int, int], None]:
        stderr = console(stderr=True)
        columns = (
            BarColumn(bar_width=20),
            DownloadColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._progress = Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal)
        self._progress.start()
        self._task = self._progress.add_task("", total=None)
        return self._show

    def _show(self, what: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=what, completed=done, total=total or None)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
