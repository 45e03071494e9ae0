"""Adding: messages put into a queue, encrypted where the tenant's are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.domain.message import NewMessage, check_batch
from tenantq.domain.names import check_queue_name
from tenantq.errors import Conflict, TenantqError
from tenantq.service.settling import Settling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.domain.message import Added
    from tenantq.service.call import Call
    from tenantq.service.entered import Entered


class Adding(Settling):
    """The part of the service that producers ask."""

    async def add(
        self,
        call: Call,
        tenant: str | None,
        queue: str,
        messages: Sequence[NewMessage | TenantqError],
        key: str | None = None,
    ) -> list[Added]:
        """Add messages; one answer per message, in order. An error in place of a message keeps its place.

        The same batch again under the same ``key`` adds nothing again.
        """
        check_queue_name(queue)
        check_batch("messages", messages)
        sizes = [len(one.body) if isinstance(one, NewMessage) and type(one.body) is bytes else 0 for one in messages]
        entered = await self.gates.enter(
            call, tenant, "add", queue, slot="add", rate="write", ops=len(messages), size=sum(sizes)
        )
        with entered:
            try:
                with self._noting(call, entered.caller, entered.tenant, "add", queue):
                    self._check_journal(entered.tenant, queue)
                added = await self._add(entered, queue, messages, key)
            except TenantqError:
                self.gates.give_back(entered, queue, "write", len(messages), sum(sizes))
                raise
            refused = [size for one, size in zip(added, sizes, strict=True) if one.error is not None]
            if refused:
                self.gates.give_back(entered, queue, "write", len(refused), sum(refused))
            return added

    async def _add(
        self, entered: Entered, queue: str, messages: Sequence[NewMessage | TenantqError], key: str | None
    ) -> list[Added]:
        """Have the engine add messages: encrypted where the tenant's are."""
        state = entered.state
        digests: tuple[bytes, ...] = ()
        given = messages
        if not state.config.encryption.enabled:
            if self._sealing is not None and state.id in self.shard.data_keys:
                known = await self._sealing.recognise(state, messages, key)
                given, digests = known.messages, known.digests
            try:
                return await self.shard.add(
                    entered.tenant, queue, given, entered.caller, batch_key=key, batch_digests=digests
                )
            except Conflict:
                if not state.config.encryption.enabled:
                    raise  # otherwise it was switched on while they stood in line
        with self._noting_keys(entered, "add", queue):
            batch = await self._vault().seal_messages(state, queue, messages, key)
        return await self.shard.add(
            entered.tenant, queue, batch.messages, entered.caller, batch_key=key, batch_digests=batch.digests,
            sealed_plain=batch.plain,
        )  # fmt: skip
