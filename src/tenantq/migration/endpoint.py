"""One of the two servers of a migration, with its tenant. Errors name the side on which they happened."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from tenantq.client import Client, Queue, Tenant
from tenantq.errors import ConnectionFailed, NotFound, TenantqError, Unavailable
from tenantq.wire.queues import QueueReply
from tenantq.wire.tenants import TenantReply
from tenantq.wire.topology import TopologyReply

LABELS = ("source", "target")


class Endpoint:
    """One server, reached through the SDK, and the tenant that moves."""

    def __init__(self, label: Literal["source", "target"], client: Client, tenant: str) -> None:
        self.label = label
        self.client = client
        self.name = tenant
        self.url = client.settings.url
        self._topology: TopologyReply | None = None

    @property
    def tenant(self) -> Tenant:
        """The tenant. Sends nothing."""
        return self.client.tenant(self.name)

    def queue(self, name: str) -> Queue:
        """Return one of its queues. Sends nothing."""
        return self.tenant.queue(name)

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Add this side to the text of errors, except errors that already name a side."""
        try:
            yield
        except ConnectionFailed as error:
            raise Unavailable(f"{self.label} {self.url}: {error.message}") from error
        except TenantqError as error:
            if not error.message.startswith(tuple(f"{side} " for side in LABELS)):
                error.args = (f"{self.label} {self.url}: {error.message}",)
            raise

    @property
    def topology(self) -> TopologyReply:
        """The server's identity and shards; requested once."""
        if self._topology is None:
            self._topology = self.client.topology()
        return self._topology

    def now(self) -> int:
        """Return the server's clock."""
        return self.client.topology().now

    def find_tenant(self) -> TenantReply | None:
        """Return the tenant, or None."""
        try:
            return self.tenant.get()
        except NotFound:
            return None

    def queues(self) -> dict[str, QueueReply]:
        return {one.name: one for one in self.tenant.queues()}
