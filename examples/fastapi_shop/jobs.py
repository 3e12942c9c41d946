"""The shop's background work. Run it with: holdfast worker jobs:jobs"""

from database import PATH, Order, SessionLocal, engine
from sqlalchemy import event

from holdfast import Context, Holdfast

jobs = Holdfast(PATH)


@event.listens_for(engine, "connect")
def guard(connection, _) -> None:
    jobs.guard(connection)


def pay(order_id: int, amount: int, key: str) -> str:
    """Stand in for the payment service, which does the same key only once."""
    return f"paid {amount} for order {order_id}"


@jobs.task(queue="mail")
def send_mail(to: str, text: str) -> None:
    print(f"mail to {to}: {text}")


@jobs.task(max_attempts=3, retry=[10, 60])
def charge(ctx: Context, order_id: int) -> str | None:
    with SessionLocal() as session:
        order = session.get_one(Order, order_id)
        amount, customer = order.amount, order.customer
        session.rollback()  # no transaction is open during the slow call
        reference = pay(order_id, amount, key=f"shop-{ctx.job_id}")
        # The order is paid, the mail is enqueued and the job has succeeded, or none of it.
        with ctx.complete(reference, conn=session):
            session.get_one(Order, order_id).state = "paid"
            send_mail.using(conn=session).enqueue(customer, reference)
