"""``tenantq usage``: quotas against usage."""

from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.output import Output, Table
from tenantq.domain.formatting import show_time


@server_command()
def usage(connection: ServerConnection) -> Output:
    """Show a tenant's quotas and usage."""
    found = connection.tenant().usage()
    rows = [
        (name, one.used, "no limit" if one.limit is None else one.limit, one.remaining, one.state, show_time(one.resets_at))
        for name, one in found.quotas.items()
    ]  # fmt: skip
    headings = ("quota", "used", "limit", "remaining", "state", "resets")
    return Output(found, Table(headings, rows, "no usage"))
