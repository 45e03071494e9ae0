"""``tenantq template``: templates of queues and settings."""

import tomllib
from typing import BinaryIO

import click
import msgspec

from tenantq.cli import exit_codes
from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.output import Columns, Output, list_output, table, to_json
from tenantq.domain.formatting import plural
from tenantq.errors import NotFound
from tenantq.wire.templates import TemplateItem

_TEMPLATES: Columns = [
    "name",
    ("owner", lambda one: one.owner or "platform"),
    ("queues", lambda one: len(one.queues)),
    "shared with",
    "description",
]
_APPLIED: Columns = [
    ("queue", lambda one: one.queue or "(tenant)"),
    "outcome",
    ("changes", lambda one: one.error or ", ".join(f"{name}={value}" for name, value in one.changes.items())),
]
_platform = click.option("--platform", is_flag=True, help="Use templates of the platform.")
_owner = click.option("--owner", metavar="TENANT", help="Tenant that shares it.  [default: the tenant's own, then the platform]")  # fmt: skip


@click.group(cls=CommandGroup)
def template() -> None:
    """Manage templates: reusable settings of queues and tenants."""


@server_command(template)
@click.argument("name")
@click.argument("file", type=click.File("rb"))
@_platform
def create(connection: ServerConnection, *, name: str, file: BinaryIO, platform: bool) -> Output:
    """Create or replace template NAME from FILE, in TOML, or JSON if it ends with .json.

    \b
    description = "E-mail"
    shared_with = ["acme"]
    [queues.mail]
    max_attempts = 5
    """
    text = file.read()
    try:
        given = msgspec.json.decode(text) if file.name.endswith(".json") else tomllib.loads(text.decode())
        found = connection.owner(platform=platform).put_template(name, **given)
    except (ValueError, TypeError) as error:
        raise click.UsageError(f"{file.name}: {error}") from error
    return Output(found, f"stored template {name} with {plural(len(found.queues), 'queue')}")


@server_command(template, name="list")
@_platform
def list_templates(connection: ServerConnection, *, platform: bool) -> Output:
    """List the templates that a tenant may use, or with --platform all."""
    return list_output("templates", connection.owner(platform=platform).templates(), _TEMPLATES)


@server_command(template)
@click.argument("name")
@_owner
@_platform
def show(connection: ServerConnection, *, name: str, owner: str | None, platform: bool) -> Output:
    """Show template NAME as JSON."""
    found = _find(connection, name, owner, platform=platform)
    return Output(found, to_json(found))


@server_command(template)
@click.argument("name")
@_owner
@_platform
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
def apply(connection: ServerConnection, *, name: str, owner: str | None, platform: bool, dry_run: bool) -> Output:
    """Apply template NAME to a tenant, queue by queue. Applying it again changes nothing.

    \b
    Exit codes:
      0  everything is as the template says
      7  some settings were refused
    """
    found = connection.tenant().apply_template(name, owner="" if platform else owner, dry_run=dry_run)
    is_refused = any(one.outcome == "refused" for one in found)
    code = exit_codes.CONFLICT if is_refused else exit_codes.OK
    notice = ("dry run: nothing was changed",) if dry_run else ()
    return Output({"results": found}, table(_APPLIED, found, "the template is empty"), *notice, code=code)


@server_command(template)
@click.argument("name")
@click.argument("tenants", nargs=-1, metavar="[TENANT]...")
@click.option("--all", "everyone", is_flag=True, help="Share it with all tenants.")
@_platform
def share(
    connection: ServerConnection, *, name: str, tenants: tuple[str, ...], everyone: bool, platform: bool
) -> Output:
    """Share template NAME with exactly these tenants. Without TENANT and --all, share it with none."""
    owner = connection.owner(platform=platform)
    found = _find(connection, name, None if platform else connection.tenant().name, platform=platform)
    given = {field: getattr(found, field) for field in ("description", "queues", "settings")}
    made = owner.put_template(name, **given, shared_with=["*"] if everyone else tenants)
    return Output(made, f"template {name} is shared with {', '.join(made.shared_with) or 'no other tenant'}")


@server_command(template)
@click.argument("name")
@_platform
def delete(connection: ServerConnection, *, name: str, platform: bool) -> Output:
    """Delete template NAME. What was created from it stays."""
    connection.owner(platform=platform).delete_template(name)
    return Output({"name": name, "deleted": True}, f"deleted template {name}")


def _find(connection: ServerConnection, name: str, owner: str | None, *, platform: bool) -> TemplateItem:
    wanted = "" if platform else owner
    for one in connection.owner(platform=platform).templates():
        if one.name == name and wanted in {None, one.owner}:
            return one
    raise NotFound(f"template {name!r} does not exist, or is not shared with this tenant")
