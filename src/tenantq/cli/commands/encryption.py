"""``tenantq encryption``: how a tenant is encrypted, and its data keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import Connection, connected
from tenantq.cli.output import json_option, print_facts, print_json, print_table
from tenantq.domain.formatting import show_duration, show_time

if TYPE_CHECKING:
    from tenantq.wire import EncryptionReply


@click.group(cls=CommandGroup)
def encryption() -> None:
    """Look at a tenant's encryption; make new data keys, or wrap them anew.

    Switched on and off by: tenantq tenant configure NAME --set encryption.enabled=true
    """


@encryption.command()
@json_option
@connected
def status(connection: Connection, *, as_json: bool) -> None:
    """Show whether and by which key a tenant is encrypted, and its data keys."""
    _show(connection.tenant().encryption(), "", as_json=as_json)


@encryption.command()
@json_option
@connected
def rotate(connection: Connection, *, as_json: bool) -> None:
    """Make a new data key, which encrypts from now on. What is stored stays readable."""
    found = connection.tenant().rotate_keys()
    _show(found, f"data key {found.data_keys[-1].number} encrypts from now on", as_json=as_json)


@encryption.command()
@json_option
@connected
def rewrap(connection: Connection, *, as_json: bool) -> None:
    """Wrap all data keys anew by the tenant's key as it is configured now. No message is touched."""
    found = connection.tenant().rewrap_keys()
    _show(found, f"{len(found.data_keys)} data keys are wrapped by {found.key}", as_json=as_json)


def _show(found: EncryptionReply, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    if done:
        click.echo(done)
        return
    facts = {name: value for name, value in msgspec.to_builtins(found).items() if name != "data_keys"}
    facts["rotate_every"] = show_duration(facts.pop("rotate_every_ms"))
    facts["next_rotation"] = show_time(facts.pop("next_rotation_at"))
    print_facts(facts)
    click.echo()
    rows = [(one.number, show_time(one.created_at), one.key, one.uses) for one in found.data_keys]
    print_table(("data key", "made", "wrapped by", "uses reserved"), rows, empty="no data keys yet")
