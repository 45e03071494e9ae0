"""Options that choose rows of the audit trail, and reading these rows page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from tenantq.cli.connection import ServerConnection
from tenantq.cli.options import options, time_ago
from tenantq.domain import limits
from tenantq.wire.tenants import AuditReply

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
