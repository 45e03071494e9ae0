"""``tenantq redrive``: send dead letters back to the queues they came from."""

from __future__ import annotations

import time
from typing import Any, Final

import click
from rich.progress import SpinnerColumn, TimeElapsedColumn

from tenantq.cli.connection import ServerConnection, connected
from tenantq.cli.output import Output, prints_output
from tenantq.cli.progress import BAR, progress_bar
from tenantq.client import Queue
from tenantq.wire.queues import RedriveReply

_POLL_S: Final = 0.1


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
@prints_output
@connected
def redrive(
    connection: ServerConnection,
    *,
    queue: str,
    dry_run: bool,
    ids: tuple[str, ...],
    wait: bool,
    status: str | None,
    cancel: str | None,
    **conditions: Any,
) -> Output:
    """Send dead letters back where they came from.

    QUEUE is the queue whose dead letters are meant, or a dead-letter queue. Without --wait the server goes on by itself;
    --status TASK tells how it stands.
    """
    letters = connection.queue(queue)
    if cancel is not None:
        letters.cancel_redrive(cancel)
    known = cancel or status
    if known is not None:
        task = letters.redrive_status(known)
    else:
        task = letters.redrive(ids=list(ids) or None, dry_run=dry_run, **conditions)
    if wait or dry_run:
        task = _wait(letters, task)
    verb = "would move" if task.dry_run else "moved"
    name = f"; task {task.task}" if task.state == "running" else ""
    return Output(task, f"{task.state}: {verb} {task.moved}, skipped {task.skipped}{name}")


def _wait(queue: Queue, task: RedriveReply) -> RedriveReply:
    """Return a redrive once it has ended. An interrupt leaves it running on the server."""
    columns = (SpinnerColumn(), BAR, "{task.fields[moved]:,} moved", TimeElapsedColumn())
    with progress_bar(*columns, total=None, moved=task.moved) as update:
        while task.state == "running":
            time.sleep(_POLL_S)
            task = queue.redrive_status(task.task)
            update(moved=task.moved)
    return task
