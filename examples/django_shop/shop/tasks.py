"""Work that is done in the background."""

from dataclasses import dataclass

from django.conf import settings
from django.db import close_old_connections

from shop.models import Order
from tenantq import Worker

worker = Worker(settings.TENANTQ_URL, settings.TENANTQ_TOKEN)


@dataclass
class Confirmation:
    """The body of a message: an ID, not the row, because the row can change until the work is done."""

    order_id: int


@worker.task("confirmations", timeout_ms=30_000)
def confirm(confirmation: Confirmation) -> None:
    """Confirm an order. A message can be delivered twice, so confirming must be idempotent."""
    close_old_connections()
    Order.objects.filter(id=confirmation.order_id, confirmed=False).update(confirmed=True)
