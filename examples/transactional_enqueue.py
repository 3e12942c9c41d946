"""An order and its mail in one transaction of the program's own connection: both are stored, or neither."""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from holdfast import Holdfast


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        with Holdfast(path) as app, closing(sqlite3.connect(path)) as conn:
            run(app, conn)


def run(app: Holdfast, conn: sqlite3.Connection) -> None:
    conn.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, amount INTEGER CHECK (amount > 0))")

    @app.task(queue="mail")
    def send_mail(to: str, subject: str) -> None:
        """A worker runs this. Until there is one, the jobs wait."""

    def place_order(customer: str, amount: int) -> None:
        with conn:  # commits at the end, or rolls back if anything raises
            job = send_mail.using(conn=conn).enqueue(customer, subject="Thank you")
            print(f"   mail to {customer} is job {job.id}, if this transaction commits")
            conn.execute("INSERT INTO orders (customer, amount) VALUES (?, ?)", (customer, amount))

    print("An order that is accepted:")
    place_order("ada@example.org", 30)
    report(app, conn)

    print("An order that the database refuses, after its mail was enqueued:")
    try:
        place_order("bob@example.org", -5)
    except sqlite3.IntegrityError as error:
        print(f"   refused: {error}")
    report(app, conn)

    print("The same with a transaction that Holdfast opens:")
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders (customer, amount) VALUES (?, ?)", ("eve@example.org", 12))
        send_mail.using(conn=tx).enqueue("eve@example.org", subject="Thank you")
    report(app, conn)


def report(app: Holdfast, conn: sqlite3.Connection) -> None:
    orders = [row[0] for row in conn.execute("SELECT customer FROM orders ORDER BY id")]
    mails = [job.args["to"] for job in reversed(app.jobs.list(queue="mail"))]
    print(f"   orders: {orders}")
    print(f"   mails:  {mails}")


if __name__ == "__main__":
    main()
