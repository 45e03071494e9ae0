"""``tenantq containment``: what the server did because of alerts."""

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.output import Columns, Output, list_output, time_of


@click.group(cls=CommandGroup)
def containment() -> None:
    """Show and release containments: suspended keys, limited principals and frozen tenants.

    Rules are settings of the server ([[containment]]). They are dry runs unless dry_run = false.
    """


@server_command(containment, name="list")
def list_containments(connection: ServerConnection) -> Output:
    """List active containments, oldest first, including those of dry runs."""
    action = ("action", lambda one: f"{one.action}, dry run" if one.dry_run else one.action)
    columns: Columns = ["id", action, "tenant", "principal", ("until", time_of("until")), "alert", "text"]
    return list_output("containments", connection.client.platform().containments(), columns)


@server_command(containment)
@click.argument("id", metavar="ID")
def release(connection: ServerConnection, *, id: str) -> Output:
    """Release containment ID before it ends."""
    found = connection.client.platform().release_containment(id)
    return Output(found, f"released: {found.action} {found.principal or found.tenant}")
