"""SQS lookup: resolves signed requests and the numeric tenant addresses of Amazon SQS to credentials, tenants and queues."""

from typing import Annotated, Final

import msgspec

from tenantq.domain.access import Principal
from tenantq.domain.config import QueueConfig
from tenantq.domain.names import FIFO_SUFFIX, check_queue_name
from tenantq.domain.validation import between, check_field
from tenantq.engine.queue_state import TenantState, is_home
from tenantq.engine.shard import Shard
from tenantq.errors import Forbidden, Invalid, NotFound, TenantqError, no_queue
from tenantq.gates.signature import SignedRequest
from tenantq.service.admission import Admission, charge_of, own_tenant
from tenantq.service.call import Call
from tenantq.service.other_shards import OtherShards

_NUMBER_MAX: Final = 10**12 - 1  # account numbers have twelve digits
_READS: Final = frozenset(("get_queue", "list_queues"))


class FoundQueue(msgspec.Struct, frozen=True):
    """A queue that the caller may use, with its configuration at this time."""

    tenant: str
    tenant_id: int
    name: str
    id: int
    config: QueueConfig

    @property
    def fifo(self) -> bool:
        """Whether its messages keep their order."""
        return self.name.endswith(FIFO_SUFFIX)


class FoundTenant(msgspec.Struct, frozen=True):
    """A tenant that the caller may use, and its queue of the name asked for, if there is one."""

    name: str
    id: int
    queue: FoundQueue | None


class FoundQueues(msgspec.Struct, frozen=True):
    """The queues of a tenant that the caller may see."""

    tenant_id: int
    names: list[str]  # sorted


class SqsLookup:
    """Finds tenants by number and queues by tenant number and name."""

    def __init__(self, shard: Shard, admission: Admission, other_shards: OtherShards) -> None:
        self._shard, self._admission, self._other_shards = shard, admission, other_shards

    async def sign_in(self, call: Call, signed: SignedRequest, action: str) -> str:
        """Return the token of the key that signed a request; raise SignatureRefused, and note it, if the signature is wrong."""
        try:
            return await self._admission.signatures.token(signed)
        except TenantqError as error:
            self.note_unsigned(call, action, error)
            raise

    def note_unsigned(self, call: Call, action: str, error: TenantqError) -> None:
        """Note a request with an invalid signature."""
        self._admission.notes.note_refusal(call, None, None, action, None, error)

    async def note_refused(self, call: Call, tenant: str, action: str, queue: str, error: TenantqError) -> None:
        """Note a request that its transport refuses, because it may name something of another tenant."""
        principal = await self._admission.identify(call, action)
        self._admission.notes.note_refusal(call, principal, tenant, action, queue, error)

    async def find_tenant(self, call: Call, number: int | None, action: str, queue: str) -> FoundTenant:
        """Return the tenant of this number, None for the credential's own, if the caller is authorized."""
        check_queue_name(queue)
        _, state = await self._authorize(call, number, action, queue)
        self._shard.state.catalog.check_queue_here(state, queue)
        return FoundTenant(state.name, state.id, _found_queue(state, queue))

    async def find_queue(self, call: Call, number: int | None, action: str, queue: str) -> FoundQueue:
        """Return a queue, if the caller is authorized for the action. Raises NotFound also while it is being deleted."""
        check_queue_name(queue)
        principal, state = await self._authorize(call, number, action, queue)
        self._shard.state.catalog.check_queue_here(state, queue)
        found = _found_queue(state, queue)
        if found is None:
            error = no_queue(queue, state.name)
            self._admission.notes.note_refusal(call, principal, state.name, action, queue, error)
            raise error
        return found

    async def find_queues(
        self, call: Call, number: int | None, *, prefix: str = "", dead_letter: str | None = None
    ) -> FoundQueues:
        """Return the queues of a tenant that the caller may see.

        With ``dead_letter``, only the queues whose configuration names that queue for their dead letters.
        """
        if type(prefix) is not str:
            raise Invalid(f"prefix: must be text, not {type(prefix).__name__}")
        if dead_letter is not None:
            check_queue_name(dead_letter)
        principal, state = await self._authorize(call, number, "list_queues", None)
        caller = call.caller(principal.id)
        self._admission.notes.note_view(caller, state.name, "list_queues")
        allowed = self._admission.authorizer.allowed
        names = matching_queues(state, prefix, dead_letter)
        for found in (await self._other_shards.ask_parts(state, "sqs_names", state.name, prefix, dead_letter)).values():
            names += found
        return FoundQueues(
            state.id, sorted(name for name in set(names) if allowed(principal, state.name, "list_queues", name))
        )

    async def _authorize(
        self, call: Call, number: int | None, action: str, queue: str | None
    ) -> tuple[Principal, TenantState]:
        """Return the caller and the tenant. For strangers a tenant does not exist; their request is noted as refused."""
        if number is not None:
            check_field("number", number, Annotated[int, between(0, _NUMBER_MAX)])
        principal = await self._admission.identify(call, action)
        name = own_tenant(principal) if not number else self._tenant_name(number, own_tenant(principal))
        try:
            self._admission.authorize_principal(call, principal, name, action, queue)
        except Forbidden as error:
            if self._admission.authorizer.is_stranger(principal, name):
                raise no_queue(queue or "", None) from error
            raise
        state = self._shard.tenant(name)
        if action in _READS:
            await self._charge_read(call, principal, state, action, queue)
        return principal, state

    async def _charge_read(
        self, call: Call, principal: Principal, state: TenantState, action: str, queue: str | None
    ) -> None:
        """Charge one read. Only lookups that are the whole action are charged here; other actions are charged when done."""
        with self._admission.notes.noting_refusal(call, principal, state.name, action, queue):
            self._admission.rates.admit(charge_of(state, queue, "read", 1, 0))
            if self._admission.home_rates is not None and not is_home(state):
                await self._admission.home_rates.admit(state, "read", 1, 0, 0)

    def _tenant_name(self, number: int, own: str) -> str:
        """Return the name of a tenant by its number, or a name that no tenant can have.

        Raises TenantMoved if the caller's ``own`` tenant has left this shard: the number may be its.
        """
        catalog = self._shard.state.catalog
        try:
            return catalog.tenant_by_id(number).name
        except NotFound:
            catalog.check_here(own)
            return f"number {number}"


def matching_queues(state: TenantState, prefix: str, dead_letter: str | None) -> list[str]:
    """Return the names of a tenant's queues on this shard that match."""
    return [
        name
        for name, queue in state.queues.items()
        if name.startswith(prefix)
        and queue.status != "draining"
        and (dead_letter is None or (queue.config.dead_letter == dead_letter and queue.config.max_attempts > 0))
    ]


def _found_queue(state: TenantState, queue: str) -> FoundQueue | None:
    found = state.queues.get(queue)
    if found is None or found.status == "draining":
        return None
    return FoundQueue(state.name, state.id, queue, found.id, found.config)
