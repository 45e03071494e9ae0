"""``tenantq tenant``: make, change, look at, suspend and delete tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from tenantq.cli.confirmation import confirmed_reason, destroys
from tenantq.cli.connection import Connection, connected
from tenantq.cli.given_settings import parse_settings, set_option
from tenantq.cli.output import json_option, print_facts, print_json, print_table
from tenantq.errors import Conflict, NotFound

if TYPE_CHECKING:
    from tenantq.wire import TenantReply

name_argument = click.argument("name")
weight_option = click.option("--weight", type=int, metavar="N", help="Its share beside other tenants, 1 to 1000.")


@click.group()
def tenant() -> None:
    """Make, change, look at and delete tenants. For the platform's administrators."""


@tenant.command()
@name_argument
@weight_option
@set_option
@json_option
@connected
def create(connection: Connection, *, name: str, weight: int | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Make a tenant.

    \b
    tenantq tenant create acme --weight 2 --set quotas.backlog=100000 --set limits.write.ops_per_sec=500
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    there = connection.client.tenant(name)
    changes = _changes(weight, settings)
    try:
        there.get()
    except NotFound:
        _show(there.configure(**changes), f"made tenant {name}", as_json=as_json)
        return
    raise Conflict(f"there is a tenant {name} already; change it with 'tenantq tenant configure'", tenant=name)


@tenant.command()
@name_argument
@weight_option
@set_option
@json_option
@connected
def configure(
    connection: Connection, *, name: str, weight: int | None, settings: tuple[str, ...], as_json: bool
) -> None:
    """Change a tenant; what is not given stays as it is."""
    there = connection.client.tenant(name)
    changes = _changes(weight, settings)
    if not changes:
        raise click.UsageError("Nothing to change was given.")
    there.get()
    _show(there.configure(**changes), f"changed tenant {name}", as_json=as_json)


@tenant.command("list")
@json_option
@connected
def list_tenants(connection: Connection, *, as_json: bool) -> None:
    """List all tenants."""
    tenants = connection.client.tenants()
    if as_json:
        print_json({"tenants": tenants})
        return
    rows = [(one.name, one.status, one.config.get("weight", 1), one.id, one.version) for one in tenants]
    print_table(("name", "status", "weight", "id", "version"), rows, empty="no tenants")


@tenant.command()
@name_argument
@json_option
@connected
def show(connection: Connection, *, name: str, as_json: bool) -> None:
    """Show how a tenant is configured."""
    _show(connection.client.tenant(name).get(), "", as_json=as_json)


@tenant.command()
@name_argument
@click.option("--reason", default="", metavar="TEXT", help="Why; kept in the journal.")
@json_option
@connected
def suspend(connection: Connection, *, name: str, reason: str, as_json: bool) -> None:
    """Take no new work of a tenant and hand none out; what is leased may finish."""
    _show(connection.client.tenant(name).suspend(reason), f"suspended tenant {name}", as_json=as_json)


@tenant.command()
@name_argument
@json_option
@connected
def resume(connection: Connection, *, name: str, as_json: bool) -> None:
    """Let a suspended tenant work again."""
    _show(connection.client.tenant(name).resume(), f"resumed tenant {name}", as_json=as_json)


@tenant.command()
@name_argument
@destroys
@json_option
@connected
def delete(connection: Connection, *, name: str, yes: bool, reason: str | None, as_json: bool) -> None:
    """Delete a tenant and everything it has: queues, messages, keys, grants."""
    there = connection.client.tenant(name)
    there.get()
    why = confirmed_reason(f"This deletes tenant {name} with all its queues and messages", name, yes=yes, reason=reason)
    there.delete(confirm=name, reason=why)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        click.echo(f"deleted tenant {name}")


def _changes(weight: int | None, settings: tuple[str, ...]) -> dict[str, Any]:
    changes = parse_settings(settings)
    if weight is not None:
        changes["weight"] = weight
    return changes


def _show(tenant: TenantReply, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json(tenant)
    elif done:
        click.echo(done)
    else:
        print_facts(msgspec.to_builtins(tenant))
