"""Finding: who signed a request, which queue its address means, which queues and redrives there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.domain.config import QueueConfig
from tenantq.domain.message import check_int
from tenantq.domain.names import FIFO_SUFFIX, check_queue_name
from tenantq.errors import Forbidden, Invalid, NotFound, SignatureRefused, TenantqError
from tenantq.service.gatekeeper import own_tenant
from tenantq.service.looking import Looking

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.domain.access import Principal
    from tenantq.engine.ops.redrive import RedriveTask
    from tenantq.engine.queue_state import TenantState
    from tenantq.gates.signature import SignedRequest
    from tenantq.service.call import Call


_NUMBER_MAX: Final = 10**12 - 1  # of twelve digits; most of them are no tenant's
_LOOKS: Final = frozenset(("get_queue", "list_queues"))


class FoundQueue(msgspec.Struct, frozen=True):
    """A queue that the caller may do something with, as it is configured at this moment."""

    tenant: str
    tenant_id: int
    name: str
    id: int
    config: QueueConfig

    @property
    def fifo(self) -> bool:
        """Whether its messages keep their order."""
        return self.name.endswith(FIFO_SUFFIX)


class Finding(Looking):
    """For transports whose requests name things in their own way."""

    def sign_in(self, call: Call, signed: SignedRequest | SignatureRefused, action: str) -> Call:
        """Return a call with the credential that its signature proves; whatever else it carried counts for nothing.

        One that proves nothing is refused, and leaves a trace like any other false credential.
        """
        try:
            if isinstance(signed, SignatureRefused):
                raise signed
            token = self.gates.signatures.token(signed)
        except TenantqError as error:
            self.gates.traces.refuse(call, None, None, action, None, error)
            raise
        return msgspec.structs.replace(call, bearer=token)

    async def note_refused(self, call: Call, tenant: str, action: str, queue: str, error: TenantqError) -> None:
        """Have the journal tell of a request that its transport refuses, since what it names may be another tenant's."""
        principal = await self.gates.identify(call, action)
        self.gates.traces.refuse(call, principal, tenant, action, queue, error)

    async def edit_queue(
        self, call: Call, tenant: str | None, queue: str, edit: Callable[[QueueConfig], dict[str, Any]]
    ) -> None:
        """Change a queue that is there by what ``edit`` makes of its configuration when its turn comes: nobody's change is lost."""
        with await self._enter_queue(call, tenant, "put_queue", queue) as entered:
            await self.shard.edit_queue(entered.tenant, queue, edit, entered.caller)

    async def find_tenant(self, call: Call, number: int | None, action: str, queue: str | None = None) -> TenantState:
        """Return the tenant of this number, or without one the credential's own, if the caller may do this there."""
        if queue is not None:
            check_queue_name(queue)
        return (await self._judge(call, number, action, queue))[1]

    async def find_queue(self, call: Call, number: int | None, action: str, queue: str) -> FoundQueue:
        """Return a queue that the caller may do this with. One that is being deleted is not there any more."""
        check_queue_name(queue)
        principal, state = await self._judge(call, number, action, queue)
        found = state.queues.get(queue)
        if found is None or found.status == "draining":
            error = NotFound("no such queue", tenant=state.name, queue=queue)
            self.gates.traces.refuse(call, principal, state.name, action, queue, error)
            raise error
        return FoundQueue(state.name, state.id, queue, found.id, found.config)

    async def _judge(
        self, call: Call, number: int | None, action: str, queue: str | None
    ) -> tuple[Principal, TenantState]:
        """Return who calls, and the tenant. To a stranger it is not there; that they asked is noted as refused."""
        if number is not None:
            check_int("number", number, 0, _NUMBER_MAX)
        principal = await self.gates.identify(call, action)
        name = own_tenant(principal) if not number else self._tenant_name(number)
        try:
            self.gates.check(call, principal, name, action, queue)
        except Forbidden as error:
            if self.gates.authorizer.is_stranger(principal, name):
                raise NotFound("no such queue", queue=queue) from error
            raise
        state = self.shard.tenant_state(name)
        if action in _LOOKS:
            self._charge_look(call, principal, state, action, queue)
        return principal, state

    def _charge_look(
        self, call: Call, principal: Principal, state: TenantState, action: str, queue: str | None
    ) -> None:
        """Charge one read: what only looks is paid for here, everything else where it is done."""
        found = state.queues.get(queue) if queue is not None else None
        limits = found.config.limits if found is not None else None
        try:
            self.gates.rates.admit(state.name, state.config.limits, queue, limits, "read", 1, 0)
        except TenantqError as error:
            self.gates.traces.refuse(call, principal, state.name, action, queue, error)
            raise

    def _tenant_name(self, number: int) -> str:
        """Return the name of a tenant by its number; where there is none, one that no tenant has."""
        try:
            return self.shard.core.catalog.tenant_by_id(number).name
        except NotFound:
            return f"number {number}"

    async def find_queues(
        self, call: Call, number: int | None, *, prefix: str = "", dead_letter: str | None = None
    ) -> tuple[TenantState, list[str]]:
        """Return a tenant and the names, sorted, of its queues that the caller may see.

        With ``dead_letter``, of those whose dead letters go there because somebody said so.
        """
        if type(prefix) is not str:
            raise Invalid(f"prefix: must be text, not {type(prefix).__name__}")
        if dead_letter is not None:
            check_queue_name(dead_letter)
        principal, state = await self._judge(call, number, "list_queues", None)
        allowed = self.gates.authorizer.allowed
        return state, sorted(
            name
            for name, queue in state.queues.items()
            if name.startswith(prefix)
            and queue.status != "draining"
            and (dead_letter is None or (queue.config.dead_letter == dead_letter and queue.config.max_attempts > 0))
            and allowed(principal, state.name, "list_queues", name)
        )

    async def redrives(self, call: Call, tenant: str | None, queue: str) -> list[RedriveTask]:
        """Return the redrives of a dead-letter queue that the server remembers, the newest first."""
        with await self._enter_queue(call, tenant, "redrive", queue) as entered:
            return [
                task
                for task in reversed(self._redrives.values())
                if task.letters.tenant is entered.state and task.letters.name == queue
            ]
