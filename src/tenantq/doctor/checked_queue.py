"""A queue that is checked."""

from dataclasses import dataclass

from tenantq.doctor.catalog_check import KnownQueue
from tenantq.doctor.report import FindingKind, FindingLog
from tenantq.store.interface import StoreReader


@dataclass(frozen=True, slots=True)
class CheckedQueue:
    """A queue, the store of its rows, and where findings about it are recorded."""

    store: StoreReader
    queue: KnownQueue
    log: FindingLog

    def found(self, kind: FindingKind, text: str, id: bytes = b"") -> None:
        """Record a finding about this queue."""
        self.log.found(kind, text, tenant=self.queue.tenant, queue=self.queue.name, id=id)
