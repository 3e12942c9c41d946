"""A consumer of messages that another program sends by plain SQL, and what it does with dead letters.

The producer knows nothing of Holdfast: it inserts rows, in the transaction of its own data. Some of its messages are
wrong, one is no JSON at all, and the warehouse is closed at first.
"""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from holdfast import Holdfast, Message, Queue

SEND = "INSERT INTO holdfast_jobs (queue, args, max_attempts, key) VALUES ('parcels', ?, 2, ?)"
BODIES = [
    '{"parcel": 1, "grams": 250}',
    '{"parcel": 2, "grams": "heavy"}',
    '{"parcel": 3',
    '{"parcel": 4, "grams": 90}',
    '{"parcel": 5, "grams": 31000}',
]


class Parcel(Struct):
    parcel: int
    grams: int


class Warehouse:
    """Where the parcels go. It has a table in the same database, and opening hours."""

    def __init__(self) -> None:
        self.is_open = False

    def book(self, conn: sqlite3.Connection, parcel: Parcel) -> None:
        if not self.is_open and parcel.parcel == 4:
            raise ConnectionError("the warehouse is closed")
        conn.execute("INSERT INTO booked VALUES (?, ?)", (parcel.parcel, parcel.grams))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "app.db"
        with Holdfast(path) as app, closing(sqlite3.connect(path)) as conn:
            conn.executescript("CREATE TABLE booked (parcel INTEGER PRIMARY KEY, grams INTEGER NOT NULL);")
            run(app.queue("parcels", type=Parcel, max_attempts=2), conn)


def run(parcels: Queue[Parcel], producer: sqlite3.Connection) -> None:
    warehouse = Warehouse()
    with producer:  # the producer's own transaction
        producer.executemany(SEND, [(body, f"parcel-{n}") for n, body in enumerate(BODIES, 1)])

    print("The consumer takes what comes:")
    consume(parcels, warehouse)

    print("What it could not handle is kept:")
    look_at(parcels)

    print("The warehouse opens, and its dead letters are delivered again:")
    warehouse.is_open = True
    closed = [letter.id for letter in parcels.dead_letters() if letter.error_code == "INTERNAL:ATTEMPTS_SPENT"]
    print(f"   {parcels.requeue(closed, reason='the warehouse is open')} requeued")
    consume(parcels, warehouse)

    print("The others can never be handled: they are noted, and deleted.")
    noted = [letter.raw_args.decode("utf-8", "replace") for letter in parcels.dead_letters()]
    purged = parcels.purge(dead_only=True, reason="noted")
    print(f"   {purged} purged: {', '.join(sorted(noted))}")
    booked = producer.execute("SELECT parcel, grams FROM booked ORDER BY parcel").fetchall()
    print(f"Booked: {booked}")


def consume(parcels: Queue[Parcel], warehouse: Warehouse) -> None:
    """Handle messages until none is left. In a service, this is `while True` with `receive(wait=20)`."""
    while (message := parcels.receive()) is not None:
        handle(message, warehouse)


def handle(message: Message[Parcel], warehouse: Warehouse) -> None:
    if message.body.grams > 30_000:
        message.fail("REJECTED:TOO_HEAVY", f"{message.body.grams} g")  # a dead letter at once
        return
    try:
        with message.ack_with() as tx:  # the booking and the acknowledgement: both or neither
            warehouse.book(tx, message.body)
    except ConnectionError as error:
        again = message.release()  # another delivery, while attempts are left
        print(f"   parcel {message.body.parcel}, attempt {message.attempt}: {error}, released: {again}")
    else:
        print(f"   parcel {message.body.parcel} booked")


def look_at(parcels: Queue[Parcel]) -> None:
    """List the dead letters. One that cannot be decoded does not end the loop: `raw_args` is the body as stored."""
    for letter in parcels.dead_letters():
        print(f"   {letter.id}: {letter.error_code}: {letter.raw_args.decode('utf-8', 'replace')}")


if __name__ == "__main__":
    main()
