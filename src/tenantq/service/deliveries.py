"""Deliveries between the engine and the caller: decrypts them, and releases those that the caller may not have."""

import contextlib
import logging
from collections.abc import Iterator, Sequence

from tenantq.domain.message import Delivery, receipts_by_queue
from tenantq.engine.ops.settle import Nack
from tenantq.engine.shard import Shard
from tenantq.errors import DecryptionFailed, NotFound
from tenantq.service.admission import Admission
from tenantq.service.admitted_call import AdmittedCall
from tenantq.service.encryption import MessageEncryption

log = logging.getLogger("tenantq")


class Deliveries:
    """Decrypts and releases leased messages, for polls of one queue and of many tenants."""

    def __init__(self, shard: Shard, admission: Admission, encryption: MessageEncryption) -> None:
        self._shard, self._admission, self._encryption = shard, admission, encryption

    async def decrypt(self, admitted: AdmittedCall, deliveries: list[Delivery]) -> list[Delivery]:
        """Return leased messages of one tenant decrypted.

        If the keys are not available, all are released without using an attempt. A message that cannot be decrypted is
        nacked, so that it ends up among the dead letters. Raises DecryptionFailed if none can be decrypted.
        """
        first = deliveries[0]
        with (
            self.released_on_failure(deliveries, admitted),
            self._admission.notes.noting_failure(admitted.caller, admitted.tenant, "poll", first.queue),
        ):
            decrypted = await self._encryption.decrypt_deliveries(self._shard.tenant(first.tenant).id, deliveries)
        if decrypted.broken:
            await self._nack_broken(decrypted.broken, admitted)
            if not decrypted.intact:
                broken = decrypted.broken[0]
                raise DecryptionFailed(tenant=broken.tenant, queue=broken.queue, id=broken.id)
        return decrypted.intact

    @contextlib.contextmanager
    def released_on_failure(self, deliveries: Sequence[Delivery], admitted: AdmittedCall) -> Iterator[None]:
        """Release the deliveries if the block fails, or if the caller has gone."""
        try:
            yield
        except BaseException:
            self.release(deliveries, admitted)
            raise

    def release(self, deliveries: Sequence[Delivery], admitted: AdmittedCall) -> None:
        """Return leases without using an attempt."""
        self._shard.loop.release_undelivered(deliveries, admitted.caller)

    async def _nack_broken(self, broken: list[Delivery], admitted: AdmittedCall) -> None:
        self._encryption.broken += len(broken)
        for (tenant, queue), receipts in receipts_by_queue(broken).items():
            log.error(
                "cannot decrypt %d messages of %s/%s: their stored bytes were modified",
                len(receipts),
                tenant,
                queue,
                extra={"tenant": tenant, "queue": queue},
            )
            with contextlib.suppress(NotFound):  # the queue was deleted meanwhile
                owner = self._shard.tenant(tenant)
                await self._shard.submit(Nack(owner, admitted.caller, queue, receipts, reason=DecryptionFailed.code))
