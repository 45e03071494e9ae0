"""``tenantq tenant``: make, change, look at, suspend and delete tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.confirmation import confirmed_reason, destroys
from tenantq.cli.connection import Connection, connected
from tenantq.cli.given_settings import parse_settings, set_option
from tenantq.cli.output import json_option, print_facts, print_json, print_table
from tenantq.domain.formatting import show_time
from tenantq.errors import Conflict, NotFound

if TYPE_CHECKING:
    from tenantq.wire import TenantReply

name_argument = click.argument("name")
weight_option = click.option("--weight", type=int, metavar="N", help="Its share beside other tenants, 1 to 1000.")

why_option = click.option(
    "--reason", required=True, metavar="TEXT", help="Why; ten characters or more, kept in the journal."
)


@click.group(cls=CommandGroup)
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
    rows = [
        (
            one.name,
            one.status if one.hold is None else f"{one.status}, on hold",
            one.config.get("weight", 1),
            one.id,
            one.version,
        )
        for one in tenants
    ]
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
@why_option
@json_option
@connected
def hold(connection: Connection, *, name: str, reason: str, as_json: bool) -> None:
    """Put a tenant under legal hold: it, its queues and messages cannot be deleted until that is released."""
    _show(connection.client.tenant(name).hold(reason), f"tenant {name} is under legal hold", as_json=as_json)


@tenant.command()
@name_argument
@why_option
@json_option
@connected
def release(connection: Connection, *, name: str, reason: str, as_json: bool) -> None:
    """Take a tenant out of legal hold."""
    held = connection.client.tenant(name).release_hold(reason)
    _show(held, f"released tenant {name} from legal hold", as_json=as_json)


@tenant.command()
@name_argument
@destroys
@json_option
@connected
def delete(connection: Connection, *, name: str, yes: bool, reason: str | None, as_json: bool) -> None:
    """Erase a tenant and everything it has: data keys, queues, messages, API keys, grants. A signed certificate is kept."""
    there = connection.client.tenant(name)
    there.get()
    why = confirmed_reason(f"This deletes tenant {name} with all its queues and messages", name, yes=yes, reason=reason)
    certificate = there.delete(confirm=name, reason=why)
    if as_json:
        print_json({"name": name, "deleted": True, "certificate": certificate})
    else:
        click.echo(f"deleted tenant {name}; certificate {certificate.id}: 'tenantq tenant erasures {certificate.id}'")


@tenant.command()
@click.argument("certificate_id", metavar="[ID]", required=False)
@json_option
@connected
def erasures(connection: Connection, *, certificate_id: str | None, as_json: bool) -> None:
    """List the tenants that were erased; with ID, print that certificate as JSON, to be kept and verified anywhere."""
    found = connection.client.erasures()
    if certificate_id is not None:
        for one in found:
            if one.id == certificate_id:
                print_json(one)
                return
        raise NotFound("no such erasure")
    if as_json:
        print_json({"erasures": found})
        return
    rows = [
        (one.id, one.tenant, show_time(one.erased_at), one.erased_by, one.counts.get("messages", 0), one.reason)
        for one in found
    ]
    print_table(("id", "tenant", "erased", "by", "messages", "reason"), rows, empty="no tenant was erased")


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
