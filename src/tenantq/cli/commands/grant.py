"""``tenantq grant``: access of principals to a tenant, beyond what their credential brings."""

from typing import Any

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.options import grant_options
from tenantq.cli.output import Columns, Output, rights_of, table, time_of


@click.group("grant", cls=CommandGroup)
def grants() -> None:
    """Give keys, users or certificates of other tenants access to a tenant.

    A principal is key:<key id>, jwt:<subject> or cert:<name>.
    """


@server_command(grants)
@click.argument("principal")
@grant_options
def put(connection: ServerConnection, *, principal: str, grant: dict[str, Any]) -> Output:
    """Create or replace the grant of a principal.

    PRINCIPAL is key:<key id>, jwt:<subject> or cert:<name>.

    \b
    tenantq grant put key:axbzqlkop5cpygf6 --tenant acme --role viewer
    """
    connection.tenant().grant(principal, **grant)
    return Output({"principal": principal, **grant}, f"granted to {principal}")


@server_command(grants, name="list")
def list_grants(connection: ServerConnection) -> Output:
    """List a tenant's grants."""
    found = connection.tenant().grants()
    columns: Columns = {
        "principal": "principal",
        "role or actions": rights_of,
        "queues": "queues",
        "expires": time_of("expires_at"),
        "reviewed": time_of("reviewed_at"),
    }
    return Output({"grants": found}, table(columns, found, "no grants"))


@server_command(grants)
@click.argument("principals", metavar="PRINCIPAL...", nargs=-1, required=True)
def review(connection: ServerConnection, *, principals: tuple[str, ...]) -> Output:
    """Record that grants were reviewed and are still needed, as evidence for the control grants_reviewed."""
    tenant = connection.tenant()
    found = [tenant.review_grant(principal) for principal in principals]
    return Output({"grants": found}, "\n".join(f"reviewed the grant of {principal}" for principal in principals))


@server_command(grants)
@click.argument("principal")
def delete(connection: ServerConnection, *, principal: str) -> Output:
    """Delete the grant of a principal."""
    connection.tenant().revoke_grant(principal)
    return Output({"principal": principal, "deleted": True}, f"deleted the grant of {principal}")
