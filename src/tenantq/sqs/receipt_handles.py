"""Receipt handles: a receipt and its queue, with a MAC that proves that this server issued it."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING, Final

from tenantq.sqs.failures import invalid_receipt

if TYPE_CHECKING:
    from tenantq.service.sqs_lookup import FoundQueue

_RECEIPT_BYTES: Final = 24
_SEAL_BYTES: Final = 12


class ReceiptHandles:
    """Turns receipts into handles and back."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def handle(self, queue: FoundQueue, receipt: str) -> str:
        """Return the handle of a new receipt."""
        raw = bytes.fromhex(receipt)
        return base64.urlsafe_b64encode(raw + self._seal(queue, raw)).decode()

    def receipt(self, queue: FoundQueue, handle: str) -> str:
        """Return the receipt of a handle, current or not. Raises SqsFailure for a handle of another queue."""
        try:
            sealed = base64.b64decode(handle.encode(), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            sealed = b""
        raw, seal = sealed[:_RECEIPT_BYTES], sealed[_RECEIPT_BYTES:]
        if len(raw) != _RECEIPT_BYTES or not hmac.compare_digest(seal, self._seal(queue, raw)):
            raise invalid_receipt(handle)
        return raw.hex()

    def _seal(self, queue: FoundQueue, raw: bytes) -> bytes:
        place = queue.tenant_id.to_bytes(4) + queue.id.to_bytes(4)
        return hmac.digest(self._key, place + raw, "sha256")[:_SEAL_BYTES]
