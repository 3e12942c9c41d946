"""An order as a workflow: parcels weighed side by side, a person's approval, a chain, and money that moves once.

A job waits for two weights and an approval. It charges the customer in the transaction in which it succeeds, fails
right before the commit, and runs again.
"""

import logging
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from holdfast import Context, Holdfast, Then


def main() -> None:
    logging.getLogger("holdfast").addHandler(logging.NullHandler())  # what fails here is meant to
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        with Holdfast(path) as app, closing(sqlite3.connect(path)) as conn:
            conn.execute("PRAGMA wal_autocheckpoint = 0")
            conn.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER)")
            with conn:
                conn.execute("INSERT INTO accounts VALUES ('ada', 100), ('shop', 0)")
            run(app, conn)


def run(app: Holdfast, conn: sqlite3.Connection) -> None:
    @app.task
    def weigh(parcel: str) -> int:
        return len(parcel)

    @app.task(max_attempts=2, retry=0)
    def charge(ctx: Context, order: int) -> None:
        *weights, approval = ctx.blocker_results
        price = sum(weights)
        with ctx.complete() as tx:
            tx.execute("UPDATE accounts SET balance = balance - ? WHERE name = 'ada'", (price,))
            tx.execute("UPDATE accounts SET balance = balance + ? WHERE name = 'shop'", (price,))
            if ctx.attempt == 1:
                print(f"   attempt 1 took {price} from ada, and fails before the commit")
                raise ConnectionError("the lights went out")
            print(f"   attempt 2 took {price} from ada, approved by {approval['by']}")
            tx.result = Then(ship, order, weight=price)

    @app.task
    def ship(order: int, weight: int) -> Then:
        return Then(notify, "ada@example.org", f"order {order}, {weight} kg, is on its way")

    @app.task
    def notify(to: str, text: str) -> str:
        return f"{to}: {text}"

    def work() -> None:
        app.worker(until_idle=True).run()

    print("Two parcels are weighed, and a person is asked:")
    parcels = [weigh.enqueue("books"), weigh.enqueue("umbrella")]
    approval = app.external("approve-order", {"order": 7})
    job = charge.using(after=[*parcels, approval]).enqueue(7)
    work()
    weights = [parcel.refresh().result for parcel in parcels]
    print(f"   the weights are {weights}; the order is {job.refresh().status}")
    print(f"   {app.jobs.explain(job.id).reason}")

    print("Eve approves, and the order continues:")
    app.jobs.complete(approval.id, {"by": "eve"}, actor="eve")
    work()
    print(f"   {job.wait_chain(timeout=5)}")
    print(f"   the chain: {', '.join(f'{step.task} {step.status}' for step in app.chains.get(job.id).jobs())}")
    balances = dict(conn.execute("SELECT name, balance FROM accounts ORDER BY name"))
    print(f"   the money: {balances}")

    print("A newsletter to many, with one report at its end:")

    @app.task
    def mail(to: str) -> None: ...

    @app.task
    def report(ctx: Context) -> str:
        assert ctx.batch is not None
        progress = ctx.batch.progress()
        return f"{progress.succeeded} of {progress.total} mails were sent"

    with app.batch(on_done=report) as batch:
        mail.using(batch=batch).enqueue_many({"to": f"{number}@example.org"} for number in range(1000))
    work()
    print(f"   {app.jobs.get(batch.done_job_id or 0).result}")


if __name__ == "__main__":
    main()
