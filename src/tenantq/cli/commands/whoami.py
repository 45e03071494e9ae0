"""``tenantq whoami``: show the current credential."""

from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.output import Output, rights_of
from tenantq.domain.formatting import show_time


@server_command()
def whoami(connection: ServerConnection) -> Output:
    """Show the principal, tenant, permissions and expiry of the token."""
    found = connection.client.whoami()
    facts = {
        "server": connection.target.url,
        "principal": found.principal,
        "tenant": found.tenant or "all (platform)",
        "role or actions": [rights_of(one) for one in found.grants],
        "queues": sorted({queue for one in found.grants for queue in one.queues}),
        "expires": show_time(found.expires_at) or "never",
    }
    return Output(found, facts)
