"""``tenantq workers``: who polls which queue."""

import click

from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.output import Output, Table
from tenantq.domain.formatting import show_time


@server_command()
@click.option("--queue", metavar="QUEUE", help="Only workers of this queue.")
def workers(connection: ServerConnection, queue: str | None) -> Output:
    """List the workers that polled a tenant's queues in the last minute."""
    found = [one for one in connection.tenant().workers() if queue in {None, one.queue}]
    rows = [
        (one.queue, one.worker, one.principal, one.remote, one.version, show_time(one.since), show_time(one.last_seen))
        for one in found
    ]
    headings = ("queue", "worker", "principal", "address", "version", "since", "last seen")
    return Output(found, Table(headings, rows, "no workers"))
