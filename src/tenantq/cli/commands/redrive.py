"""``tenantq redrive``: send dead letters back where they came from."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tenantq.cli.connection import Connection, connected
from tenantq.cli.output import console, json_option, print_json

if TYPE_CHECKING:
    from tenantq.client import Queue
    from tenantq.wire import RedriveReply

_LOOK_EVERY_S: Final = 0.1


@click.command()
@click.argument("queue")
@click.option("--dry-run", is_flag=True, help="Only count what would be moved.")
@click.option("--rate", type=int, metavar="N", help="Messages a second, at most.")
@click.option("--reason", metavar="TEXT", help="Only those whose reason contains this.")
@click.option("--source", metavar="QUEUE", help="Only those that came from this queue.")
@click.option("--id", "ids", multiple=True, metavar="ID", help="Only this message; repeatable.")
@click.option("--limit", type=int, metavar="N", help="This many, at most.")
@click.option("--wait", is_flag=True, help="Wait until it is done.")
@click.option("--status", metavar="TASK", help="Tell how a redrive stands that was begun before.")
@click.option("--cancel", metavar="TASK", help="Stop one; what was moved stays moved.")
@json_option
@connected
def redrive(
    connection: Connection,
    *,
    queue: str,
    dry_run: bool,
    rate: int | None,
    reason: str | None,
    source: str | None,
    ids: tuple[str, ...],
    limit: int | None,
    wait: bool,
    status: str | None,
    cancel: str | None,
    as_json: bool,
) -> None:
    """Send dead letters back where they came from.

    QUEUE is the queue whose dead letters are meant, or a dead-letter queue. Without --wait the server goes on by itself;
    --status TASK tells how it stands.
    """
    there = connection.queue(queue)
    if cancel is not None:
        there.cancel_redrive(cancel)
    known = cancel or status
    if known is not None:
        task = there.redrive_status(known)
    else:
        wanted = list(ids) or None
        task = there.redrive(source=source, reason=reason, ids=wanted, limit=limit, rate=rate, dry_run=dry_run)
    if wait or dry_run:
        task = _finished(there, task)
    if as_json:
        print_json(task)
    else:
        click.echo(_described(task))


def _finished(queue: Queue, task: RedriveReply) -> RedriveReply:
    """Wait until a redrive has ended, with a bar on stderr where that is a terminal. Who interrupts leaves it running."""
    stderr = console(stderr=True)
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[moved]:,} moved"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        shown = progress.add_task("redrive", total=None, moved=task.moved)
        while task.state == "running":
            time.sleep(_LOOK_EVERY_S)
            task = queue.redrive_status(task.task)
            progress.update(shown, moved=task.moved)
    return task


def _described(task: RedriveReply) -> str:
    verb = "would move" if task.dry_run else "moved"
    text = f"{task.state}: {verb} {task.moved}, skipped {task.skipped}"
    return f"{text}; task {task.task}" if task.state == "running" else text
