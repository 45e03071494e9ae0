"""``tenantq containment``: what the server did because of alerts."""

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.output import Columns, Output, table, time_of

_CONTAINMENTS: Columns = {
    "id": "id",
    "action": lambda one: f"{one.action}, dry run" if one.dry_run else one.action,
    "tenant": "tenant",
    "principal": "principal",
    "until": time_of("until"),
    "alert": "alert",
    "text": "text",
}


@click.group(cls=CommandGroup)
def containment() -> None:
    """Show and release containments: suspended keys, limited principals and frozen tenants.

    Rules are settings of the server ([[containment]]). They are dry runs unless dry_run = false.
    """


@server_command(containment, name="list")
def list_containments(connection: ServerConnection) -> Output:
    """List active containments, oldest first, including those of dry runs."""
    found = connection.client.platform().containments()
    return Output({"containments": found}, table(_CONTAINMENTS, found, "no containments"))


@server_command(containment)
@click.argument("id", metavar="ID")
def release(connection: ServerConnection, *, id: str) -> Output:
    """Release containment ID before it ends."""
    found = connection.client.platform().release_containment(id)
    return Output(found, f"released: {found.action} {found.principal or found.tenant}")
