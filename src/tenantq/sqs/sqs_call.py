"""One call of an action, and the state that calls share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tenantq.domain.config import QueueConfig
from tenantq.http.call_wait import CallWait
from tenantq.runtime.clock import Clock
from tenantq.service.call import Call
from tenantq.service.service import Service
from tenantq.service.sqs_lookup import FoundQueue
from tenantq.sqs.addresses import QueueAddress, account_of, parse_queue_url, queue_arn
from tenantq.sqs.cooldowns import Cooldowns
from tenantq.sqs.failures import missing
from tenantq.sqs.json_protocol import JsonProtocol
from tenantq.sqs.query_protocol import QueryProtocol
from tenantq.sqs.receipt_handles import ReceiptHandles
from tenantq.sqs.requests import Parameters

_P = TypeVar("_P", bound=Parameters)
_T = TypeVar("_T")


@dataclass(slots=True)
class EndpointState:
    """The state that all calls of the endpoint share."""

    service: Service
    clock: Clock
    handles: ReceiptHandles
    purges: Cooldowns
    deletions: Cooldowns


@dataclass(slots=True, kw_only=True)
class SqsCall:
    """One call of an action, with its credential, base URL and region."""

    state: EndpointState
    call: Call
    action: str  # that a grant must allow
    protocol: JsonProtocol | QueryProtocol
    wait: CallWait
    base_url: str  # as the client reached it
    region: str
    path: QueueAddress | None  # the queue whose URL the request went to
    is_closing: bool  # waiting calls return at once
    trace_header: str  # of the request; empty if it has none

    @property
    def service(self) -> Service:
        """The service."""
        return self.state.service

    def read(self, kind: type[_P]) -> _P:
        """Return the parameters of the call."""
        return self.protocol.read(kind)

    async def read_with_queue(self, kind: type[_P]) -> tuple[_P, FoundQueue]:
        """Return the parameters and the queue that they name, if the caller is authorized for the action."""
        given = self.read(kind)
        return given, await self.queue(given.queue_url, self.action)

    def at(self, queue: FoundQueue) -> tuple[Call, str, str]:
        """Return the first arguments of a facet's method for a queue."""
        return self.call, queue.tenant, queue.name

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
        return await self.wait.unless_stopped(work, instead)


ActionResult = dict[str, Any] | None
"""The reply of an action in the form of the JSON protocol; None if it is empty."""
