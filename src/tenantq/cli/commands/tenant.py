"""``tenantq tenant``: create, change, inspect, suspend and delete tenants."""

from __future__ import annotations

from typing import Any

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.confirmation import confirmed_reason, destroys
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.options import name_argument, setting_options
from tenantq.cli.output import Columns, Output, settings_facts, table, time_of, to_json
from tenantq.errors import Conflict, NotFound

_setting_options = setting_options(
    "quotas.backlog=1000",
    weight=click.option(
        "--weight", type=int, metavar="N", help="Share of the server relative to other tenants, 1 to 1000."
    ),
)
_reason_option = click.option(
    "--reason", required=True, metavar="TEXT", help="Reason for the journal, at least 10 characters."
)


@click.group(cls=CommandGroup)
def tenant() -> None:
    """Manage tenants. Requires a platform administrator's token."""


@server_command(tenant, name_argument, _setting_options)
def create(connection: ServerConnection, *, name: str, changes: dict[str, Any]) -> Output:
    """Create a tenant.

    \b
    tenantq tenant create acme --weight 2 --set quotas.backlog=100000 --set limits.write.ops_per_sec=500
    """
    found = connection.client.tenant(name)
    try:
        found.get()
    except NotFound:
        return Output(found.configure(**changes), f"created tenant {name}")
    raise Conflict(f"tenant {name} already exists; change it with 'tenantq tenant configure'", tenant=name)


@server_command(tenant, name_argument, _setting_options)
def configure(connection: ServerConnection, *, name: str, changes: dict[str, Any]) -> Output:
    """Change settings of a tenant. Other settings stay unchanged."""
    if not changes:
        raise click.UsageError("Give at least one setting to change.")
    found = connection.client.tenant(name)
    found.get()
    return Output(found.configure(**changes), f"changed tenant {name}")


@server_command(tenant, name="list")
def list_tenants(connection: ServerConnection) -> Output:
    """List all tenants."""
    tenants = connection.client.tenants()
    columns: Columns = {
        "name": "name",
        "status": lambda one: one.status if one.hold is None else f"{one.status}, on hold",
        "weight": lambda one: one.config.get("weight", 1),
        "id": "id",
        "version": "version",
    }
    return Output({"tenants": tenants}, table(columns, tenants, "no tenants"))


@server_command(tenant, name_argument)
def show(connection: ServerConnection, *, name: str) -> Output:
    """Show the settings of a tenant."""
    found = connection.client.tenant(name).get()
    return Output(found, settings_facts(found))


@server_command(tenant)
@name_argument
@click.option("--reason", default="", metavar="TEXT", help="Reason for the journal.")
def suspend(connection: ServerConnection, *, name: str, reason: str) -> Output:
    """Suspend a tenant: refuse adds and polls. Leased messages can still be settled."""
    return Output(connection.client.tenant(name).suspend(reason), f"suspended tenant {name}")


@server_command(tenant, name_argument)
def resume(connection: ServerConnection, *, name: str) -> Output:
    """Resume a suspended tenant."""
    return Output(connection.client.tenant(name).resume(), f"resumed tenant {name}")


@server_command(tenant, name_argument, _reason_option)
def hold(connection: ServerConnection, *, name: str, reason: str) -> Output:
    """Put a tenant under legal hold. The tenant, its queues and messages cannot be deleted until released."""
    return Output(connection.client.tenant(name).hold(reason), f"tenant {name} is under legal hold")


@server_command(tenant, name_argument, _reason_option)
def release(connection: ServerConnection, *, name: str, reason: str) -> Output:
    """Release a tenant from legal hold."""
    return Output(connection.client.tenant(name).release_hold(reason), f"released tenant {name} from legal hold")


@server_command(tenant, name_argument, destroys)
def delete(connection: ServerConnection, *, name: str, yes: bool, reason: str | None) -> Output:
    """Erase a tenant with its data keys, queues, messages, API keys and grants. Keeps a signed certificate."""
    found = connection.client.tenant(name)
    found.get()
    why = confirmed_reason(f"This deletes tenant {name} with all its queues and messages", name, yes=yes, reason=reason)
    certificate = found.delete(confirm=name, reason=why)
    return Output(
        {"name": name, "deleted": True, "certificate": certificate},
        f"deleted tenant {name}; certificate {certificate.id}: 'tenantq tenant erasures {certificate.id}'",
    )


@server_command(tenant)
@click.argument("certificate_id", metavar="[ID]", required=False)
def erasures(connection: ServerConnection, *, certificate_id: str | None) -> Output:
    """List erased tenants. With ID, print that certificate of erasure as JSON."""
    found = connection.client.erasures()
    if certificate_id is not None:
        for one in found:
            if one.id == certificate_id:
                return Output(one, to_json(one))
        raise NotFound(f"unknown certificate {certificate_id[:80]!r}; list them with 'tenantq tenant erasures'")
    columns: Columns = {
        "id": "id",
        "tenant": "tenant",
        "erased": time_of("erased_at"),
        "by": "erased_by",
        "messages": lambda one: one.counts.get("messages", 0),
        "reason": "reason",
    }
    return Output({"erasures": found}, table(columns, found, "no erased tenants"))
