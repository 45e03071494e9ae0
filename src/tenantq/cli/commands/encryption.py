"""``tenantq encryption``: a tenant's encryption and its data keys."""

import click
import msgspec

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.output import Columns, Output, table, time_of
from tenantq.domain.formatting import plural, show_duration, show_time


@click.group(cls=CommandGroup)
def encryption() -> None:
    """Show and manage a tenant's encryption.

    Turn it on with: tenantq tenant configure NAME --set encryption.enabled=true
    """


@server_command(encryption)
def status(connection: ServerConnection) -> Output:
    """Show whether a tenant is encrypted, its key and its data keys."""
    found = connection.tenant().encryption()
    facts = {name: value for name, value in msgspec.to_builtins(found).items() if name != "data_keys"}
    facts["rotate_every"] = show_duration(facts.pop("rotate_every_ms"))
    facts["next_rotation"] = show_time(facts.pop("next_rotation_at"))
    created = ("created", time_of("created_at"))
    columns: Columns = [("data key", "number"), created, ("wrapped by", "key"), ("uses reserved", "uses")]
    return Output(found, facts, "", table(columns, found.data_keys, "no data keys yet"))


@server_command(encryption)
def rotate(connection: ServerConnection) -> Output:
    """Create a new data key for new messages. Stored messages stay readable."""
    found = connection.tenant().rotate_keys()
    return Output(found, f"data key {found.data_keys[-1].number} now encrypts new messages")


@server_command(encryption)
def rewrap(connection: ServerConnection) -> Output:
    """Rewrap all data keys with the tenant's configured key. Messages do not change."""
    found = connection.tenant().rewrap_keys()
    return Output(found, f"rewrapped {plural(len(found.data_keys), 'data key')} with {found.key}")
