"""The two servers of a move: each with its tenant, and errors that say on which side they happened."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from tenantq.errors import ConnectionFailed, NotFound, TenantqError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenantq.client import Client, Queue, Tenant
    from tenantq.wire import QueueReply, TenantReply, TopologyReply

SIDES = ("source", "target")


class Side:
    """One server, reached through the SDK, and the tenant that is moved there or from there."""

    def __init__(self, label: Literal["source", "target"], client: Client, tenant: str) -> None:
        self.label = label
        self.client = client
        self.name = tenant
        self.url = client.settings.url
        self._known: TopologyReply | None = None

    @property
    def tenant(self) -> Tenant:
        """The tenant, there or not; nothing is sent."""
        return self.client.tenant(self.name)

    def queue(self, name: str) -> Queue:
        """Return one of its queues; nothing is sent."""
        return self.tenant.queue(name)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Have errors say that they are of this side; those of the other side, which is called inside, are left as they are."""
        try:
            yield
        except ConnectionFailed as error:
            raise Unavailable(f"{self.label} {self.url}: {error.message}") from error
        except TenantqError as error:
            if not error.message.startswith(tuple(f"{side} " for side in SIDES)):
                error.args = (f"{self.label} {self.url}: {error.message}",)
            raise

    @property
    def known(self) -> TopologyReply:
        """What the server says of itself; asked once."""
        if self._known is None:
            self._known = self.client.topology()
        return self._known

    def now(self) -> int:
        """Return the server's clock."""
        return self.client.topology().now

    def found(self) -> TenantReply | None:
        """Return the tenant as it is, or None where there is none."""
        try:
            return self.tenant.get()
        except NotFound:
            return None

    def queues(self) -> dict[str, QueueReply]:
        """Return its queues by name."""
        return {one.name: one for one in self.tenant.queues()}
