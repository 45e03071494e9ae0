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
    click.option("--action", "actions", multiple=True, metavar="OP", help="Only this: add, poll, ack, put_queue, create_key and so on. May be given again."),
    click.option("--result", type=click.Choice(["SUCCESS", "DENIED", "ERROR"], case_sensitive=False), help="Only with this outcome."),
    click.option("--principal", metavar="WHO", help="Only by this one, such as key:<id> or jwt:<subject>."),
    click.option("--queue", metavar="NAME", help="Only about this queue."),
    click.option("--message", metavar="ID", help="Only about this message."),
    click.option("--start", type=time_ago, metavar="TIME", help="From here on: 2030-01-31T12:00:00Z, or 2h (ago)."),
    click.option("--end", type=time_ago, metavar="TIME", help="Before this."),
    click.option("--newest", is_flag=True, help="Newest first."),
    click.option("--platform", is_flag=True, help="Of all tenants and of the platform itself."),
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
