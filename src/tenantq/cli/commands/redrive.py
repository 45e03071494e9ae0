"""``tenantq redrive``: move dead letters back to their source queues."""

import time
from functools import partial
from typing import Any, Final

import click
from rich.progress import SpinnerColumn, TimeElapsedColumn

from tenantq.cli import exit_codes
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.output import Output
from tenantq.cli.progress import BAR, progress_bar
from tenantq.cli.server_restarts import until_answered
from tenantq.client import Queue
from tenantq.wire.queues import RedriveReply

_POLL_S: Final = 0.1


@server_command()
@click.argument("queue")
@click.option("--dry-run", is_flag=True, help="Only count the messages that would be moved.")
@click.option("--rate", type=int, metavar="N", help="Maximum messages per second.")
@click.option("--reason", metavar="TEXT", help="Only dead letters whose reason contains this text.")
@click.option("--source", metavar="QUEUE", help="Only dead letters from this queue.")
@click.option("--id", "ids", multiple=True, metavar="ID", help="Only this message; repeatable.")
@click.option("--limit", type=int, metavar="N", help="Maximum number of messages.")
@click.option("--wait", is_flag=True, help="Wait for completion. Survives server restarts.")
@click.option("--status", metavar="TASK", help="Show the status of a redrive.")
@click.option("--cancel", metavar="TASK", help="Cancel a redrive. Messages already moved stay moved.")
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
    """Move dead letters back to the queues they came from.

    QUEUE is a dead-letter queue, or the queue whose dead letters to move. Without --wait, the redrive continues on the
    server; check it with --status TASK. Exits with 1 if the redrive has failed, or was cancelled without --cancel.
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
    more = f"; task {task.task}" if task.state == "running" else f"; {task.reason}" if task.reason else ""
    is_incomplete = task.state == "failed" or (task.state == "cancelled" and cancel is None)
    code = exit_codes.ERROR if is_incomplete else exit_codes.OK
    return Output(task, f"{task.state}: {verb} {task.moved}, skipped {task.skipped}{more}", code=code)


def _wait(queue: Queue, task: RedriveReply) -> RedriveReply:
    """Return a redrive once it has ended. An interrupt leaves it running on the server."""
    columns = (SpinnerColumn(), BAR, "{task.fields[moved]:,} moved", TimeElapsedColumn())
    with progress_bar(*columns, total=None, moved=task.moved) as update:
        while task.state == "running":
            time.sleep(_POLL_S)
            task = until_answered(partial(queue.redrive_status, task.task))
            update(moved=task.moved)
    return task
