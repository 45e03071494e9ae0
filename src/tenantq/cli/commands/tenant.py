"""``tenantq tenant``: create, change, inspect, suspend and delete tenants."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.confirmation import confirmed_reason, destroys
from tenantq.cli.connection import ServerConnection, connected
from tenantq.cli.options import name_argument, setting_options
from tenantq.cli.output import Columns, Output, prints_output, table, time_of, to_json
from tenantq.errors import Conflict, NotFound

_setting_options = setting_options(
    weight=click.option("--weight", type=int, metavar="N", help="Its share beside other tenants, 1 to 1000.")
)
_reason_option = click.option(
    "--reason", required=True, metavar="TEXT", help="Why; ten characters or more, kept in the journal."
)


@click.group(cls=CommandGroup)
def tenant() -> None:
    """Make, change, look at and delete tenants. For the platform's administrators."""


@tenant.command()
@name_argument
@_setting_options
@prints_output
@connected
def create(connection: ServerConnection, *, name: str, changes: dict[str, Any]) -> Output:
    """Make a tenant.

    \b
    tenantq tenant create acme --weight 2 --set quotas.backlog=100000 --set limits.write.ops_per_sec=500
    """
    found = connection.client.tenant(name)
    try:
        found.get()
    except NotFound:
        return Output(found.configure(**changes), f"made tenant {name}")
    raise Conflict(f"there is a tenant {name} already; change it with 'tenantq tenant configure'", tenant=name)


@tenant.command()
@name_argument
@_setting_options
@prints_output
@connected
def configure(connection: ServerConnection, *, name: str, changes: dict[str, Any]) -> Output:
    """Change a tenant; what is not given stays as it is."""
    if not changes:
        raise click.UsageError("Nothing to change was given.")
    found = connection.client.tenant(name)
    found.get()
    return Output(found.configure(**changes), f"changed tenant {name}")


@tenant.command("list")
@prints_output
@connected
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


@tenant.command()
@name_argument
@prints_output
@connected
def show(connection: ServerConnection, *, name: str) -> Output:
    """Show how a tenant is configured."""
    found = connection.client.tenant(name).get()
    return Output(found, msgspec.to_builtins(found))


@tenant.command()
@name_argument
@click.option("--reason", default="", metavar="TEXT", help="Why; kept in the journal.")
@prints_output
@connected
def suspend(connection: ServerConnection, *, name: str, reason: str) -> Output:
    """Take no new work of a tenant and hand none out; what is leased may finish."""
    return Output(connection.client.tenant(name).suspend(reason), f"suspended tenant {name}")


@tenant.command()
@name_argument
@prints_output
@connected
def resume(connection: ServerConnection, *, name: str) -> Output:
    """Let a suspended tenant work again."""
    return Output(connection.client.tenant(name).resume(), f"resumed tenant {name}")


@tenant.command()
@name_argument
@_reason_option
@prints_output
@connected
def hold(connection: ServerConnection, *, name: str, reason: str) -> Output:
    """Put a tenant under legal hold: it, its queues and messages cannot be deleted until that is released."""
    return Output(connection.client.tenant(name).hold(reason), f"tenant {name} is under legal hold")


@tenant.command()
@name_argument
@_reason_option
@prints_output
@connected
def release(connection: ServerConnection, *, name: str, reason: str) -> Output:
    """Take a tenant out of legal hold."""
    return Output(connection.client.tenant(name).release_hold(reason), f"released tenant {name} from legal hold")


@tenant.command()
@name_argument
@destroys
@prints_output
@connected
def delete(connection: ServerConnection, *, name: str, yes: bool, reason: str | None) -> Output:
    """Erase a tenant and everything it has: data keys, queues, messages, API keys, grants. A signed certificate is kept."""
    found = connection.client.tenant(name)
    found.get()
    why = confirmed_reason(f"This deletes tenant {name} with all its queues and messages", name, yes=yes, reason=reason)
    certificate = found.delete(confirm=name, reason=why)
    return Output(
        {"name": name, "deleted": True, "certificate": certificate},
        f"deleted tenant {name}; certificate {certificate.id}: 'tenantq tenant erasures {certificate.id}'",
    )


@tenant.command()
@click.argument("certificate_id", metavar="[ID]", required=False)
@prints_output
@connected
def erasures(connection: ServerConnection, *, certificate_id: str | None) -> Output:
    """List the tenants that were erased; with ID, print that certificate as JSON, to be kept and verified anywhere."""
    found = connection.client.erasures()
    if certificate_id is not None:
        for one in found:
            if one.id == certificate_id:
                return Output(one, to_json(one))
        raise NotFound("no such erasure")
    columns: Columns = {
        "id": "id",
        "tenant": "tenant",
        "erased": time_of("erased_at"),
        "by": "erased_by",
        "messages": lambda one: one.counts.get("messages", 0),
        "reason": "reason",
    }
    return Output({"erasures": found}, table(columns, found, "no tenant was erased"))
