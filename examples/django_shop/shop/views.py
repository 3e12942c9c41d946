import json

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt

from .jobs import charge
from .models import Order


@csrf_exempt
def create_order(request: HttpRequest) -> JsonResponse:
    new = json.loads(request.body)
    with transaction.atomic():
        order = Order.objects.create(customer=new["customer"], amount=new["amount"])
        job = charge.using(conn=connection).enqueue(order.pk)
        if order.amount > 100_000:
            transaction.set_rollback(True)  # the order and its job
            return JsonResponse({"error": "too expensive"}, status=400)
    return JsonResponse({"order": order.pk, "job": job.id}, status=201)


def read_order(request: HttpRequest, order_id: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=order_id)
    return JsonResponse({"customer": order.customer, "state": order.state})
