"""``tenantq worker``: run a worker that a module defines."""

from __future__ import annotations

from typing import Literal

import click
import msgspec

from tenantq.cli import exit_codes
from tenantq.cli.connection import Connection, connected
from tenantq.cli.durations import duration
from tenantq.cli.logs import set_up_logs
from tenantq.client import AsyncClient
from tenantq.worker import Worker, load_worker
from tenantq.worker.worker import CONCURRENCY_MAX


@click.command()
@click.argument("address", metavar="MODULE:NAME")
@click.option(
    "--concurrency",
    type=click.IntRange(1, CONCURRENCY_MAX),
    metavar="N",
    help="Handlers that run at a time.  [default: as in the module]",
)
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Only this queue's task; repeatable.")
@click.option(
    "--drain", "drain_ms", type=duration, help="How long a stop waits for handlers.  [default: as in the module]"
)
@click.option("--burst", is_flag=True, help="Stop when there is nothing left to do.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="On stderr.")
@connected
def worker(
    connection: Connection,
    *,
    address: str,
    concurrency: int | None,
    queues: tuple[str, ...],
    drain_ms: int | None,
    burst: bool,
    log_level: str,
    log_format: Literal["text", "json"],
) -> int:
    """Run a worker until a signal comes.

    MODULE:NAME is where it is, such as shop.tasks:worker; the working directory is searched first. It works where the module
    says, unless a server, a token or a profile is given here or in the environment. With --tenant it serves that tenant.

    SIGTERM or Ctrl-C lets handlers finish and gives other messages back; a second signal ends it at once.

    \b
    Exit codes:
      0  stopped in good order
      1  handlers were cut off; their messages come back when their leases end
      others as for every command
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    found = load_worker(address)
    _redirect(found, connection)
    if concurrency is not None:
        found.concurrency = found.prefetch = concurrency
    if queues:
        found.queues = list(queues)
    if drain_ms is not None:
        found.drain_ms = drain_ms
    set_up_logs(log_level, log_format)
    return exit_codes.OK if found.run(burst=burst) else exit_codes.ERROR


def _redirect(worker: Worker, connection: Connection) -> None:
    """Have the worker work where the command says, as far as it says so."""
    target, given = connection.target, connection.given
    if given & {"url", "profile"}:
        worker.settings = AsyncClient(target.url, target.token, tls=target.tls).settings
    elif "token" in given:
        worker.settings = msgspec.structs.replace(worker.settings, token=target.token)
    if "tenant" in given and target.tenant is not None:
        worker.fleet, worker.tenants = True, [target.tenant]
