"""The shop's background work. Run it with: DJANGO_SETTINGS_MODULE=project.settings holdfast worker shop.jobs:jobs"""

from django.conf import settings
from django.db import connection

from holdfast import Context, Holdfast

from .models import Order

jobs = Holdfast(settings.DATABASES["default"]["NAME"])


def pay(order_id: int, amount: int, key: str) -> str:
    """Stand in for the payment service, which does the same key only once."""
    return f"paid {amount} for order {order_id}"


@jobs.task(queue="mail")
def send_mail(to: str, text: str) -> None:
    print(f"mail to {to}: {text}")


@jobs.task(max_attempts=3, retry=[10, 60])
def charge(ctx: Context, order_id: int) -> str | None:
    order = Order.objects.get(pk=order_id)
    reference = pay(order.pk, order.amount, key=f"shop-{ctx.job_id}")
    # The order is paid, the mail is enqueued and the job has succeeded, or none of it.
    with ctx.complete(reference, conn=connection):
        Order.objects.filter(pk=order_id).update(state="paid")
        send_mail.using(conn=connection).enqueue(order.customer, reference)


@jobs.task(pool="process")
def report() -> int:
    """Runs in a process of its own, where Django is set up, too."""
    return Order.objects.filter(state="paid").count()
