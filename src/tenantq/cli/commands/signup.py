"""``tenantq signup``: decide about sign-ups."""

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.output import Columns, Output, panel, table, time_of

_SIGNUPS: Columns = ["id", ("since", time_of("created_at")), "tenant", "contact", "plan", ("from", "remote"), "note"]


@click.group(cls=CommandGroup)
def signup() -> None:
    """Approve or reject sign-ups.

    People send them with POST /v1/signups, if the server's settings allow it ([signups]).
    """


@server_command(signup, name="list")
def list_signups(connection: ServerConnection) -> Output:
    """List pending sign-ups, oldest first."""
    found = connection.client.platform().signups()
    return Output({"signups": found}, table(_SIGNUPS, found, "no sign-ups"))


@server_command(signup)
@click.argument("id", metavar="ID")
@click.option("--plan", help="Plan, instead of the requested one.")
@click.option("--template", help="Template of the platform to apply.")
@click.option("--quiet", is_flag=True, help="Print only the token.")
def approve(connection: ServerConnection, *, id: str, plan: str | None, template: str | None, quiet: bool) -> Output:
    """Create the tenant of sign-up ID and show the token of its first key once."""
    made = connection.client.platform().approve_signup(id, plan=plan, template=template)
    shown = f"For {made.contact}. This token is shown only once:\n\n{made.token}"
    return Output(made, made.token if quiet else panel(f"tenant {made.tenant}", shown))


@server_command(signup)
@click.argument("id", metavar="ID")
@click.option("--reason", default="", help="Reason, for the audit trail.")
def reject(connection: ServerConnection, *, id: str, reason: str) -> Output:
    """Reject sign-up ID."""
    found = connection.client.platform().reject_signup(id, reason=reason)
    return Output(found, f"rejected the sign-up of {found.contact} for tenant {found.tenant}")
