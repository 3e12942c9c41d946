"""Messages with a type: what is sent is checked, and what is received is an object again."""

import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Literal

from msgspec import Struct

from holdfast import Holdfast
from holdfast.errors import InvalidInput


class Payment(Struct):
    order: int
    amount: Decimal
    currency: Literal["EUR", "CHF"]
    at: datetime


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "app.db"
        with Holdfast(path) as app:
            run(app, path)


def run(app: Holdfast, path: Path) -> None:
    payments = app.queue("payments", type=Payment)

    print("A Struct goes in, readable JSON is stored, a Struct comes out:")
    sent = payments.send(Payment(1001, Decimal("30.50"), "CHF", datetime(2026, 3, 1, 12, tzinfo=UTC)))
    print(f"   stored:   {app.jobs.get(sent).args}")
    message = payments.receive()
    assert message is not None
    print(f"   received: {message.body}")
    message.ack()

    print("A body that does not fit is refused, and nothing is stored:")
    try:
        payments.send(Payment(1002, Decimal(5), "USD", datetime.now(UTC)))  # type: ignore[arg-type]
    except InvalidInput as error:
        print(f"   {error}")

    print("A row that was written by hand, with a mistake, fails alone:")
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("""INSERT INTO holdfast_jobs (queue, args) VALUES ('payments', '{"order": "many"}')""")
    payments.send(Payment(1003, Decimal("1.20"), "EUR", datetime(2026, 3, 2, 12, tzinfo=UTC)))
    message = payments.receive(wait=1)
    assert message is not None
    print(f"   received: order {message.body.order}")
    message.ack()
    dead = payments.dead_letters()[0]
    print(f"   dead letter {dead.id}: {dead.error_code}: {dead.error_detail}")


if __name__ == "__main__":
    main()
