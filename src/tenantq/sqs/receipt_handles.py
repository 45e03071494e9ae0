"""Receipt handles: a receipt and its queue, with a MAC that proves that this server issued it."""

import base64
import binascii
import hmac
from typing import Final

from tenantq.service.sqs_lookup import FoundQueue
from tenantq.sqs.failures import invalid_receipt

_RECEIPT_BYTES: Final = 24
_MAC_BYTES: Final = 12


class ReceiptHandles:
    """Turns receipts into handles and back."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def handle(self, queue: FoundQueue, receipt: str) -> str:
        """Return the handle of a new receipt."""
        raw = bytes.fromhex(receipt)
        return base64.urlsafe_b64encode(raw + self._mac(queue, raw)).decode()

    def receipt(self, queue: FoundQueue, handle: str) -> str:
        """Return the receipt of a handle, current or not. Raises SqsFailure for a handle of another queue."""
        try:
            decoded = base64.b64decode(handle.encode(), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            decoded = b""
        raw, mac = decoded[:_RECEIPT_BYTES], decoded[_RECEIPT_BYTES:]
        if len(raw) != _RECEIPT_BYTES or not hmac.compare_digest(mac, self._mac(queue, raw)):
            raise invalid_receipt(handle)
        return raw.hex()

    def _mac(self, queue: FoundQueue, raw: bytes) -> bytes:
        place = queue.tenant_id.to_bytes(4) + queue.id.to_bytes(4)
        return hmac.digest(self._key, place + raw, "sha256")[:_MAC_BYTES]
