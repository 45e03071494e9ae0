"""One call of an action, and the state that calls share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tenantq.domain.config import QueueConfig
from tenantq.runtime.clock import Clock
from tenantq.sqs.addresses import QueueAddress, account_of, parse_queue_url, queue_arn
from tenantq.sqs.cooldowns import Cooldowns
from tenantq.sqs.failures import missing
from tenantq.sqs.receipt_handles import ReceiptHandles
from tenantq.sqs.requests import Parameters

if TYPE_CHECKING:
    from tenantq.http.protocol_route import Waiting
    from tenantq.service import Call, Service
    from tenantq.service.sqs_lookup import FoundQueue

    _P = TypeVar("_P", bound=Parameters)
    _T = TypeVar("_T")


class ParameterReader(Protocol):
    """Reads the parameters of a request, in either protocol."""

    def read(self, kind: type[_P]) -> _P:
        """Return the parameters."""


class EndpointState:
    """The state that all calls of the endpoint share."""

    __slots__ = ("clock", "deletions", "handles", "purges", "service")

    def __init__(
        self, service: Service, clock: Clock, handles: ReceiptHandles, *, purges: Cooldowns, deletions: Cooldowns
    ) -> None:
        self.service = service
        self.clock = clock
        self.handles = handles
        self.purges = purges
        self.deletions = deletions


class SqsCall:
    """One call of an action, with its credential, base URL and region."""

    __slots__ = ("_protocol", "_waiting", "base_url", "call", "is_closing", "path", "region", "state", "trace_header")

    def __init__(
        self,
        state: EndpointState,
        call: Call,
        protocol: ParameterReader,
        waiting: Waiting,
        *,
        base_url: str,
        region: str,
        path: QueueAddress | None,
        is_closing: bool,
        trace_header: str,
    ) -> None:
        self.state = state
        self.call = call
        self.base_url = base_url  # as the client reached it
        self.region = region
        self.path = path  # the queue whose URL the request went to
        self.is_closing = is_closing  # waiting calls return at once
        self.trace_header = trace_header  # of the request; empty if it has none
        self._protocol = protocol
        self._waiting = waiting

    @property
    def service(self) -> Service:
        """The service."""
        return self.state.service

    def read(self, kind: type[_P]) -> _P:
        """Return the parameters of the call."""
        return self._protocol.read(kind)

    async def queue(self, url: str | None, action: str) -> FoundQueue:
        """Return the queue of the call, if the caller is authorized for the action."""
        if url:
            address = parse_queue_url(url)
        elif self.path is not None:
            address = self.path
        else:
            raise missing("QueueUrl")
        return await self.service.sqs_lookup.find_queue(self.call, address.number, action, address.name)

    async def edit_queue(self, queue: FoundQueue, edit: Callable[[QueueConfig], dict[str, Any]]) -> None:
        """Change a queue's settings to ``edit(config)``. Repeats if another call has changed them meanwhile."""
        service, call = self.service, self.call
        while not await service.queues.change(
            call, queue.tenant, queue.name, edit(queue.config), expected=queue.config
        ):
            queue = await service.sqs_lookup.find_queue(call, queue.tenant_id, "put_queue", queue.name)

    def url(self, tenant_id: int, name: str) -> str:
        """Return the URL of a queue on the host that the client used."""
        return f"{self.base_url}/{account_of(tenant_id)}/{name}"

    def arn(self, tenant_id: int, name: str) -> str:
        """Return the ARN of a queue in the client's region."""
        return queue_arn(self.region, tenant_id, name)

    async def waiting(self, work: Awaitable[_T], instead: _T) -> _T:
        """Return the result of work that may wait, or ``instead`` if the server closes meanwhile."""
        return await self._waiting.unless_stopped(work, instead)


Result = dict[str, Any] | None
"""The reply of an action in the form of the JSON protocol; None if it is empty."""
