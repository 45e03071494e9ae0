"""``tenantq audit``: the audit trail of a tenant or of the platform."""

from collections.abc import Iterator
from typing import Any, Final

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, connected
from tenantq.cli.options import Count, options, time_ago
from tenantq.cli.output import journal_table, json_option, print_json_line, print_table
from tenantq.domain import limits
from tenantq.wire.tenants import AuditReply

_COLUMNS: Final = ("ts", "op", "queue", "outcome", "principal", "remote", "message_id", "details")
_MODULES: Final = {
    name: f"tenantq.cli.commands.audit_{name.replace('-', '_')}" for name in ("export", "verify", "verify-certificate")
}

conditions = options(
    click.option("--action", "actions", multiple=True, metavar="OP", help="Only this action, such as add, poll, ack, put_queue or create_key; repeatable."),
    click.option("--result", type=click.Choice(["SUCCESS", "DENIED", "ERROR"], case_sensitive=False), help="Only rows with this result."),
    click.option("--principal", metavar="PRINCIPAL", help="Only rows of this principal, such as key:<id> or jwt:<subject>."),
    click.option("--queue", metavar="NAME", help="Only rows of this queue."),
    click.option("--message", metavar="ID", help="Only rows of this message."),
    click.option("--start", type=time_ago, metavar="TIME", help="Start of the period: 2030-01-31T12:00:00Z, or 2h (ago)."),
    click.option("--end", type=time_ago, metavar="TIME", help="End of the period (exclusive), in the same formats."),
    click.option("--newest", is_flag=True, help="List the newest rows first."),
    click.option("--platform", is_flag=True, help="Include all tenants and the platform itself."),
)  # fmt: skip
"""Add the options that choose rows to a command."""


def pages(
    connection: ServerConnection, chosen: dict[str, Any], cursor: str | None, left: int | None
) -> Iterator[AuditReply]:
    """Yield pages until the trail ends or ``left`` rows were read. The cursor of the last page continues after it."""
    given = dict(chosen)
    owner = connection.owner(platform=given.pop("platform"))
    given["action"] = given.pop("actions") or None
    given["order"] = "newest" if given.pop("newest") else None
    while True:
        size = limits.PAGE_MAX if left is None else min(left, limits.PAGE_MAX)
        page = owner.audit(limit=size, cursor=cursor, **given)
        yield page
        if left is not None:
            left -= len(page.rows)
        cursor = page.cursor
        if cursor is None or left == 0:
            return


class _AuditGroup(CommandGroup):
    """Passes options without a command to ``list``. Before another command they would be lost."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert ``list`` if the arguments name no command."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_AuditGroup, modules=_MODULES)
def audit() -> None:
    """Show, export and verify the audit trail.

    Without a command it runs `audit list`, with the same options.

    \b
    tenantq audit --tenant acme --start 1h --result DENIED
    """


@audit.command("list")
@conditions
@click.option("--limit", type=Count(1), default=100, help="Maximum number of rows.")
@click.option("--all", "everything", is_flag=True, help="Show all rows.")
@click.option("--cursor", metavar="TEXT", help="Continue after the previous page.")
@json_option
@connected
def list_rows(
    connection: ServerConnection, *, limit: int, everything: bool, cursor: str | None, as_json: bool, **chosen: Any
) -> None:
    """Show a tenant's audit trail, or with --platform all of it, oldest first. With --json, each row is one line.

    \b
    tenantq audit list --platform --newest --action delete_tenant --action delete_queue
    """
    rows: list[dict[str, Any]] = []
    incomplete = False
    for page in pages(connection, chosen, cursor, None if everything else limit):
        if as_json:
            for row in page.rows:
                print_json_line(row)
        else:
            rows += page.rows
        cursor, incomplete = page.cursor, incomplete or page.incomplete
    if not as_json:
        print_table(journal_table(rows, *(("ts", "tenant", *_COLUMNS[1:]) if chosen["platform"] else _COLUMNS)))
    if incomplete:
        click.echo("older rows are in segments that the server cannot read", err=True)
    if cursor is not None:
        click.echo(f"more: --cursor {cursor}", err=True)
