"""``tenantq tenant``: create, change, inspect, suspend and delete tenants."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.confirmation import confirmed_reason, destroys
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.options import name_argument, setting_options
from tenantq.cli.output import (
    Columns,
    Output,
    changes_output,
    create_once,
    list_output,
    settings_facts,
    table,
    time_of,
    to_json,
)
from tenantq.client import Tenant
from tenantq.domain.formatting import show_size
from tenantq.errors import NotFound

_setting_options = setting_options(
    "quotas.backlog=1000",
    plan=click.option("--plan", metavar="NAME", help="Replace weight, quotas and rate limits with those of a plan."),
    reason=click.option("--reason", metavar="TEXT", help="Reason for the audit trail."),
    weight=click.option("--weight", type=int, metavar="N", help="Share of the server relative to other tenants, 1 to 1000."),
)  # fmt: skip
_reason_option = click.option("--reason", required=True, metavar="TEXT", help="Reason for the journal, at least 10 characters.")  # fmt: skip


@click.group(cls=CommandGroup)
def tenant() -> None:
    """Manage tenants. Requires a platform administrator's token."""


def _named(connection: ServerConnection, name: str) -> Tenant:
    """Return the tenant NAME. Raises UsageError if the option --tenant names another one."""
    source = click.get_current_context().get_parameter_source("tenant")
    if source is ParameterSource.COMMANDLINE and connection.target.tenant != name:
        raise click.UsageError(f"NAME says which tenant is meant ({name}): omit --tenant.")
    return connection.client.tenant(name)


@server_command(tenant, name_argument, _setting_options)
def create(connection: ServerConnection, *, name: str, changes: dict[str, Any]) -> Output:
    """Create a tenant.

    \b
    tenantq tenant create acme --plan standard
    tenantq tenant create acme --weight 2 --set quotas.backlog=100000 --set limits.write.ops_per_sec=500
    """
    found = _named(connection, name)
    return create_once("tenant", name, found.get, partial(found.configure, **changes))


@server_command(tenant, name_argument, _setting_options)
def configure(connection: ServerConnection, *, name: str, changes: dict[str, Any]) -> Output:
    """Change settings of a tenant. Other settings stay unchanged."""
    if not changes.keys() - {"reason"}:
        raise click.UsageError("Give at least one setting to change.")
    found = _named(connection, name)
    return changes_output(f"tenant {name}", found.get(), found.configure(**changes))


@server_command(tenant, name="list")
def list_tenants(connection: ServerConnection) -> Output:
    """List all tenants."""
    columns: Columns = [
        "name",
        ("status", lambda one: one.status if one.hold is None else f"{one.status}, on hold"),
        ("weight", lambda one: one.config.get("weight", 1)),
        ("plan", lambda one: one.config.get("plan") or ""),
        "id",
        "version",
    ]
    return list_output("tenants", connection.client.tenants(), columns)


@server_command(tenant)
def plans(connection: ServerConnection) -> Output:
    """List available plans. Define plans in the server's settings, section [plans]."""
    columns: Columns = [
        ("name", lambda one: f"{one.name} (default)" if one.is_default else one.name),
        ("weight", lambda one: one.plan["weight"]),
        ("backlog", lambda one: _limit(one.plan["quotas"]["backlog"])),
        ("stored", lambda one: _limit(one.plan["quotas"]["stored_bytes"], show_size)),
        ("adds/s", lambda one: _limit(one.plan["limits"]["write"]["ops_per_sec"])),
        ("encrypted", lambda one: one.plan["encrypted"]),
        ("description", lambda one: one.plan["description"]),
    ]
    return list_output("plans", connection.client.platform().plans(), columns)


def _limit(value: int | None, text: Callable[[int], str] = "{:,}".format) -> str:
    return "no limit" if value is None else text(value)


@server_command(tenant, click.argument("name", required=False))
def show(connection: ServerConnection, *, name: str | None) -> Output:
    """Show the settings of a tenant, by default the tenant of --tenant or of the token."""
    found = (connection.tenant() if name is None else _named(connection, name)).get()
    return Output(found, settings_facts(found))


@server_command(tenant)
@name_argument
@click.option("--reason", default="", metavar="TEXT", help="Reason for the journal.")
def suspend(connection: ServerConnection, *, name: str, reason: str) -> Output:
    """Suspend a tenant: refuse adds and polls. Leased messages can still be acked or nacked."""
    return Output(_named(connection, name).suspend(reason), f"suspended tenant {name}")


@server_command(tenant, name_argument)
def resume(connection: ServerConnection, *, name: str) -> Output:
    """Resume a suspended tenant."""
    return Output(_named(connection, name).resume(), f"resumed tenant {name}")


@server_command(tenant, name_argument, _reason_option)
def hold(connection: ServerConnection, *, name: str, reason: str) -> Output:
    """Put a tenant under legal hold. The tenant, its queues and messages cannot be deleted until released."""
    return Output(_named(connection, name).hold(reason), f"tenant {name} is under legal hold")


@server_command(tenant, name_argument, _reason_option)
def release(connection: ServerConnection, *, name: str, reason: str) -> Output:
    """Release a tenant from legal hold."""
    return Output(_named(connection, name).release_hold(reason), f"released tenant {name} from legal hold")


@server_command(tenant, name_argument, destroys)
def delete(connection: ServerConnection, *, name: str, yes: bool, reason: str | None) -> Output:
    """Erase a tenant with its data keys, queues, messages, API keys and grants. Keeps a signed certificate."""
    found = _named(connection, name)
    found.get()
    why = confirmed_reason(f"This deletes tenant {name} with all its queues and messages", name, yes=yes, reason=reason)
    certificate = found.delete(confirm=name, reason=why)
    return Output(
        {"name": name, "deleted": True, "certificate": certificate},
        f"deleted tenant {name}; certificate {certificate.id}: 'tenantq tenant erasures {certificate.id}'"
        + ("" if certificate.certified_at else ". It is signed once no open snapshot holds deleted rows."),
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
    erased, messages = ("erased", time_of("erased_at")), ("messages", lambda one: one.counts.get("messages", 0))
    columns: Columns = ["id", "tenant", erased, ("by", "erased_by"), messages, "reason"]
    return Output({"erasures": found}, table(columns, found, "no erased tenants"))
