"""``tenantq workers``: who polls which queue."""

import click

from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.output import Columns, Output, table, time_of


@server_command()
@click.option("--queue", metavar="QUEUE", help="Only workers of this queue.")
def workers(connection: ServerConnection, queue: str | None) -> Output:
    """List the workers that polled a tenant's queues in the last minute."""
    found = [one for one in connection.tenant().workers() if queue in {None, one.queue}]
    times = [("since", time_of("since")), ("last seen", time_of("last_seen"))]
    columns: Columns = ["queue", "worker", "principal", ("address", "remote"), "version", *times]
    return Output(found, table(columns, found, "no workers"))
