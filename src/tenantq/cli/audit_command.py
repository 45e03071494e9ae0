"""``tenantq audit``: what was done in a tenant, by whom, with what outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from tenantq import limits
from tenantq.cli.connection import Connection, connected
from tenantq.cli.durations import time_ago
from tenantq.cli.journal_rows import print_rows
from tenantq.cli.lazy_group import LazyGroup
from tenantq.cli.output import json_option, print_json_line

if TYPE_CHECKING:
    from tenantq.client import Tenant

_COLUMNS: Final = ("ts", "op", "queue", "outcome", "principal", "remote", "message_id", "details")


@click.group(cls=LazyGroup, places={"verify": "tenantq.cli.audit_verify_command:verify"}, invoke_without_command=True)
@click.option("--action", metavar="OP", help="Only this: add, poll, ack, put_queue, create_key and so on.")
@click.option("--result", type=click.Choice(["SUCCESS", "DENIED", "ERROR"]), help="Only with this outcome.")
@click.option("--principal", metavar="WHO", help="Only by this one, such as key:<id> or jwt:<subject>.")
@click.option("--queue", metavar="NAME", help="Only about this queue.")
@click.option("--message", metavar="ID", help="Only about this message.")
@click.option("--start", type=time_ago, metavar="TIME", help="From here on: 2030-01-31T12:00:00Z, or 2h (ago).")
@click.option("--end", type=time_ago, metavar="TIME", help="Before this.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="How many rows, at most."
)
@click.option("--all", "everything", is_flag=True, help="All rows, however many.")
@click.option("--cursor", metavar="TEXT", help="Go on where the last page ended.")
@json_option
@connected
def audit(
    connection: Connection,
    *,
    limit: int,
    everything: bool,
    cursor: str | None,
    as_json: bool,
    **conditions: Any,
) -> None:
    """Show the audit trail, oldest first. With --json every row is one line.

    \b
    tenantq audit --tenant acme --start 1h --result DENIED
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    if click.get_current_context().invoked_subcommand is not None:
        return
    tenant = connection.tenant()
    left: int | None = None if everything else limit
    rows: list[dict[str, Any]] = []
    while True:
        page, cursor = _page(tenant, left, cursor, conditions)
        if as_json:
            for row in page:
                print_json_line(row)
        else:
            rows += page
        if left is not None:
            left -= len(page)
        if cursor is None or left == 0:
            break
    if not as_json:
        print_rows(rows, columns=_COLUMNS)
    if cursor is not None:
        click.echo(f"more: --cursor {cursor}", err=True)


def _page(
    tenant: Tenant, left: int | None, cursor: str | None, conditions: dict[str, Any]
) -> tuple[list[dict[str, Any]], str | None]:
    size = limits.PAGE_MAX if left is None else min(left, limits.PAGE_MAX)
    reply = tenant.audit(limit=size, cursor=cursor, **conditions)
    return reply.rows, reply.cursor
