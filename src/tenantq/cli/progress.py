"""Progress bars on stderr. Nothing is shown if stderr is not a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from tenantq.cli.output import console

BAR = BarColumn(bar_width=20)
DESCRIPTION = TextColumn("{task.description}", markup=False)


@contextmanager
def progress_bar(
    *columns: str | ProgressColumn, auto_refresh: bool = True, **fields: Any
) -> Iterator[Callable[..., None]]:
    """Show a bar while the block runs. The block gets the function that updates it, rich's ``Progress.update`` for its task."""
    stderr = console(stderr=True)
    with Progress(
        *columns, console=stderr, transient=True, auto_refresh=auto_refresh, disable=not stderr.is_terminal
    ) as progress:
        yield partial(progress.update, progress.add_task("", **fields))


def print_above_bar(text: str) -> None:
    """Print a line on stderr, above the progress bar if one is shown."""
    sys.stderr.write(f"{text}\n")  # rich replaces this stream while it shows a bar; click.echo would bypass it


@contextmanager
def seconds_bar() -> Iterator[Callable[[str, float, float, int], None]]:
    """Show work of a known duration. The block gets a function of: what runs, seconds so far, seconds in total, messages."""
    columns = (BAR, "{task.completed:.0f} of {task.total:.0f} s", "{task.fields[messages]:,} messages", DESCRIPTION)
    # A thread that refreshes would disturb what is measured.
    with progress_bar(*columns, auto_refresh=False, total=1, messages=0) as update:

        def show(what: str, seconds: float, total_s: float, messages: int) -> None:
            completed = min(seconds, total_s)
            update(description=what, completed=completed, total=total_s, messages=messages, refresh=True)

        yield show


@contextmanager
def byte_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show work that is counted in bytes. The block gets a function of: what runs, bytes done, bytes in total or 0 if unknown."""
    with progress_bar(BAR, DownloadColumn(), TimeElapsedColumn(), DESCRIPTION, total=None) as update:
        yield lambda what, done, total: update(description=what, completed=done, total=total or None)
