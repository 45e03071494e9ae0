"""Pages of the example."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from shop.models import Order
from shop.tasks import Confirmation, confirm


@csrf_exempt
@require_POST
@transaction.atomic
def place(request: HttpRequest) -> JsonResponse:
    """Store an order, and queue its confirmation when the transaction commits: a worker would not find it before."""
    order = Order.objects.create(email=request.POST["email"])
    transaction.on_commit(lambda: confirm.add(Confirmation(order.id), key=f"confirm-{order.id}"))
    return JsonResponse({"id": order.id}, status=202)


@require_GET
def show(_: HttpRequest, order_id: int) -> JsonResponse:
    """Return an order."""
    order = get_object_or_404(Order, id=order_id)
    return JsonResponse({"id": order.id, "email": order.email, "confirmed": order.confirmed})
