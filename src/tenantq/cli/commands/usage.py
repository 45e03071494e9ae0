"""``tenantq usage``: quotas against usage."""

from __future__ import annotations

import click

from tenantq.cli.connection import Connection, connected
from tenantq.cli.output import json_option, print_json, print_table
from tenantq.domain.formatting import show_time


@click.command()
@json_option
@connected
def usage(connection: Connection, *, as_json: bool) -> None:
    """Show a tenant's quotas against its usage."""
    found = connection.tenant().usage()
    if as_json:
        print_json(found)
        return
    rows = [
        (
            name,
            one.used,
            "no limit" if one.limit is None else one.limit,
            one.remaining,
            one.state,
            show_time(one.resets_at),
        )
        for name, one in found.quotas.items()
    ]
    print_table(("quota", "used", "limit", "remaining", "state", "resets"), rows, empty="nothing is counted")
