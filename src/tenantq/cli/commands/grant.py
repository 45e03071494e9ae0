"""``tenantq grant``: access of principals to a tenant, in addition to the rights of their credential."""

from typing import Any

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.options import grant_of, grant_options
from tenantq.cli.output import Columns, Output, list_output, rights_of, time_of


@click.group("grant", cls=CommandGroup)
def grants() -> None:
    """Give keys, users or certificates of other tenants access to a tenant.

    A principal is key:<key id>, jwt:<subject> or cert:<name>.
    """


@server_command(grants)
@click.argument("principal")
@grant_options
def put(connection: ServerConnection, *, principal: str, **given: Any) -> Output:
    """Create or replace the grant of a principal.

    PRINCIPAL is key:<key id>, jwt:<subject> or cert:<name>.

    \b
    tenantq grant put key:axbzqlkop5cpygf6 --tenant acme --role viewer
    """
    grant = grant_of(**given)
    connection.tenant().grant(principal, **grant)
    return Output({"principal": principal, **grant}, f"granted to {principal}")


@server_command(grants, name="list")
def list_grants(connection: ServerConnection) -> Output:
    """List a tenant's grants."""
    times = [("expires", time_of("expires_at")), ("reviewed", time_of("reviewed_at"))]
    columns: Columns = ["principal", ("role or actions", rights_of), "queues", *times]
    return list_output("grants", connection.tenant().grants(), columns)


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
