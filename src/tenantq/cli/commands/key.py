"""``tenantq key``: API keys of a tenant, or of the platform."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from tenantq.cli.box import boxed
from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import Connection, connected
from tenantq.cli.granted import given_grant, grant_options
from tenantq.cli.output import json_option, print_json, print_table
from tenantq.domain.formatting import show_time

if TYPE_CHECKING:
    from tenantq.wire import KeyItem

_platform_option = click.option("--platform", is_flag=True, help="Of the platform itself, not of a tenant.")


@click.group(cls=CommandGroup)
def key() -> None:
    """Make, list and revoke API keys, of a tenant or of the platform."""


@key.command()
@click.argument("name")
@grant_options
@_platform_option
@click.option("--quiet", is_flag=True, help="Print only the token.")
@json_option
@connected
def create(
    connection: Connection,
    *,
    name: str,
    role: str | None,
    actions: tuple[str, ...],
    queues: tuple[str, ...],
    expires_at: int | None,
    platform: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Make a key. Its token is shown this once.

    \b
    tenantq key create mailer --tenant acme --role producer --queue 'mail*' --expires 90d
    tenantq key create prometheus --platform --action metrics
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    owner = connection.owner(platform=platform)
    made = owner.create_key(name, **given_grant(role, actions, queues), expires_at=expires_at)
    if as_json:
        print_json(made)
    elif quiet:
        click.echo(made.token)
    else:
        lines = ["Shown this once and stored hashed; keep it now:", "", made.token]
        click.echo(boxed(f"key {made.key_id}", lines))


@key.command("list")
@_platform_option
@json_option
@connected
def list_keys(connection: Connection, *, platform: bool, as_json: bool) -> None:
    """List keys, without their secrets."""
    keys = connection.owner(platform=platform).keys()
    if as_json:
        print_json({"keys": keys})
        return
    now = time.time_ns() // 1_000_000
    rows = [
        (
            one.key_id,
            one.name,
            one.role or ", ".join(one.actions),
            one.queues,
            show_time(one.expires_at),
            show_time(one.last_used_at),
            _state(one, now),
        )
        for one in keys
    ]
    print_table(("id", "name", "may", "queues", "expires", "last used", "state"), rows, empty="no keys")


def _state(one: KeyItem, now_ms: int) -> str:
    if one.revoked_at is not None:
        return "revoked"
    return "expired" if one.expires_at is not None and one.expires_at <= now_ms else "valid"


@key.command()
@click.argument("key_id")
@_platform_option
@json_option
@connected
def revoke(connection: Connection, *, key_id: str, platform: bool, as_json: bool) -> None:
    """Refuse a key from now on."""
    connection.owner(platform=platform).revoke_key(key_id)
    if as_json:
        print_json({"key_id": key_id, "revoked": True})
    else:
        click.echo(f"revoked key {key_id}")
