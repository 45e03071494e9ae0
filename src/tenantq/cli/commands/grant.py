"""``tenantq grant``: what principals may do in a tenant beside what their credential brings."""

from __future__ import annotations

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import Connection, connected
from tenantq.cli.granted import given_grant, grant_options
from tenantq.cli.output import json_option, print_json, print_table
from tenantq.domain.formatting import show_time


@click.group(cls=CommandGroup)
def grant() -> None:
    """Let principals of elsewhere work in a tenant: store, list and delete grants."""


@grant.command()
@click.argument("principal")
@grant_options
@json_option
@connected
def put(
    connection: Connection,
    *,
    principal: str,
    role: str | None,
    actions: tuple[str, ...],
    queues: tuple[str, ...],
    expires_at: int | None,
    as_json: bool,
) -> None:
    """Store what a principal may do; it replaces what was stored for it.

    PRINCIPAL is key:<key id>, jwt:<subject> or cert:<name>.
    """
    granted = given_grant(role, actions, queues)
    connection.tenant().grant(principal, **granted, expires_at=expires_at)
    if as_json:
        print_json({"principal": principal, **granted, "expires_at": expires_at})
    else:
        click.echo(f"granted to {principal}")


@grant.command("list")
@json_option
@connected
def list_grants(connection: Connection, *, as_json: bool) -> None:
    """List a tenant's stored grants."""
    grants = connection.tenant().grants()
    if as_json:
        print_json({"grants": grants})
        return
    rows = [
        (one.principal, one.role or ", ".join(one.actions), one.queues, show_time(one.expires_at)) for one in grants
    ]
    print_table(("principal", "may", "queues", "expires"), rows, empty="no grants")


@grant.command()
@click.argument("principal")
@json_option
@connected
def delete(connection: Connection, *, principal: str, as_json: bool) -> None:
    """Take back what is stored for a principal."""
    connection.tenant().revoke_grant(principal)
    if as_json:
        print_json({"principal": principal, "deleted": True})
    else:
        click.echo(f"deleted the grant of {principal}")
