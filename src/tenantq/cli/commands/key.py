"""``tenantq key``: API keys of a tenant, or of the platform."""

from collections.abc import Callable
from typing import Any

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.options import grant_of, grant_options
from tenantq.cli.output import Columns, Output, list_output, panel, rights_of, time_of
from tenantq.console.security_rows import key_state
from tenantq.runtime.clock import SystemClock


def _platform_option(help: str) -> Callable[[Any], Any]:
    return click.option("--platform", is_flag=True, help=help)


@click.group(cls=CommandGroup)
def key() -> None:
    """Manage API keys of a tenant or of the platform."""


@server_command(key)
@click.argument("name")
@grant_options
@_platform_option("Create a platform key.")
@click.option("--quiet", is_flag=True, help="Print only the token.")
def create(connection: ServerConnection, *, name: str, platform: bool, quiet: bool, **given: Any) -> Output:
    """Create an API key and show its token once.

    \b
    tenantq key create mailer --tenant acme --role producer --queue 'mail*' --expires 90d
    tenantq key create contractor --tenant acme --role viewer --expires 7d
    tenantq key create prometheus --platform --action metrics
    """
    made = connection.owner(platform=platform).create_key(name, **grant_of(**given))
    shown = f"This token is shown only once. Store it now:\n\n{made.token}"
    return Output(made, made.token if quiet else panel(f"key {made.key_id}", shown))


@server_command(key, _platform_option("List platform keys."), name="list")
def list_keys(connection: ServerConnection, *, platform: bool) -> Output:
    """List API keys, without secrets."""
    keys = connection.owner(platform=platform).keys()
    now_ms = SystemClock().wall_ms()
    columns: Columns = [
        ("id", "key_id"),
        "name",
        ("role or actions", rights_of),
        "queues",
        ("expires", time_of("expires_at")),
        ("last used", time_of("last_used_at")),
        ("state", lambda one: key_state(one, now_ms)),
    ]
    return list_output("keys", keys, columns)


@server_command(key)
@click.argument("key_id")
@_platform_option("Revoke a platform key.")
def revoke(connection: ServerConnection, *, key_id: str, platform: bool) -> Output:
    """Revoke an API key."""
    connection.owner(platform=platform).revoke_key(key_id)
    return Output({"key_id": key_id, "revoked": True}, f"revoked key {key_id}")
